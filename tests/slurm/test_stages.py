"""The chain of docs/how-to/stages.md, training, inference and evaluation, with each stage a job of its own in Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_stages import read_stages, require_chains, sweep_example, write_example

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]


def test_a_later_stage_is_a_job_that_starts_only_after_the_earlier_one_completed(tmp_path: Path) -> None:
    write_example(tmp_path)
    options = ("cluster=local", "slurm.time_limit_minutes=5", "controller.poll_seconds=1", "tracking.live_seconds=null")
    done = sweep_example(tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = read_stages(tmp_path)
    require_chains(stages)
    assert {each.submission.executor for each in stages.values() if each.submission} == {"slurm"}
    assert len({each.job_id for each in stages.values()}) == len(stages)
