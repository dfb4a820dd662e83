"""The records that Slurm's accounting has of the jobs of trials, which are kept beside them, and its charges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from pydantic_core import to_json

from launcher.slurm.query import ENDED_STATES
from launcher.tools import MANY_JOBS_SECONDS, ask
from sweeps.reading import Reading
from train_core.whole_files import write_atomically

IDS_PER_CALL = 500
COLUMNS = (
    *("JobID", "JobName", "Cluster", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw", "Partition"),
    *("Account", "QOS", "NNodes", "NodeList", "AllocTRES", "TimelimitRaw", "ConsumedEnergyRaw"),
)
AnyReading = TypeVar("AnyReading", bound=Reading)


class ChargedTime(NamedTuple):
    """The time for which Slurm charges the last job of a trial.

    Attributes:
        seconds: of all its runs, each from its start in Slurm, those before a requeue included.
        is_over: no further second comes to it.
    """

    seconds: float
    is_over: bool


def keep_job_records(readings: Iterable[AnyReading]) -> int:
    """Ask once about all ended jobs of Slurm's that have no record yet, and return how many records were written.

    The accounting forgets its jobs some day. Nothing is raised: without it, or where it does not answer, there are
    none.
    """
    lacking = [each for each in readings if _lacks_record(each)]
    num_written, records = 0, dict(_fetch_records([each.job_id or "" for each in lacking]))
    for each in lacking:
        record = records.get(each.job_id or "")
        # The accounting may hear of a job's end only some time after its trial has ended.
        if record is not None and _is_of(record, each) and record["State"].startswith(ENDED_STATES):
            with contextlib.suppress(OSError):
                text = to_json(record, indent=1).decode()
                write_atomically(each.folder.slurm_job, text, durable=False)
                num_written += 1
    return num_written


def charged_times(readings: Iterable[Reading]) -> Mapping[str, ChargedTime]:
    """Map the names of trials to the time that Slurm charges; a trial is absent if the accounting lacks its job."""
    by_job = {each.job_id: each for each in readings if each.job_id is not None}
    times: dict[str, ChargedTime] = {}
    # With --duplicates the accounting also shows the runs before a requeue, which are charged too.
    for job_id, record in _fetch_records(list(by_job), "--duplicates"):
        job, _, component = job_id.partition("+")
        # The components of a heterogeneous job are charged for the same time, each for nodes of its own.
        if (reading := by_job.get(job)) is None or component not in ("", "0") or not _is_of(record, reading):
            continue
        before = times.get(reading.name, ChargedTime(0.0, True))
        # The end of what still runs is written as Unknown.
        is_over = before.is_over and record["End"][:1].isdigit()
        times[reading.name] = ChargedTime(before.seconds + float(record["ElapsedRaw"] or 0), is_over)
    return times


def _is_of(record: Mapping[str, str], reading: Reading) -> bool:
    # A number is given out again once Slurm has lost its memory; a job's name is not.
    return reading.submission is not None and record["JobName"] == reading.submission.job_name


def _lacks_record(reading: Reading) -> bool:
    # A step of an allocation is no job of its own.
    submission = reading.submission
    if submission is None or not reading.is_in_slurm or submission.inside is not None or reading.job_id is None:
        return False
    path = reading.folder.slurm_job
    # A trial that ran again has another job, which is younger than the record of the one before.
    is_old = path.exists() and path.stat().st_mtime < submission.submitted
    return reading.measurement is not None and (is_old or not path.exists())


def _fetch_records(job_ids: Sequence[str], *options: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Ids and records, until the accounting does not answer."""
    # In parts, because a command line may be only so long.
    for first in range(0, len(job_ids), IDS_PER_CALL):
        yield from _fetch_part(job_ids[first : first + IDS_PER_CALL], options)


def _fetch_part(job_ids: Sequence[str], options: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    # --allocations shows a line for each job, and none for its steps.
    command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={','.join(COLUMNS)}", *options]
    for line in ask(*command, f"--jobs={','.join(job_ids)}", seconds=MANY_JOBS_SECONDS).stdout.splitlines():
        cells = line.split("|")
        if len(cells) == len(COLUMNS):
            yield cells[0], dict(zip(COLUMNS, cells, strict=True))
