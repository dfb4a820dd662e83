"""How the jobs of a PBS machine stand (`slurm.scheduler=pbs`), and how they are ended.

What a job itself knows of its end, its script writes beside its output, because PBS forgets a job at its end unless its
history is kept: a qstat that no longer shows a job tells nothing but that.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from conf.errors import UsageError
from launcher.external_commands import MANY_JOBS_SECONDS, ask
from launcher.slurm.own_words import outcome_in_words, own_lines
from launcher.slurm.query import SlurmJobState, SlurmSilent
from launcher.slurm.query_cache import answer_of
from launcher.slurm.verdict import OUTCOME_OF_STATE
from sweeps.folder.submission import Submission
from train_core.trial.logs import tail
from train_core.trial.measurement import Outcome

LIVE = {
    **dict.fromkeys("QHWT", "PENDING"),
    **dict.fromkeys("RB", "RUNNING"),
    **dict.fromkeys("SU", "SUSPENDED"),
    "E": "COMPLETING",
}
"""Slurm's word for each of PBS' letters that is one of a job which has not ended."""

SUBMIT_HOST = "TRISWEEP_PBS_HOST"
"""The variable in which a job finds the login node from which it, or the job that submitted it, was submitted."""

WORDS_OF_PBS = (
    (re.compile(r"^=>> PBS: job killed: walltime \d+ exceeded", re.MULTILINE), Outcome.TIMED_OUT),
    (re.compile(r"^=>> PBS: job killed: (?:v|p)?mem \S+ exceeded", re.MULTILINE), Outcome.OUT_OF_MEMORY),
)
UNKNOWN_JOB = (153, 35)
"""Exit codes of qstat and qdel about a job that PBS does not know, or knows as ended: the last eight bits of its errors
15001 and 15139."""

FIELD = re.compile(r"^\s+(\w+) = (.*)$", re.MULTILINE)
WRAPPED = re.compile(r"\n\t(?![\w.]+ = )")
"""PBS breaks a long value, in the middle of a word, and goes on behind a tab. Slurm's own qstat has one before each
field."""


def ended_file(logs: Path, name: str) -> Path:
    """The file in which a job's script leaves its exit code."""
    return logs / f"{name}.ended"


def _deleted_file(logs: Path, name: str) -> Path:
    """The file that is there once we have called qdel for a job."""
    return logs / f"{name}.deleted"


def submit_host() -> str:
    """The login node that stands for this process: its own host, or the one from which its PBS job comes."""
    return os.environ.get(SUBMIT_HOST) or socket.gethostname()


def states_in_pbs(submissions: Sequence[Submission], patience: float) -> list[tuple[Submission, SlurmJobState | None]]:
    """How the job of each submission stands, in Slurm's words, with the number of one that had none yet.

    Raises:
        SlurmSilent: qstat does not answer.
    """
    if not submissions:
        return []
    # A submission without a number is one whose submitter died before qsub had answered: the name tells its job.
    ids = [each.job_id for each in submissions if each.job_id] if all(each.job_id for each in submissions) else []
    answer = answer_of(("qstat", "-f", *ids), patience)
    if answer.has_failed and not answer.said and answer.exit_code not in UNKNOWN_JOB:
        raise SlurmSilent
    shown = dict(_jobs(answer.said))
    states: list[tuple[Submission, SlurmJobState | None]] = []
    for each in submissions:
        job_id, fields = shown.get(each.job_name or "", ("", {}))
        own = each if each.job_id or not job_id else each.adopted_by(job_id)
        name = LIVE.get(fields.get("job_state", ""))
        state = SlurmJobState(name) if name else _end_of(own) if own.job_id else None
        # `node1/0*4+node2/0*4`, in which a node may stand as often as it has cores.
        hosts = dict.fromkeys(part.split("/")[0] for part in fields.get("exec_host", "").split("+"))
        states.append((own, state and state._replace(nodes=",".join(hosts))))
    return states


def _jobs(text: str) -> Iterator[tuple[str, tuple[str, dict[str, str]]]]:
    """The jobs of `qstat -f` by their name and that of their output: number and fields.

    A number alone may since be another job's, and anybody may change the name of a job of theirs.
    """
    whole = WRAPPED.sub("", text)
    for block in re.split(r"^Job Id:\s*", whole, flags=re.MULTILINE)[1:]:
        fields = dict(FIELD.findall(block))
        if "Job_Name" in fields:
            for name in (fields["Job_Name"], Path(fields.get("Output_Path", "")).stem):
                yield name, (block.split()[0], fields)


def _end_of(submission: Submission) -> SlurmJobState | None:
    """The end of a job that PBS shows no more, from what lies beside its output; None where nothing does yet."""
    logs, name = Path(submission.output).parent, submission.job_name or ""
    log, ended = own_lines(tail(submission.script_error)), ended_file(logs, name)
    outcome = next((end for words, end in WORDS_OF_PBS if words.search(log)), None) or outcome_in_words(log)
    if outcome is not None:
        return SlurmJobState(next(state for state, end in OUTCOME_OF_STATE.items() if end is outcome))
    if ended.exists():
        state = "COMPLETED" if ended.read_text().strip() == "0" else "FAILED"
        return SlurmJobState(state, ended=ended.stat().st_mtime)
    return SlurmJobState("CANCELLED") if _deleted_file(logs, name).exists() else None


def delete_jobs(submissions: Sequence[Submission]) -> None:
    """Have PBS end these jobs; raises UsageError where qdel fails."""
    if not submissions:
        return
    for each in submissions:
        _deleted_file(Path(each.output).parent, each.job_name or "").touch()
    result = ask("qdel", *(each.job_id or "" for each in submissions), seconds=MANY_JOBS_SECONDS)
    if not result.ok and result.exit_code not in UNKNOWN_JOB:
        raise UsageError(f"qdel failed: {result.complaint}", "Delete the jobs by hand.")
