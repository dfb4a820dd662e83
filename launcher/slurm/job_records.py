"""The records that Slurm's accounting has of the jobs of trials, which are kept beside them, and its charges."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest

from pydantic_core import to_json

from launcher.control.workplace import ChargedTime
from launcher.external_commands import MANY_JOBS_SECONDS, in_calls
from launcher.slurm.query import ENDED_STATES, FRESH, SUBMIT_LINE, ask_accounting, masters, names_of
from sweeps.reading import Reading
from sweeps.trial import change_time
from train_core.trial.atomic import write_atomically

COLUMNS = (
    *("JobID", "JobName", "Cluster", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw", "Partition"),
    *("Account", "QOS", "NNodes", "NodeList", "AllocTRES", "TimelimitRaw", "ConsumedEnergyRaw", SUBMIT_LINE),
)

LATEST_SECONDS = 3600.0
"""The accounting hears of a job's end within so long, or not at all."""


def keep_job_records(readings: Iterable[Reading]) -> int:
    """Ask once about all ended jobs of Slurm's that have no record yet, and return how many records were written.

    The accounting forgets its jobs some day. Nothing is raised: without it, or where it does not answer, there are
    none.
    """
    lacking = {each.job_id: each for each in readings if _lacks_record(each) and each.job_id}
    num_written, records = 0, _records_of(lacking)
    for job_id, each in lacking.items():
        record = records.get(job_id)
        # The accounting may hear of a job's end only some time after its trial has ended.
        if record is not None and _is_of(record, each):
            with contextlib.suppress(OSError):
                text = to_json(record, indent=1).decode()
                write_atomically(each.folder.slurm_job, text, durable=False)
                num_written += 1
    return num_written


def has_record(job_ids: Collection[str]) -> bool:
    """True if the accounting tells how one of these jobs ended."""
    return not _records_of(job_ids).keys().isdisjoint(job_ids)


def charged_times(readings: Iterable[Reading]) -> Mapping[str, ChargedTime]:
    """Map the names of trials to the time that Slurm charges.

    A trial is absent if it has no job of its own, or the accounting does not answer. One that it has not heard of yet,
    which takes it some seconds, is charged for nothing so far.
    """
    by_job = {each.job_id: each for each in readings if _has_own_job(each) and each.job_id}
    runs: dict[str, list[Mapping[str, str]]] = {}
    for part in in_calls(list(by_job)):
        # With --duplicates the accounting also shows the runs before a requeue, which are charged too.
        if (records := _fetch_part(part, "--duplicates")) is None:
            continue
        runs |= {by_job[job_id].name: [] for job_id in part}
        for record in records:
            job, _, component = record["JobID"].partition("+")
            # The components of a heterogeneous job are charged for the same time, each for nodes of its own.
            if (reading := by_job.get(job)) and component in ("", "0") and _is_of(record, reading):
                runs[reading.name].append(record)
    return {name: _charged_time(records) for name, records in runs.items()}


def _records_of(job_ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Those of all elements of their arrays: an array is asked about by its own number, once."""
    parts = in_calls(masters(job_ids))
    return _by_job(record for part in parts for record in _fetch_part(part) or ())


def _by_job(records: Iterable[dict[str, str]]) -> dict[str, dict[str, str]]:
    """The records of jobs that have ended, by id; one of several components has the first's, with the energy of all."""
    components: dict[str, list[dict[str, str]]] = {}
    for record in records:
        components.setdefault(record["JobID"].partition("+")[0], []).append(record)
    return {
        job: each[0] | {"ConsumedEnergyRaw": _total([one["ConsumedEnergyRaw"] for one in each])}
        for job, each in components.items()
        if all(one["State"].startswith(ENDED_STATES) for one in each)
    }


def _total(joules: Sequence[str]) -> str:
    """The sum; where a component was not measured, what Slurm says of that one."""
    unmeasured = [each for each in joules if each == "0" or not each.isdigit()]
    return unmeasured[0] if unmeasured else str(sum(map(int, joules)))


def _charged_time(runs: Sequence[Mapping[str, str]]) -> ChargedTime:
    # The end of what still runs is written as Unknown. After a run that was requeued comes another, and Slurm writes
    # when each was submitted as 2026-01-31T23:59:59, so that the last is the greatest.
    last = max(runs, key=lambda each: each["Submit"], default=None)
    is_over = last is not None and last["State"] != "REQUEUED" and all(each["End"][:1].isdigit() for each in runs)
    return ChargedTime(sum(float(each["ElapsedRaw"] or 0) for each in runs), is_over)


def _is_of(record: Mapping[str, str], reading: Reading) -> bool:
    # A number is given out again once Slurm has lost its memory.
    names = names_of(f"{record['JobName']}|{record[SUBMIT_LINE]}")
    return reading.submission is not None and reading.submission.job_name in names


def _has_own_job(reading: Reading) -> bool:
    # A step of an allocation is no job of its own.
    return reading.is_in_slurm and reading.submission is not None and reading.submission.inside is None


def _lacks_record(reading: Reading) -> bool:
    if reading.submission is None or reading.measurement is None or not _has_own_job(reading):
        return False
    # A trial that ran again has another job, which is younger than the record of the one before.
    return change_time(reading.folder.slurm_job) < reading.submission.submitted


def awaits_record(reading: Reading) -> bool:
    """True where `keep_job_records` has yet to write one that may still come."""
    return _lacks_record(reading) and time.time() - (reading.end_time or 0.0) < LATEST_SECONDS


def _fetch_part(job_ids: Sequence[str], *options: str) -> list[dict[str, str]] | None:
    """The records of these jobs; None where the accounting does not answer."""
    told = ask_accounting(COLUMNS, job_ids, FRESH, *options, seconds=MANY_JOBS_SECONDS)
    if told.has_failed:
        return None
    lines = (line.removesuffix("|").split("|", len(COLUMNS) - 1) for line in told.said.splitlines())
    return [dict(zip_longest(COLUMNS, cells, fillvalue="")) for cells in lines if len(cells) >= len(COLUMNS) - 1]
