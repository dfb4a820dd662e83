"""`trisweep sweep frontier-study` without a cluster is a replay, and says so."""

from __future__ import annotations

import pytest

from cli.sweep.command import sweep

NARROW = ["batch.micro_batch_size=4", "parallel.world_size=128", "parallel.pipeline_parallel_size=16"]


def test_without_a_cluster_the_study_is_replayed_and_no_number_passes_for_a_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = ["sweep.replay.num_machines=1", "sweep.replay.most_jobs=10"]
    sweep("frontier-study", [*NARROW, *few], here=True)
    text = " ".join(capsys.readouterr().out.split())
    assert "Replayed against the cost model as the machine; nothing was measured." in text
    assert "search=bayes" in text
    assert "Optuna's TPE, told FAIL" in text
    assert "trisweep sweep frontier-study cluster=frontier" in text
