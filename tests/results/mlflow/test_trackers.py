"""What is written beside MLflow: a package that is not there is missed before trials run."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest

from conf.errors import ConfigError
from conf.types.sites import TrackingSpec
from results.mlflow import trackers
from results.mlflow.trackers import require_trackers
from tests.messages import refused

BOTH = TrackingSpec(kind="sqlite", uri=None, experiment="trisweep", also=("tensorboard", "wandb"))


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_what_is_not_installed_is_refused_before_trials_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_trackers(BOTH)
    found = ModuleSpec("one", None, origin="one.py")
    for missing in (None, ModuleSpec(name, None)):  # not there, or a folder of that name, as wandb's own is called
        specs = {"tensorboard": found, "wandb": found, name: missing}
        monkeypatch.setattr(trackers, "find_spec", specs.__getitem__)
        with refused(ConfigError, "tracking.also"):
            require_trackers(BOTH)


def test_runs_of_wandb_wait_for_the_end() -> None:
    assert BOTH.while_running().also == ("tensorboard",)
