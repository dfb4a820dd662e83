"""Jobs are recognised by cluster and name; stand-ins tell of other clusters and of a Slurm that lost its memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from conf.errors import UsageError
from launcher.slurm import job_status, pbs
from launcher.slurm.job_status import cancel_jobs, standings
from sweeps.folder.submission import Submission, SurroundingJob
from tests.launcher.conftest import Tools
from tests.messages import refused

Submit = Callable[..., Submission]
OURS = {"job_name": "trisweep-175b-1a2b", "cluster": "alps"}
ON_ALPS = "echo 'Configuration data as of 2026-11-22T05:40:41'; echo 'ClusterName = alps'"
ELSEWHERE = "its job is one of the Slurm cluster alps, and this machine asks jura"


def test_a_number_that_was_given_out_again_is_not_our_job_and_is_never_cancelled(
    tools: Tools, slurm_submission: Submit
) -> None:
    tools(
        scontrol=ON_ALPS,
        squeue="echo '12_0|RUNNING|N/A||precious|'; echo '13|RUNNING|N/A||trisweep-175b-1a2b|'",
        sacct="true",
        scancel='[ "$*" = 13 ]',
    )
    lost = {**OURS, "job_name": "trisweep-175b-0000"}
    foreign, own = slurm_submission("12_0", **lost), slurm_submission("13", **OURS)
    told = standings([foreign, own])
    assert [(job.is_unknown, job.is_live) for job in told] == [(True, False), (False, True)]
    assert cancel_jobs([foreign, own]) == ["13"]


@pytest.mark.parametrize("number", ["12", "99"])
def test_a_job_under_another_number_than_was_written_down_is_found_by_its_name_and_cancelled(
    tools: Tools, slurm_submission: Submit, number: str
) -> None:
    """As where a file came back from a copy: job 12 is another person's, 99 is none, and ours runs on."""
    tools(
        scontrol=ON_ALPS,
        squeue="echo '12|RUNNING|N/A||precious|'; echo '13|RUNNING|N/A||trisweep-175b-1a2b|'",
        sacct="true",
        scancel='[ "$*" = 13 ]',
    )
    (job,) = standings([slurm_submission(number, **OURS)])
    assert (job.is_live, job.submission.job_id) == (True, "13")
    assert cancel_jobs([slurm_submission(number, **OURS)]) == ["13"]


@pytest.mark.parametrize("tool", ["scancel", "qdel"])
def test_a_tool_that_hangs_while_it_ends_jobs_is_said_to_hang(
    tools: Tools, slurm_submission: Submit, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    tools(
        scontrol=ON_ALPS,
        squeue="echo '13|RUNNING|N/A||trisweep-175b-1a2b|'",
        qstat="printf 'Job Id: 13\n    Job_Name = trisweep-175b-1a2b\n    job_state = R\n'",
        sacct="true",
        **{tool: "exec /bin/sleep 600"},
    )
    for module in (job_status, pbs):
        monkeypatch.setattr(module, "MANY_JOBS_SECONDS", 0.2)
    executor = "pbs" if tool == "qdel" else "slurm"
    with refused(UsageError, tool):
        cancel_jobs([slurm_submission("13", **OURS, executor=executor)])


def test_another_clusters_login_node_knows_nothing_about_a_job_and_proves_nothing(
    tools: Tools, slurm_submission: Submit
) -> None:
    tools(
        scontrol="echo 'ClusterName = jura'", squeue="echo '12|RUNNING|N/A||precious|'", sacct="true", scancel="exit 1"
    )
    (job,) = standings([slurm_submission("12", **OURS)])
    assert (job.state, job.is_unknown, job.elsewhere) == (None, False, ELSEWHERE)
    with refused(UsageError, ELSEWHERE):
        cancel_jobs([job.submission])


def test_a_job_whose_number_was_never_written_down_is_found_by_its_name(tools: Tools, slurm_submission: Submit) -> None:
    tools(scontrol=ON_ALPS, squeue="echo '20_[0-1]|PENDING|N/A||trisweep-175b-1a2b|'", sacct="true")
    taken = [slurm_submission(None, element=element, **OURS) for element in (0, 1)]
    lost = slurm_submission(None, element=0, job_name="trisweep-175b-3c4d", cluster="alps")
    told = standings([*taken, lost])
    assert [job.submission.job_id for job in told] == ["20_0", "20_1", None]
    assert [job.is_live for job in told] == [True, True, False]
    assert told[2].is_unknown
    assert told[1].submission.error_of(0).name == "20_1_0_log.err"


def test_a_job_that_lives_in_the_books_alone_counts_for_some_minutes_and_is_lost_at_last(
    tools: Tools, slurm_submission: Submit
) -> None:
    booked = "echo '13|RUNNING|Unknown|n1|a name of today|sbatch /logs/trisweep-175b-1a2b.sh|'"
    tools(scontrol=ON_ALPS, squeue="true", sacct=booked, scancel="true")
    (first,) = standings([slurm_submission("13", **OURS)])
    assert (first.is_live, first.is_unknown) == (True, False)
    with refused(UsageError):
        cancel_jobs([first.submission])
    (later,) = standings([first.submission.missing_since(time.time() - 290)])
    assert later.is_live
    (lost,) = standings([first.submission.missing_since(time.time() - 310)])
    assert (lost.is_live, lost.is_unknown) == (False, True)
    tools(squeue="echo '13|RUNNING|N/A||trisweep-175b-1a2b|'")
    (found,) = standings([lost.submission])
    assert (found.is_live, found.submission.missing) == (True, None)


@pytest.mark.parametrize(
    "told",
    ["12|RUNNING None|N/A|n1|precious|/home/b/trisweep-175b-1a2b.sh.old|", "12|RUNNING None|N/A|n1|precious|(null)|"],
)
def test_a_job_with_neither_our_name_nor_our_script_is_not_ours(
    tools: Tools, slurm_submission: Submit, told: str
) -> None:
    tools(scontrol=ON_ALPS, squeue=f"echo '{told}'", sacct="true", scancel="exit 1")
    (job,) = standings([slurm_submission("12", **OURS)])
    assert job.is_unknown
    assert cancel_jobs([job.submission]) == []


def test_another_allocation_of_the_same_name_is_not_the_one_in_which_a_step_ran(
    tools: Tools, slurm_submission: Submit
) -> None:
    tools(scontrol=ON_ALPS, squeue="echo '45|RUNNING None|N/A|n1|interactive|(null)|'", sacct="true")
    inside = SurroundingJob(job_id="12", job_name="interactive")
    (step,) = standings([slurm_submission("12.3", job_name="trisweep-x-0badcafe", cluster="alps", inside=inside)])
    assert step.is_unknown
