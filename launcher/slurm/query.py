"""Ask Slurm how jobs stand. A question never hangs; a job that Slurm has forgotten is absent from the answer.

Every state comes with the job's names (see `job_status`). `SlurmSilent` is raised where nothing can be said now.

Answers are kept for a moment, so that a process which looks again and again asks slurmctld seldom: one that answers
slowly or with errors the more rarely, by those who take an older answer (`patience`). A step of a sweep takes none.
"""

from __future__ import annotations

import datetime
import os
import pwd
import re
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from launcher.external_commands import ANSWER_SECONDS, ask, in_calls, numbers
from launcher.slurm.cluster import this_cluster

SLOW_FACTOR = 10.0
"""An answer that took a second is not asked for again for ten seconds, by those who may take an older one."""

MOST_SECONDS = 60.0
"""No answer is kept for longer, and slurmctld is left unasked for no longer."""


class CommandAnswer(NamedTuple):
    """The answer of one command of Slurm's.

    Attributes:
        asked: when it was asked, in seconds since the epoch.
        took: seconds until it had answered.
        exit_code: None where there is no such command, or where it did not answer in time.
    """

    asked: float
    took: float
    exit_code: int | None
    said: str
    complained: str

    @property
    def has_failed(self) -> bool:
        return self.exit_code != 0

    @property
    def age(self) -> float:
        """Seconds since it was given; infinite where the clock has been set back meanwhile."""
        age = time.time() - self.asked
        return age if age >= 0 else float("inf")

    def is_good_for(self, patience: float) -> bool:
        """True if it is fresh enough for whoever takes one of that age in seconds, or Slurm is to be left in peace."""
        # A tool that fails is left alone twice as long, and a slow one in proportion to what an answer cost.
        wanted = 2 * patience if self.has_failed else max(patience, SLOW_FACTOR * self.took)
        return bool(patience) and self.age < min(wanted, MOST_SECONDS)


FRESH = 0.0
"""The age of a stored answer, in seconds, that is good enough for those who always ask."""
WATCHING = 30.0
"""Of those who look again and again: sites ask that squeue is not called in a loop; folders may be read at any time."""

_kept: dict[tuple[str, ...], CommandAnswer] = {}


def answer_of(command: Sequence[str], patience: float, seconds: float = ANSWER_SECONDS) -> CommandAnswer:
    """Return the command's answer: a stored one if it is fresh enough, else a new one.

    Args:
        patience: how old it may be, in seconds.
        seconds: after which a new one is not waited for any longer.
    """
    # Another cluster, or another stand-in for a tool, has answers of its own.
    request = (os.environ.get("SLURM_CONF", ""), shutil.which(command[0]) or "", *command)
    kept = _kept.get(request) if patience else None
    if kept is not None and kept.is_good_for(patience):
        return kept
    began, started = time.time(), time.monotonic()
    exit_code, said, complained = ask(*command, seconds=seconds)
    answer = CommandAnswer(began, time.monotonic() - started, exit_code, said, complained)
    if patience:  # who asks once keeps nothing
        for old in [each for each, stored in _kept.items() if stored.age > MOST_SECONDS]:
            del _kept[old]  # a sweep that goes on asks about other jobs, and nobody asks the old question again
        _kept[request] = answer
    return answer


def forget_answers() -> None:
    """Have everything asked anew: what Slurm said before its jobs were cancelled is not how they stand."""
    _kept.clear()


ENDED_STATES = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"),
    *("NODE_FAIL", "BOOT_FAIL", "DEADLINE", "PREEMPTED", "REVOKED"),
)
"""Any other state of Slurm's (PENDING, RUNNING, SUSPENDED, REQUEUED, REQUEUE_HOLD, ...) is that of a live job."""

TELLING = (
    *("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE"),
    *("PREEMPTED", "FAILED", "CANCELLED", "REVOKED", "COMPLETED"),
)
"""Of several components' ends, the earlier here says more: Slurm cancels the others of a job whose component failed."""

LINE = re.compile(
    r"^(\d+(?:\+\d+|_\d+|_\[[^]|]*\])?)\|([A-Z_]+)([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|(.*(?:\n(?!\d\S*\|[A-Z]).*)*?)\|\n",
    re.M,
)
"""The last `|` proves that the line is whole; a state may go on: `CANCELLED by 1000`, `PENDING Resources`. A person's
names of jobs and scripts may have several lines."""

BROKEN_LINE = re.compile(r"^\d+([_+]|\||$)", re.MULTILINE)
"""A line that begins like one about a job; if it is not whole, the tool was cut off while it wrote."""

SCRIPT = re.compile(r"([^/|\s]+)\.sh(?!\S)")
"""The name of a job's script in the command of its submission, which nobody can change."""

NO_SUCH_FIELD, SUBMIT_LINE = "Invalid field requested", "SubmitLine"
"""What sacct says of a field that it lacks; it has this one since Slurm 21.08."""

NO_NODES = ("(null)", "None assigned")
WAITING_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")


GIVEN_UP = ("launch failed requeued held", "JobHoldMaxRequeue")
"""Why Slurm itself holds a job that it could not start, or that was requeued too often: for an administrator."""

PART_ENDED, PART_ENDED_SECONDS = "a component has ended, and the others cannot start without it", 60.0
"""Why a heterogeneous job never starts again: Slurm 22.05 requeues, after a node failed, only the component that was on
it where the other has ended already. So long after that end, no requeue of all components is under way any more."""

UNKNOWN_HERE, NOT_SUBMITTED = "UNKNOWN HERE", "NOT SUBMITTED"
"""Slurm has no such states: another cluster may run the job, and the job never came to be."""


class SlurmJobState(NamedTuple):
    """The state of a job, or of one element of an array.

    Attributes:
        ended: seconds since the epoch; None while it lives, or where Slurm does not say. Of a heterogeneous job that
            waits, the end of the component that has ended.
        asked: when Slurm said so, by the same clock as `ended`; None where that is this machine's clock.
        names: of the job and of its script; none where Slurm was not asked for them.
        nodes: on which it runs or ran, in Slurm's short form, such as `node[1-3]`; empty before it starts.
        cause: why Slurm cannot say more, in words for people; empty where it can.
        reason: why a job waits, or could not start, as squeue says it.
    """

    name: str
    ended: float | None = None
    asked: float | None = None
    names: frozenset[str] = frozenset()
    cause: str = ""
    nodes: str = ""
    reason: str = ""

    @property
    def is_live(self) -> bool:
        # A job that is UNKNOWN HERE counts as live, so that nobody starts a second one beside it.
        return self.name not in (*ENDED_STATES, NOT_SUBMITTED)

    @property
    def is_waiting(self) -> bool:
        return self.name in WAITING_STATES

    @property
    def why_given_up(self) -> str:
        """The reason why Slurm holds the job for good, so that it will not start by itself; empty if it does not."""
        part_ended = self.reason == PART_ENDED and self.ended is not None and age(self) >= PART_ENDED_SECONDS
        return self.reason if self.is_waiting and (self.reason in GIVEN_UP or part_ended) else ""


class SlurmSilent(Exception):
    """A tool of Slurm did not answer, so that a job which is missing from the answer is not thereby unknown."""


def query_jobs(job_ids: Iterable[str], patience: float = FRESH) -> dict[str, SlurmJobState]:
    """States by job id (`12`, or `12_3` for an array element), in few calls for all of them.

    slurmctld comes first: it alone knows at once of a requeue. The accounting then tells of jobs that slurmctld has
    forgotten; where there is no accounting, those are absent. A job that lives only in the books is UNKNOWN HERE: a
    slurmctld that is killed loses the jobs of its last seconds, ends them when it is back, and tells nobody.

    Raises:
        SlurmSilent: about some of the jobs nothing can be said now.
    """
    wanted = set(job_ids)
    if not wanted:
        return {}
    queued = _squeue("--jobs", masters(wanted), patience)
    states = _select_states(wanted, queued)
    if forgotten := wanted - states.keys():
        books = _sacct(forgotten, patience)
        for job_id, booked in _select_states(forgotten, books).items():
            cause = f"squeue does not know its job, which the accounting calls {booked.name}"
            unknown = SlurmJobState(UNKNOWN_HERE, names=booked.names, cause=cause)
            states[job_id] = unknown if booked.is_live else booked
        states |= _cancelled_as_they_waited(forgotten - states.keys(), queued, books)
    return states


def _cancelled_as_they_waited(
    job_ids: Iterable[str], queued: dict[str, SlurmJobState], books: dict[str, SlurmJobState]
) -> dict[str, SlurmJobState]:
    """The elements that both tools lack, though they know the array: one cancelled before it started leaves nothing."""
    booked = {job_id.split("_")[0] for job_id in books}
    arrays = {array: state.names for job_id, state in queued.items() if (array := job_id.split("_")[0]) in booked}
    return {
        each: SlurmJobState("CANCELLED", names=arrays[array])
        for each in job_ids
        if (array := each.split("_")[0]) in arrays
    }


def query_named(job_names: Iterable[str], patience: float = FRESH) -> dict[str, SlurmJobState]:
    """States by job id of the jobs of these names, or of scripts of these names, that slurmctld knows of this user.

    Raises:
        SlurmSilent: slurmctld does not answer.
    """
    if not (wanted := set(job_names)):
        return {}
    try:
        # squeue cannot seek scripts, and a job may be called anything by now.
        states = _squeue("--user", [pwd.getpwuid(os.getuid()).pw_name], patience)
    except KeyError:  # a user without a name, of whom squeue finds no jobs
        states = _squeue("--name", sorted(wanted), patience)
    return {job_id: state for job_id, state in states.items() if state.names & wanted}


def _add_answer_time(states: dict[str, SlurmJobState], answer: CommandAnswer) -> dict[str, SlurmJobState]:
    """The same states with slurmctld's time of the answer, which is needed only to tell how old an end is."""
    if not any(state.ended for state in states.values()):
        return states
    answered_at = this_cluster().now - answer.age
    return {job_id: state._replace(asked=answered_at) for job_id, state in states.items()}


def _select_states(job_ids: set[str], states: dict[str, SlurmJobState]) -> dict[str, SlurmJobState]:
    """Select the states of these jobs; a job that nothing was said about is absent.

    An array that was cancelled before its first element started stays one record, which speaks for all elements.
    """
    selected = {job_id: states.get(job_id) or states.get(job_id.split("_")[0]) for job_id in job_ids}
    return {job_id: state for job_id, state in selected.items() if state is not None}


def _squeue(by: str, wanted: Sequence[str], patience: float) -> dict[str, SlurmJobState]:
    # slurmctld remembers an ended job for some minutes (MinJobAge), and shows it only with --states=all.
    command = ["squeue", "--states=all", "--noheader", "--array", "--format=%i|%T %r|%e|%N|%j|%o|"]
    # If squeue has forgotten the only job that it was asked about, it fails with this message: an answer too.
    answers = (answer_of([*command, f"{by}={','.join(some)}"], patience) for some in in_calls(wanted))
    return _states(answers, "Invalid job id")


def _sacct(job_ids: set[str], patience: float) -> dict[str, SlurmJobState]:
    """The answer is empty where the site keeps no accounting."""
    if not shutil.which("sacct"):
        return {}
    columns = ("JobID", "State", "End", "NodeList", "JobName", SUBMIT_LINE)
    answers = (ask_accounting(columns, some, patience) for some in in_calls(masters(job_ids)))
    return _states(answers, "accounting storage is disabled")


def ask_accounting(
    columns: Sequence[str], job_ids: Sequence[str], patience: float, *options: str, seconds: float = ANSWER_SECONDS
) -> CommandAnswer:
    """What sacct says of these jobs, in a line for each and none for its steps; without a column that it lacks."""
    command = ("sacct", "--noheader", "--parsable", "--allocations", *options)
    answer = answer_of((*command, f"--format={','.join(columns)}", f"--jobs={','.join(job_ids)}"), patience, seconds)
    if answer.has_failed and NO_SUCH_FIELD in answer.complained and SUBMIT_LINE in columns:
        known = [column for column in columns if column != SUBMIT_LINE]
        return ask_accounting(known, job_ids, patience, *options, seconds=seconds)
    return answer


def _states(answers: Iterable[CommandAnswer], none_known: str) -> dict[str, SlurmJobState]:
    """The states that a tool's answers show; it may fail with the words `none_known`, which are an answer."""
    states: dict[str, SlurmJobState] = {}
    for answer in answers:
        if answer.has_failed and none_known not in answer.complained:
            raise SlurmSilent
        states |= _add_answer_time(_parse_lines(answer.said), answer)
    return states


def masters(job_ids: Collection[str]) -> list[str]:
    """One id for a whole array instead of a thousand, which also finds the record of elements that never started."""
    return sorted({job_id.split("_")[0] for job_id in job_ids})


def _parse_lines(said: str) -> dict[str, SlurmJobState]:
    """Lines `12_[0-2,5%1]|PENDING|end|nodes|name|command|`; an unexpanded range stands for all its elements.

    A site may wrap the tool and print a banner, which is skipped. A line that breaks off means that others are missing.
    """
    if BROKEN_LINE.search(LINE.sub("", said)):
        raise SlurmSilent
    states: dict[str, SlurmJobState] = {}
    for shown_id, name, reason, end, shown_nodes, told in LINE.findall(said):
        ended = _seconds(end) if name in ENDED_STATES else None
        nodes = "" if shown_nodes in NO_NODES else shown_nodes
        state = SlurmJobState(name, ended, names=names_of(told), nodes=nodes, reason=reason.strip())
        job_id, plus, _ = shown_id.partition("+")
        if plus and job_id in states:  # a heterogeneous job, which has a line for each of its components
            state = of_components(states[job_id], state)
        states.update(dict.fromkeys(_expand_ranges(job_id), state))
    return states


def names_of(told: str) -> frozenset[str]:
    """The names in `NAME|COMMAND`: of the job, which anybody may change whose job it is, and of its script."""
    return frozenset((told.rsplit("|", 1)[0], *SCRIPT.findall(told)))


def of_components(first: SlurmJobState, second: SlurmJobState) -> SlurmJobState:
    """Combine the two components of a heterogeneous job into one state, on the nodes of both.

    It lives while one of them does. Then it has ended as the one whose end comes first in `TELLING`. One that waits
    beside one that has ended waits in vain.
    """
    both = (first, second)
    live = [state for state in both if state.is_live]
    nodes = ",".join(filter(None, (first.nodes, second.nodes)))
    telling = live[0] if live else min(both, key=lambda state: TELLING.index(state.name))
    ends = [state.ended for state in both if state.ended is not None]
    if live and ends and all(state.is_waiting for state in live):
        return telling._replace(ended=max(ends), nodes=nodes, reason=PART_ENDED)
    return telling._replace(ended=None if live else max(ends, default=None), nodes=nodes)


def _expand_ranges(job_id: str) -> list[str]:
    master, bracket, ranges = job_id.partition("_[")
    if not bracket:
        return [job_id]
    # `%5` is the throttle of the array, and `...` stands where a long list was cut short, perhaps within a number.
    return [f"{master}_{element}" for element in numbers(re.sub(r"%\d+|\]|[^,]*\.\.\.", "", ranges))]


def _seconds(text: str) -> float | None:
    try:
        # Without a zone, for Slurm's tools write times in that of the machine on which they run.
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:  # "Unknown", "N/A"
        return None


def age(state: SlurmJobState) -> float:
    """Seconds between the job's end and Slurm's answer; infinite where Slurm does not say when it ended."""
    if state.ended is None:
        return float("inf")
    return (time.time() if state.asked is None else state.asked) - state.ended
