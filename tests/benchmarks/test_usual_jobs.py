"""What the search proposes for well-known jobs is what experts would take, and where it is not the page says why."""

from __future__ import annotations

import re

import pytest

from benchmarks.expert_plans import PAGE
from benchmarks.usual_jobs import JOBS, UsualJob, choice_of, is_signed, percent_longer

QUICK = [job for job in JOBS if job.model in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3")]


def test_the_page_has_a_row_for_every_job_and_a_reason_for_what_is_not_signed() -> None:
    rows = [line for line in PAGE.read_text().partition("## Well-known jobs")[2].splitlines() if line.startswith("| ")]
    assert len(rows[2:]) == len(JOBS)
    for job, row in zip(JOBS, rows[2:], strict=True):
        assert row.startswith(f"| {job.model}, ")
        assert row.endswith(f"| no: {job.differs} |" if job.differs else "| yes |")


@pytest.mark.slow
@pytest.mark.parametrize("job", QUICK, ids=lambda job: f"{job.model} on {job.devices}, {job.seq_length} tokens")
def test_what_is_proposed_has_the_usual_sizes_where_the_page_says_so(job: UsualJob) -> None:
    choice = choice_of(job)
    plan = choice.best[0]
    assert is_signed(job, plan) == (not job.differs)
    assert plan.peak_memory_bytes <= 0.95 * plan.space.setting.cluster.device.memory_bytes
    (most,) = re.findall(r"in the mean and ([\d.]+) % at most", PAGE.read_text())
    assert percent_longer(choice) <= float(most) + 0.05
