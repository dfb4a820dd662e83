"""`trisweep calibrate --propose SWEEP`: which five points of a sweep would say most of a cluster's constants."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from calibrate.refit_cluster import FinishedTrial, telling_runs
from cli.commands.calibrate.output import figure_text
from cli.output.console import console, shown_path
from conf.compose.load import Composition
from conf.errors import UsageError
from conf.folders import given_words
from conf.overrides import for_a_shell
from results.table import Table, breakable, text
from sweeps.points.plan import plan_sweep
from sweeps.trial import Trial
from train_core.costs import IMPLEMENTATIONS


def propose(composition: Composition) -> dict[str, Any]:
    """Print the points to measure first, the most telling one first, and return them.

    Raises:
        UsageError: no point of the sweep can run.
    """
    record = plan_sweep(composition, proxy=False, git_sha="")
    points = [(trial, run) for trial in record.trials if (run := _as_predicted(trial)) is not None]
    if not points:
        problem = f"No point of sweep {record.name} can run on its cluster"
        raise UsageError(problem, f"`trisweep plan {record.name}` says why.")
    cluster = points[0][1].setup.cluster
    chosen = [points[index] for index in telling_runs(cluster, [run for _, run in points])]
    words = shlex.join([record.name, *composition.overrides.without_choice("sweep").texts, *given_words(shown_path)])
    _print(record.name, words, chosen, len(points))
    return {
        "cluster": cluster.name,
        "proposed": [_as_document(trial, run) for trial, run in chosen],
    }


def _as_predicted(trial: Trial) -> FinishedTrial | None:
    """The trial as if its prediction had come true; None where it cannot run, or mixes devices."""
    experiment, predicted = trial.experiment, trial.estimate
    if experiment is None or predicted is None or trial.infeasible_reason is not None or experiment.mixed is not None:
        return None
    implementation = IMPLEMENTATIONS[experiment.trainer.costs_of]
    return FinishedTrial(experiment.label, experiment, predicted.step_seconds, None, True, implementation)


def _print(name: str, sweep: str, chosen: Sequence[tuple[Trial, FinishedTrial]], num_points: int) -> None:
    """Print what to measure first, and the commands for it.

    Args:
        sweep: the words by which a command names it, with its overrides.
    """
    rows = tuple((breakable(found.label), text(figure_text(found.step_seconds))) for _, found in chosen)
    columns = ("layout", "predicted s")
    console.print(Table(columns, rows, frozenset({"predicted s"}), title="Measure these first"))
    console.print(
        f"Of {num_points} points of sweep {name}, their steps would say most of the constants of"
        f" {chosen[0][1].setup.cluster.name}: each is"
        " the one whose step is least certain once those above it are known."
    )
    if (point := next((trial.point for trial, _ in chosen if trial.point), None)) is not None:
        values = " ".join(for_a_shell(key, value) for key, value in point.items())
        console.print("Values that a command names measure only those points, such as:")
        console.print(f"  trisweep sweep {sweep} {values}", soft_wrap=True)
    console.print(f"Then: trisweep calibrate --from-results {sweep}", soft_wrap=True)


def _as_document(trial: Trial, run: FinishedTrial) -> dict[str, Any]:
    return {"trial_id": trial.trial_id, "point": trial.point, "predicted_step_seconds": run.step_seconds}
