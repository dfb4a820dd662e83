"""What is written beside MLflow whenever that is: `tracking.also`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from conf.errors import ConfigError
from conf.types.sites import TrackingSpec
from results.mlflow.run_content import RunContent
from results.mlflow.tensorboard import write_events
from results.mlflow.wandb import write_runs

WRITERS = {"tensorboard": write_events, "wandb": write_runs}
"""By the name of the package, which is that of the folder of its files too."""


def require_trackers(tracking: TrackingSpec) -> None:
    """Refuse what could not be written once the trials have run, as the package for it is not installed.

    Raises:
        ConfigError: a package that `tracking.also` needs is not installed.
    """
    for name in tracking.also:
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of this name is no package
            problem = f"the package {name} is not installed"
            raise ConfigError("tracking.also", [name], problem, f"Run pip install {name}, or leave it out.")


def write_beside(
    contents: Callable[[], Iterable[RunContent]], tracking: TrackingSpec, folder: Path, tracking_id: str
) -> None:
    """Bring the files of all runs up to date, in a folder of each of `tracking.also` below that of the sweep."""
    require_trackers(tracking)
    for name in tracking.also:
        WRITERS[name](contents(), tracking, folder / name, tracking_id)
