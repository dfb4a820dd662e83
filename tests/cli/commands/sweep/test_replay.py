"""`trisweep sweep frontier-study` without a cluster is a replay, and says so."""

from __future__ import annotations

import json

import pytest

from cli.commands.sweep.command import sweep
from cli.output.console import console

NARROW = ["batch.micro_batch_size=4", "parallel.world_size=128", "parallel.pipeline_parallel_size=16"]


@pytest.mark.slow
def test_without_a_cluster_the_study_is_replayed_and_no_number_passes_for_a_measurement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["sweep.replay.num_machines=1", "sweep.replay.most_jobs=10"]
    sweep("frontier-study", [*NARROW, *few], here=True)
    text = " ".join(capsys.readouterr().out.split())
    assert "Replayed against the cost model as the machine; nothing was measured." in text
    assert "search=bayes" in text
    assert "Optuna's TPE, told FAIL" in text
    assert "trisweep sweep frontier-study cluster=frontier" in text
    monkeypatch.setattr(console, "stderr", False)  # as it was, once the document has had stdout to itself
    sweep("frontier-study", [*NARROW, *few], here=True, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["document"], document["num_machines"], len(document["searches"])) == ("replay", 1, 3)
    assert document["points_that_fit"] <= document["points_that_exist"]
