"""What this package's own trainer took on a GPU, beside what was predicted before and what is predicted today.

python -m benchmarks.own_runs    writes the table into docs/gpu-runs.md, between its pair of comments

`own_runs.csv` has one row for each training: the overrides that make it, its steps, its memory, the power that the
device drew, and what commit 2f93ad17 predicted, whose authors had never run it on a GPU. Rows are only ever added;
`changed_since` says in what the trainer has become another one, so that today's prediction is of something else.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks.marked_tables import with_tables
from benchmarks.target import Target, at_most, within
from conf.compose.load import load
from conf.plan.experiment import Experiment
from conf.units import GIBIBYTE
from costs import Estimate
from costs.estimate import estimates
from costs.trainers import TRISWEEP
from results.render.units import percent, significant
from sweeps.confidence import interval_around
from train_core.trial.atomic import write_atomically

ROWS = Path(__file__).with_suffix(".csv")
PAGE = Path(__file__).parents[1] / "docs" / "gpu-runs.md"
ONE_DEVICE = ("cluster=dgx-h200", "precision=bf16", "data=synthetic", "cluster.num_nodes=1")
NARROW = "fp8"


class OwnRun(NamedTuple):
    """A training on one GPU.

    Attributes:
        name: for people.
        step_seconds: the mean of its timed steps, of which there were three to six.
        memory_bytes: the most that torch's allocator held.
        forward_step_seconds: as predicted before anything had run on a GPU.
        experiment: the training.
        predicted: as predicted today.
        changed_since: why that is not of the training which was measured; empty where it is.
    """

    name: str
    step_seconds: float
    memory_bytes: int
    forward_step_seconds: float
    experiment: Experiment
    predicted: Estimate
    changed_since: str

    @property
    def is_narrow(self) -> bool:
        return NARROW in self.name

    @property
    def forward_error(self) -> float:
        return self.forward_step_seconds / self.step_seconds - 1

    @property
    def was_expected(self) -> bool:
        """True if the step lies in the 80 % interval around what was predicted before."""
        interval = interval_around(self.forward_step_seconds, self.experiment, TRISWEEP.name)
        return interval.low_seconds <= self.step_seconds <= interval.high_seconds

    @property
    def error(self) -> float | None:
        return None if self.changed_since else self.predicted.step_seconds / self.step_seconds - 1

    @property
    def memory_error(self) -> float:
        return self.predicted.allocated_bytes / self.memory_bytes - 1


def own_runs() -> list[OwnRun]:
    """Every run, priced by the cost model of today."""
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    experiments = [load([*ONE_DEVICE, *row["overrides"].split()]).experiment() for row in rows]
    priced = estimates([(experiment, TRISWEEP) for experiment in experiments])
    return [
        OwnRun(
            name=row["name"],
            step_seconds=float(row["step_seconds"]),
            memory_bytes=int(row["memory_bytes"]),
            forward_step_seconds=float(row["forward_step_seconds"]),
            experiment=experiment,
            predicted=predicted,
            changed_since=row["changed_since"],
        )
        for row, experiment, predicted in zip(rows, experiments, priced, strict=True)
    ]


def main() -> list[Target]:
    write_atomically(PAGE, with_table(PAGE.read_text()))
    runs = own_runs()
    wide, narrow = ([run for run in runs if run.is_narrow is is_narrow] for is_narrow in (False, True))
    device, held = "own trainer on an H200", 100 * mean(run.was_expected for run in runs)
    errors = {
        f"{len(wide)} runs: step as predicted before any had run, mean error": [run.forward_error for run in wide],
        f"{len(narrow)} in fp8: the same": [run.forward_error for run in narrow],
        "all: step as predicted since, mean error": [run.error for run in runs if run.error is not None],
    }
    before, in_fp8, since = (at_most(f"{device}, {what}", 8, _mean(of), " %") for what, of in errors.items())
    return [
        at_most(f"{device}, {len(runs)} runs: memory, mean error", 1, _mean(run.memory_error for run in runs), " %"),
        before,
        in_fp8,
        within(f"{device}, all: 80 % intervals of before that hold the step", 81.5, 6.5, held, " %"),
        since,
    ]


def with_table(text: str) -> str:
    """The page with its table replaced by what holds today."""
    return with_tables(text, {"runs": _lines, "errors": _error_lines})


def _error_lines() -> Iterator[str]:
    runs = own_runs()
    wide = [run for run in runs if not run.is_narrow]
    before, today = _mean(run.forward_error for run in wide), _mean(run.error for run in wide if run.error is not None)
    were = f"- **Steps in bf16 and fp32** were off by {before:.1f} % in the mean before"
    yield f"{were}, and are by {today:.1f} % as predicted today."
    memory = [run.memory_error for run in runs]
    yield f"- **Memory** is off by {_mean(memory):.1f} % in the mean, and {100 * max(map(abs, memory)):.1f} % at worst."
    seconds = [significant(run.predicted.step_seconds) for run in runs if run.name.endswith("compiled")]
    yield "- **Compiled layers** are predicted to take {} s in bf16, and {} s in fp8, which no GPU has run so.".format(
        *seconds
    )


def _lines() -> Iterator[str]:
    yield "| training | step s, measured | before | today | MFU %, measured | GiB, measured | predicted |"
    yield "|---|---|---|---|---|---|---|"
    for run in own_runs():
        today = "-" if run.error is None else _signed(run.error)
        measured = f"{significant(run.step_seconds)} | {_signed(run.forward_error)} | {today}"
        utilization = run.predicted.model_flops_utilization * run.predicted.step_seconds / run.step_seconds
        memory = f"{run.memory_bytes / GIBIBYTE:.1f} | {run.predicted.allocated_bytes / GIBIBYTE:.1f}"
        yield f"| {run.name} | {measured} | {percent(utilization)} | {memory} |"


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def _mean(errors: Iterable[float]) -> float:
    """In percent, of their sizes."""
    return 100 * mean(map(abs, errors))


if __name__ == "__main__":
    main()
