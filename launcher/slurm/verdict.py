"""The reason why a Slurm job wrote no measurement, from Slurm's state, the ranks' last words and its output."""

from __future__ import annotations

import re
import time

from launcher.external_commands import node_names, numbers
from launcher.job_payload import REFUSES
from launcher.slurm.query import SlurmJobState, age
from sweeps.folder.submission import Submission, begun_at
from sweeps.reading import Reading
from train_core.job.failures import (
    failed_measurement,
    fault_of_signal,
    first_cause,
    lost_a_peer,
    of_full_disk,
    over_capacity_bytes,
    without_numbers,
)
from train_core.trial.folder import JobFolder, last_attempt
from train_core.trial.logs import MOST_LINES, last_lines, tail
from train_core.trial.measurement import FAULT_OF_OUTCOME, Fault, Measurement, Outcome, RankFailure

DAEMON = r"(?:slurmstepd|slurmd|srun)(?:-[\w.-]+)?: "
STAMP = r"\[[^\]\n]{8,40}\] "
PROGRESS_BAR = re.compile(rf"^(.*(?:\d%|\dit/s|\ds/it|\d/\d+ \[).*?) *(?={DAEMON}|{STAMP}error: )", re.MULTILINE)
GLUED = re.compile(rf"(?<=[^\s\"'`(\[{{<])(?={DAEMON}error: |{STAMP}error: \*\*\*|{STAMP}error: Detected )")
"""Words of Slurm's behind a line that the program has not ended. What stands there in quotation marks, or after a
blank, is the program's own."""

SLURM_SAYS = rf"^ *(?:\d+: )?(?:{DAEMON}(?:error: )?|(?:{STAMP})?error: )"
"""So begins a line of Slurm's own, also behind the number of a task. Since 2025 a time may stand where the daemon's
name stood, or nothing. What the program prints about nodes and memory decides nothing, so that all that follows has to
have the form of Slurm's own sentences."""

SRUN_SAYS = r"^ *(?:\d+: )?srun: (?:launch/slurm: \w+: )?error: "
CANCELLED = r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT [^*\n]*?"
OF_MEMORY = (
    r"(?:Detected \d+ )?oom[-_]kill event",
    r"(?:Step|Job)(?:Id=| )\S* exceeded (?:virtual )?memory limit",
    r"Exceeded job memory limit(?! at some point)",
)


def _said(*sentences: str, by_srun: str | None = None) -> re.Pattern[str]:
    of_srun = f"|{SRUN_SAYS}{by_srun}" if by_srun else ""
    return re.compile(rf"{SLURM_SAYS}(?:{'|'.join(sentences)}){of_srun}", re.MULTILINE)


WORDS_OF_SLURM = (
    (_said(f"{CANCELLED}DUE TO TIME LIMIT"), Outcome.TIMED_OUT),
    (
        _said(f"{CANCELLED}DUE TO NODE FAILURE", r"\*\*\* .* UNCORRECTABLE MEMORY", by_srun=r"Node failure on \S"),
        Outcome.NODE_FAILED,
    ),
    (_said(f"{CANCELLED}DUE TO PREEMPTION"), Outcome.PREEMPTED),
    (_said(*OF_MEMORY, by_srun=r"\S+: tasks? \d\S*: Out Of Memory"), Outcome.OUT_OF_MEMORY),
    (_said(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT (?!.*DUE TO )"), Outcome.CANCELLED),
)
"""It counts where Slurm has forgotten the job's state, and of memory always: a job beyond its --mem may be just FAILED.

The most specific come first. A person's cancellation has no DUE TO, or, since 25.05, one in other letters.
"""

REQUEUED = re.compile(rf"{SLURM_SAYS}{CANCELLED}DUE TO (?:JOB REQUEUE|PREEMPTION|NODE FAILURE).*\n", re.MULTILINE)
TASK_END = re.compile(rf"{SRUN_SAYS}(\S+): tasks? (\d[\d,-]*): (.+)", re.MULTILINE)


def own_lines(log: str) -> str:
    """The log with all words of Slurm's at the beginning of a line, whatever bar they were written behind."""
    return GLUED.sub("\n", PROGRESS_BAR.sub(r"\1\n", log.replace("\r", "\n")))


def outcome_in_words(lines: str) -> Outcome | None:
    """Return the end that Slurm's own lines, as `own_lines` has them, tell of; None if they tell of none."""
    return next((outcome for words, outcome in WORDS_OF_SLURM if words.search(lines)), None)


OUTCOME_OF_STATE = {
    "TIMEOUT": Outcome.TIMED_OUT,
    "DEADLINE": Outcome.TIMED_OUT,
    "OUT_OF_MEMORY": Outcome.OUT_OF_MEMORY,
    "NODE_FAIL": Outcome.NODE_FAILED,
    "BOOT_FAIL": Outcome.NODE_FAILED,
    "CANCELLED": Outcome.CANCELLED,
    "REVOKED": Outcome.CANCELLED,
    "PREEMPTED": Outcome.PREEMPTED,
}
"""States whose meaning is plain. COMPLETED and FAILED need the ranks' and the job's own words."""

CAUSE_OF_OUTCOME = {
    Outcome.TIMED_OUT: "ended by Slurm at its time limit",
    Outcome.OUT_OF_MEMORY: "ended by Slurm for using more memory than it asked for",
    Outcome.NODE_FAILED: "a node of the job failed",
    Outcome.CANCELLED: "cancelled in Slurm",
    Outcome.PREEMPTED: "preempted by Slurm for another job, and not run again by it",
}

NO_STEP = re.compile(
    r"^srun: error: (?:Unable to create step for job \d+: Duplicate job step id|Node failure on .*)", re.MULTILINE
)
"""So srun says that Slurm could not run the job's step, or lost a node of it. A FAILED job that says nothing else was
not ended by its program: as where a heterogeneous job is requeued after a node failed, and its step is still known."""

REFUSED_OPTIONS = re.compile(r"^srun: fatal: .*(?:mutually exclusive|environment variables?).*", re.MULTILINE)
"""So srun says that the options of the job's step contradict each other, as they would on every other node."""

REFUSED = re.compile(rf"^(?:\d+: )?{REFUSES}(.+)$", re.MULTILINE)

FINAL_WORDS = (Outcome.NODE_FAILED, Outcome.CANCELLED, Outcome.PREEMPTED, Outcome.TIMED_OUT)
"""Where Slurm says one of these, what ranks say is a consequence."""

FIRST_RANK = re.compile(r"^trisweep: ranks from (\d+) on are those of (\S+)$", re.MULTILINE)
"""So the script of a heterogeneous job says after a failed step where its components were."""

STEP_ENDED = "*** STEP "
"""So begins `*** STEP 7.0 ON node1 CANCELLED AT ... ***`. From there on srun ends the tasks that are left, with SIGTERM
first."""

# srun names the signal that ended a task in words, as the shell does.
SIGNALS = {"Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Terminated": 15, "Bus error": 7}

SETTLING_SECONDS = {"COMPLETED": 30.0, "NODE_FAIL": 60.0, "PREEMPTED": 60.0}
"""How long nothing is concluded: files may still have to appear on a network file system, or Slurm may requeue."""

DEFAULT_SETTLING_SECONDS = 2.0

OUTCOME_OF_ALLOCATION = {"NODE_FAIL": Outcome.NODE_FAILED, "CANCELLED": Outcome.CANCELLED}
"""In whatever other state an allocation ends, its trials were interrupted, and are run again."""

WORD_OF_STATE = {
    "TIMEOUT": "came to its time limit",
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was preempted",
    "PENDING": "was started again",
}


def is_settled(state: SlurmJobState) -> bool:
    return not state.is_live and age(state) >= SETTLING_SECONDS.get(state.name, DEFAULT_SETTLING_SECONDS)


def verdict(reading: Reading, submission: Submission, state: SlurmJobState | None) -> Measurement:
    """The measurement of a trial whose job has ended in `state`, or is unknown to Slurm (None), and left none."""
    failure = why_ended(reading.folder, submission, state, reading.planned.parallel.world_size)
    ended = state.ended if state and state.ended else time.time()
    # How long it waited is no part of how long it ran. Of a job that had nodes and no rank nobody knows when it began.
    waited = state is not None and not state.nodes
    started = begun_at(reading.folder, submission) or (ended if waited else submission.submitted)
    measurement = failed_measurement(reading.planned.fingerprint, failure, min(started, ended))
    # The nodes of the rank to blame say more than those of the whole job.
    suspects = measurement.nodes or node_names(state.nodes if state else "")
    return measurement.model_copy(update={"ended": ended, "nodes": suspects})


def why_ended(
    folder: JobFolder, submission: Submission, state: SlurmJobState | None, num_ranks: int | None = None
) -> RankFailure:
    """Return why a job left no result; rank -1 if no rank is to blame. `num_ranks` is None if it is not known."""
    log = own_lines(tail(submission.script_error))
    # Every run of a requeued job appends to the same files. Where Slurm has forgotten the job, its words about a
    # requeue may be all that tells of the end, and are kept.
    if state:
        log = log[max((match.end() for match in REQUEUED.finditer(log)), default=0) :]
    return _failure(folder, submission, state, log, num_ranks) or _unknown_failure(folder, submission, state, log)


def _failure(
    folder: JobFolder, submission: Submission, state: SlurmJobState | None, log: str, num_ranks: int | None
) -> RankFailure | None:
    """Slurm's own reasons come first: ranks that it ends on time-out or cancellation complain as a consequence."""
    outcome = OUTCOME_OF_STATE.get(state.name) if state else None
    # A state that Slurm knows is its word. Only of memory the output says more than the state does.
    said = outcome_in_words(log)
    if outcome is None and (state is None or said is Outcome.OUT_OF_MEMORY):
        outcome = said
    if outcome in FINAL_WORDS:
        return _failure_in_words(outcome, CAUSE_OF_OUTCOME[outcome], log)
    if refused := REFUSED.search(log):
        return _failure_in_words(Outcome.FAILED, refused[1], log, Fault.INPUT)
    failures = folder.read_failures()
    # A rank that only lost its connection to another is a victim: the other may have been killed without a word.
    culprit = first_cause(failures)
    if culprit is not None and not lost_a_peer(culprit):
        return culprit
    if outcome is not None:
        return _failure_in_words(outcome, CAUSE_OF_OUTCOME[outcome], log)
    spoken = {failure.rank for failure in failures} | _ranks_ended_by_srun(log)
    return _killed_task(submission, log, spoken) or _only_silent_rank(submission, spoken, num_ranks) or culprit


def _only_silent_rank(submission: Submission, spoken: set[int], num_ranks: int | None) -> RankFailure | None:
    """The one rank that said nothing where all others lost a peer: it ended with a code of which srun says nothing."""
    silent = sorted(set(range(num_ranks or 0)) - spoken)
    # Of several ranks that said nothing, nobody can tell which ended first.
    if not spoken or len(silent) != 1:
        return None
    (rank,) = silent
    cause = f"rank {rank} ended without a word before the training did, and the other ranks lost their connection to it"
    said = last_lines(submission.error_of(rank))
    return _silent_rank(rank, cause, said, Fault.CRASH)


def _silent_rank(rank: int, cause: str, said: str, fault: Fault) -> RankFailure:
    """The failure of a rank that left no word of its own."""
    failed = Outcome.FAILED
    return of_full_disk(
        RankFailure(rank=rank, outcome=failed, cause=cause, traceback=said, time=time.time(), blamed=rank, fault=fault)
    )


def _failure_in_words(outcome: Outcome, cause: str, log: str, fault: Fault | None = None) -> RankFailure:
    """A failure that belongs to no rank."""
    lacked = over_capacity_bytes(log) if outcome is Outcome.OUT_OF_MEMORY else None
    return RankFailure(
        rank=-1,
        outcome=outcome,
        cause=cause,
        traceback="\n".join(log.splitlines()[-MOST_LINES:]),
        time=time.time(),
        fault=fault or FAULT_OF_OUTCOME[outcome],
        over_capacity_bytes=lacked,
    )


def _unknown_failure(folder: JobFolder, submission: Submission, state: SlurmJobState | None, log: str) -> RankFailure:
    if state is not None and (step := NO_STEP.search(log)):
        return _failure_in_words(Outcome.NODE_FAILED, f"Slurm could not run its step ({step.group()})", log)
    if state is not None and (refused := REFUSED_OPTIONS.search(log)):
        cause = f"srun refused its options, and started no task ({refused.group()})"
        return _failure_in_words(Outcome.FAILED, cause, log, Fault.INPUT)
    if state is None:
        how, fault = "Slurm no longer knows it", Fault.LOST
    else:
        # A job that ended well without having begun has run something else, and would do so again.
        last = last_attempt(folder.claim)  # by which rank 0 came as far as taking the folder
        has_begun = last is not None and last.number >= submission.attempt
        started = has_begun or state.name == "COMPLETED"
        # Of a job that was never given a node, Slurm also says what kept it from one.
        has_reason = state.reason not in ("", "None") and not state.nodes
        word = f"{state.name}: {state.reason}" if has_reason else state.name
        how, fault = f"Slurm says {word}", Fault.CRASH if started else Fault.START
    cause = f"the job ended without a measurement or an error message ({how})"
    failure = _failure_in_words(Outcome.FAILED, cause, log, fault)
    return failure if state is None else of_full_disk(failure)


def _killed_task(submission: Submission, log: str, speaking_ranks: set[int]) -> RankFailure | None:
    """The first task whose end srun reports and that left no word of its own; srun ended the others itself."""
    firsts = first_ranks(log)
    # In the order in which srun reports them: the first is the cause, and the others follow from it. srun counts the
    # tasks of each component of a heterogeneous job from 0, hence the first ranks.
    for node, tasks, how in TASK_END.findall(log):
        silent = [rank for rank in _ranks(tasks, firsts.get(node, 0)) if rank not in speaking_ranks]
        if silent:
            rank, reason = silent[0], how.strip()
            ending = f"was killed by signal {SIGNALS[reason]}" if reason in SIGNALS else f"ended: {reason}"
            said = last_lines(submission.error_of(rank))
            if outcome_in_words(own_lines(said)) is Outcome.OUT_OF_MEMORY:  # its node's daemon has told only there
                return _failure_in_words(Outcome.OUT_OF_MEMORY, CAUSE_OF_OUTCOME[Outcome.OUT_OF_MEMORY], said)
            fault = fault_of_signal(SIGNALS[reason]) if reason in SIGNALS else Fault.CRASH
            return _silent_rank(rank, f"rank {rank} {ending}", said, fault)
    return None


def _ranks_ended_by_srun(log: str) -> set[int]:
    """The ranks that srun ended because another had left; that they say nothing tells nothing of them."""
    _, mark, after = log.partition(STEP_ENDED)
    firsts = first_ranks(log)
    ended = [(node, tasks) for node, tasks, how in TASK_END.findall(after) if how.strip() == "Terminated"]
    return {rank for node, tasks in ended for rank in _ranks(tasks, firsts.get(node, 0))} if mark else set()


def _ranks(tasks: str, first_rank: int) -> list[int]:
    """`0,4-6` -> 0, 4, 5, 6, each counted on from the first rank."""
    return [first_rank + int(task) for task in numbers(tasks)]


def first_ranks(log: str) -> dict[str, int]:
    """The first rank of the component of each node, from what the script said; empty for any other job."""
    return {node: int(first) for first, nodes in FIRST_RANK.findall(log) for node in node_names(nodes)}


def allocation_end(reading: Reading, submission: Submission, state: SlurmJobState | None) -> Measurement:
    """Return the measurement for a step whose allocation ended in this state, or is unknown to Slurm (None).

    The ranks' own words count, except those of ranks that lost their peers, as all of them do at such an end.
    """
    fingerprint, failure = reading.planned.fingerprint, first_cause(reading.folder.read_failures())
    if failure is not None and not lost_a_peer(failure):
        return failed_measurement(fingerprint, failure, submission.submitted)
    name = state.name if state else ""
    outcome = OUTCOME_OF_ALLOCATION.get(name, Outcome.PREEMPTED)
    cause = f"the allocation in which it ran {WORD_OF_STATE.get(name, 'ended')}"
    return without_numbers(fingerprint, outcome, cause, submission.submitted, tail(submission.error_of(0))[-2000:])
