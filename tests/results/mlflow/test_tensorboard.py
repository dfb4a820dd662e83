"""Event files beside MLflow, read with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conf.types.sites import TrackingSpec
from results.mlflow.run_content import LoggedMetric, RunContent, StepHistory
from results.mlflow.tensorboard import write_events

EVENTS = TrackingSpec(kind="sqlite", uri=None, experiment="trisweep", also=("tensorboard",))


def content(steps: int, *, attempt: str = "first", end_ms: int | None = None) -> RunContent:
    history = tuple(LoggedMetric("loss", 10.0 - step, 1000 * step, step) for step in range(1, steps + 1))
    return RunContent(
        key="trial-7/abc",
        name="tp2 / pp2",
        status="RUNNING" if end_ms is None else "FINISHED",
        start_ms=1000,
        end_ms=end_ms,
        attempt=attempt,
        tags={},
        params={"tp": "2"},
        metrics=(
            LoggedMetric("pred/step_s", 0.5, 500, 0),
            *(LoggedMetric("meas/rank_mem_GiB", 1.0 + rank, 4000, rank) for rank in range(3)),
        ),
        steps=StepHistory(repr(history).encode(), lambda: history),
    )


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars("loss")]


def test_a_trial_that_goes_on_gets_only_its_new_steps(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard" / "trial-7"
    write_events([content(2)], EVENTS, tmp_path / "tensorboard", "")
    write_events([content(2)], EVENTS, tmp_path / "tensorboard", "")
    assert len(list(folder.glob("events*"))) == 1, "nothing was new"
    write_events([content(3, end_ms=4000)], EVENTS, tmp_path / "tensorboard", "")
    assert losses(folder) == [(1, 9.0), (2, 8.0), (3, 7.0)]
    assert [event.step for event in read(folder).Scalars("pred/step_s")] == [3], "the whole trial's, at its end"
    memory = [(event.step, event.value) for event in read(folder).Scalars("meas/rank_mem_GiB")]
    assert memory == [(0, 1.0), (1, 2.0), (2, 3.0)], "the rank is in the place of the step, also of rank 0"
    assert "_hparams_/session_start_info" in read(folder).summary_metadata


def test_a_trial_that_started_over_keeps_no_step_of_before(tmp_path: Path) -> None:
    write_events([content(5)], EVENTS, tmp_path / "tensorboard", "")
    write_events([content(1, attempt="second")], EVENTS, tmp_path / "tensorboard", "")
    assert losses(tmp_path / "tensorboard" / "trial-7") == [(1, 9.0)]


def test_a_damaged_note_of_what_was_written_has_the_files_written_anew(tmp_path: Path) -> None:
    write_events([content(2)], EVENTS, tmp_path / "tensorboard", "")
    folder = tmp_path / "tensorboard" / "trial-7"
    (folder / "written.json").write_text("{")
    write_events([content(2)], EVENTS, tmp_path / "tensorboard", "")
    assert losses(folder) == [(1, 9.0), (2, 8.0)]
