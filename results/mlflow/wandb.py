"""Runs of Weights & Biases beside MLflow, for who sets `tracking.also=[wandb]`.

They are offline runs, `wandb/offline-run-DATE-ID` in the folder of a sweep or training. Nothing needs a network, and
`wandb sync runs/SWEEP/wandb/offline-run-*` sends them from where there is one. Each trial is a run of the project
`tracking.experiment` and of the group of its sweep: its metrics over steps, its figures as a whole, its parameters and
tags as configuration, all under the names that they have in MLflow. Nothing is read back: the folders stay the truth.

An offline run cannot be gone on with. So a trial that has changed is written anew, under the same id, and not while a
sweep runs, but when a command ends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow.metric_keys import RANK_MEMORY
from results.mlflow.run_content import RunContent
from train_core.trial.atomic import stored_values, write_atomically

WRITTEN = "written.json"
"""What was written of each trial: the id of its run, and the digest of the content."""

MILLISECONDS = 1000
SETTINGS: dict[str, Any] = {
    "mode": "offline",  # whatever the shell says
    "silent": True,
    "console": "off",
    "symlink": False,
    "save_code": False,
    **dict.fromkeys(("disable_git", "x_disable_stats", "x_disable_meta", "x_disable_machine_info"), True),
    "x_save_requirements": False,
}
"""Nothing of this process is recorded: it writes of other ones, and trained nothing itself."""


def write_runs(contents: Iterable[RunContent], tracking: TrackingSpec, folder: Path, tracking_id: str) -> None:
    """Bring the offline runs up to date; a trial without steps gets none.

    Raises:
        UsageError: the package refuses a run.
    """
    notes, writes = stored_values(folder / WRITTEN), False
    for content in contents:
        trial, _, _ = content.key.partition("/")
        before = notes.get(trial, {})
        if not content.steps.lines or before.get("digest") == content.digest:
            continue
        run_id = hashlib.sha256(f"{tracking_id} {content.key} {content.attempt}".encode()).hexdigest()[:16]
        for old in {str(before.get("id")), run_id}:
            for path in folder.glob(f"offline-run-*-{old}"):
                shutil.rmtree(path)
        writes = True
        _write_run(content, tracking.experiment, folder, run_id)
        notes[trial] = {"id": run_id, "digest": content.digest}
        write_atomically(folder / WRITTEN, json.dumps(notes))
    if writes:
        import wandb

        wandb.teardown()  # ends the process that writes for it


def _write_run(content: RunContent, project: str, folder: Path, run_id: str) -> None:
    import wandb

    tags = {name: text for name, text in content.tags.items() if not name.startswith("mlflow.")}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with wandb.init(
            project=project,
            id=run_id,
            name=content.name,
            group=folder.parent.name,
            job_type=content.tags.get("kind", "trial"),
            dir=folder.parent,
            config={name: _value(text) for name, text in content.params.items()} | {"tags": tags},
            settings=wandb.Settings(**SETTINGS),
        ) as run:
            for step, values in _steps(content).items():
                run.log(values, step=step)
            run.summary.update({metric.key: metric.value for metric in content.metrics if metric.key != RANK_MEMORY})
            run.finish(exit_code=0 if content.status in ("FINISHED", "RUNNING", "SCHEDULED") else 1)
    except wandb.Error as error:
        logging.getLogger(__name__).debug("writing a run of wandb failed", exc_info=True)
        problem = f"tracking.also = ['wandb']: a run of {folder} cannot be written ({str(error).splitlines()[0][:200]})"
        raise UsageError(
            problem, "The sweep's folders keep everything: make its report again, or leave it out."
        ) from None


def _steps(content: RunContent) -> dict[int, dict[str, float]]:
    """The metrics of each step with the moment of the step, by which wandb can draw them too."""
    steps: dict[int, dict[str, float]] = {}
    for metric in content.steps.metrics:
        at = steps.setdefault(metric.step, {"_timestamp": metric.timestamp_ms / MILLISECONDS})
        at[metric.key] = metric.value
    return steps


def _value(text: str) -> float | str:
    """A number where it is one, over which wandb can draw."""
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
