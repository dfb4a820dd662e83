"""What Slurm's accounting says of trials that have ended, kept beside them: it forgets its jobs some day."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from pydantic_core import to_json

from launcher.slurm.query import ENDED_STATES
from sweeps.reading import Reading
from train_core.whole_files import write_atomically

ANSWER_SECONDS = 60
IDS_PER_CALL = 500
COLUMNS = (
    *("JobID", "JobName", "Cluster", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw", "Partition"),
    *("Account", "QOS", "NNodes", "NodeList", "AllocTRES", "TimelimitRaw", "ConsumedEnergyRaw"),
)
AnyReading = TypeVar("AnyReading", bound=Reading)


def keep_job_records(readings: Iterable[AnyReading]) -> int:
    """Ask once about all ended jobs of Slurm's that have no record yet, and return how many records were written.

    Nothing is raised: without accounting, or where it does not answer, there are none.
    """
    lacking = [each for each in readings if _lacks_record(each)]
    if not lacking or not shutil.which("sacct"):
        return 0
    num_written = 0
    for first in range(0, len(lacking), IDS_PER_CALL):
        part = lacking[first : first + IDS_PER_CALL]
        told = dict(_told([each.job_id or "" for each in part]))
        for each in part:
            record = told.get(each.job_id or "")
            if record is not None and _is_its_end(record, each):
                with contextlib.suppress(OSError):
                    text = to_json(record, indent=1).decode()
                    write_atomically(each.folder.slurm_job, text, durable=False)
                    num_written += 1
    return num_written


def _is_its_end(record: dict[str, str], reading: Reading) -> bool:
    # A number is given out again once Slurm has lost its memory; a job's name is not.
    is_own = reading.submission is not None and record["JobName"] == reading.submission.job_name
    # The accounting may hear of a job's end only some time after its trial has ended.
    return is_own and record["State"].startswith(ENDED_STATES)


def _lacks_record(reading: Reading) -> bool:
    # A step of an allocation is no job of its own.
    submission = reading.submission
    if submission is None or not reading.is_in_slurm or submission.inside is not None or reading.job_id is None:
        return False
    path = reading.folder.slurm_job
    # A trial that ran again has another job, which is younger than the record of the one before.
    is_old = path.exists() and path.stat().st_mtime < submission.submitted
    return reading.measurement is not None and (is_old or not path.exists())


def _told(job_ids: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={','.join(COLUMNS)}"]
    try:
        done = subprocess.run(
            [*command, f"--jobs={','.join(job_ids)}"],
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return
    for line in done.stdout.splitlines():
        cells = line.split("|")
        if len(cells) == len(COLUMNS):
            yield cells[0], dict(zip(COLUMNS, cells, strict=True))
