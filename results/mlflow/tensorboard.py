"""Event files for TensorBoard beside MLflow, for who sets `tracking.also=[tensorboard]`.

A trial is a folder below `tensorboard/` in its sweep's, so that `tensorboard --logdir runs/SWEEP/tensorboard` shows all
trials of the sweep: the metrics of its steps, those of the trial as a whole at its last step, and its parameters in the
page HPARAMS. They are what MLflow holds, under the same names. Nothing is read back: the folders stay the truth.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from conf.types.sites import TrackingSpec
from results.mlflow.metric_keys import RANK_MEMORY
from results.mlflow.run_content import RunContent
from train_core.trial.atomic import stored_values, write_atomically

WRITTEN = "written.json"
"""What a trial's event files hold: the attempt, its last step, and the digest of the content."""

MILLISECONDS = 1000


def write_events(contents: Iterable[RunContent], tracking: TrackingSpec, folder: Path, tracking_id: str) -> None:
    """Bring the event files of all runs up to date; a run without steps gets none."""
    for content in contents:
        if content.steps.lines:
            trial, _, _ = content.key.partition("/")
            _write_run(content, folder / trial)


def _write_run(content: RunContent, folder: Path) -> None:
    """Add a file with what is new; of a trial that started over, or whose note is damaged, all is written anew."""
    before = stored_values(folder / WRITTEN)
    if before.get("digest") == content.digest:
        return
    if before.get("attempt") not in ("", content.attempt) and folder.exists():
        shutil.rmtree(folder)
        before = {}
    folder.mkdir(parents=True, exist_ok=True)
    _write_file(content, int(before.get("last_step", 0)), folder)
    state = {"attempt": content.attempt, "last_step": content.last_step, "digest": content.digest}
    write_atomically(folder / WRITTEN, json.dumps(state))


def _write_file(content: RunContent, last_step: int, folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    try:
        began = content.start_ms / MILLISECONDS
        parameters = hparams_pb(content.params, trial_id=content.key, start_time_secs=began)
        writer.add_event(Event(wall_time=began, summary=parameters))
        metrics = [metric for metric in content.steps.metrics if metric.step > last_step]
        if content.end_ms is not None:  # what is known of the trial as a whole stands where its curves end
            for metric in content.metrics:
                of_ranks = metric.key == RANK_MEMORY  # which has the rank in the place of the step
                metrics.append(metric if of_ranks else metric._replace(step=content.last_step))
        for metric in metrics:
            value = Summary.Value(tag=metric.key, simple_value=metric.value)
            at = metric.timestamp_ms / MILLISECONDS
            writer.add_event(Event(wall_time=at, step=metric.step, summary=Summary(value=[value])))
    finally:
        writer.close()
