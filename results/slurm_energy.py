"""The power that Slurm's accounting states for a trial's job, to hold against the counters of its devices."""

from __future__ import annotations

import json

from train_core.trial_folder import JobFolder

NOT_KNOWN = 2**63
"""Slurm writes numbers near 2^64 where a node said nothing."""


def slurm_watts(folder: JobFolder) -> float | None:
    """Mean watts of the job's nodes from its first second to its last; None where Slurm states no energy.

    It is taken from the record that a report keeps of an ended job: joules over elapsed seconds.
    """
    try:
        record = json.loads(folder.slurm_job.read_text())
        joules, seconds = int(record["ConsumedEnergyRaw"]), int(record["ElapsedRaw"])
    except (OSError, ValueError, KeyError, TypeError):  # no such job, or a site that accounts for none
        return None
    return joules / seconds if 0 < joules < NOT_KNOWN and seconds > 0 else None
