"""`python -m benchmarks.replay` replays a sweep without a job, and says so."""

from __future__ import annotations

import json

import pytest

from benchmarks.replay.__main__ import main

NARROW = ["batch.micro_batch_size=4", "parallel.world_size=128", "parallel.pipeline_parallel_size=16"]
FEW = ["sweep.replay.num_machines=1", "sweep.replay.most_jobs=10"]


@pytest.mark.slow
def test_the_study_is_replayed_and_no_number_passes_for_a_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontier-study", *NARROW, *FEW]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Replayed against the cost model as the machine; nothing was measured." in text
    assert "search=bayes" in text
    assert "Optuna's TPE, told FAIL" in text
    assert "trisweep sweep frontier-study cluster=frontier" in text
    assert main(["frontier-study", *NARROW, *FEW, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["document"], document["num_machines"], len(document["searches"])) == ("replay", 1, 3)
    assert document["points_that_fit"] <= document["points_that_exist"]


def test_a_sweep_that_says_nothing_of_a_replay_is_answered_with_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke"]) == 2
    assert capsys.readouterr().err.startswith("sweep.replay = None: says nothing of how smoke is replayed.")
