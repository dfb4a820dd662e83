"""A sweep whose jobs count their executions, carried on as a person or the controller would."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from benchmarks.chaos import job_on_node
from benchmarks.chaos.aftermath import Aftermath, aftermath
from benchmarks.chaos.cluster import Cluster, wait_for
from benchmarks.chaos.job_on_node import ORDERS, executions_of, made_up_training
from benchmarks.chaos.judge import Deed, Judgement, Wanted, judge, read_deeds
from conf.compose.load import Composition, compose
from conf.compose.tree import Tree, with_values
from conf.errors import TrisweepError
from conf.overrides import Overrides
from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from conf.types.sweep_spec import PointSet
from launcher.control.attempts import may_run_again
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.slurm.executor import SlurmJob
from launcher.slurm.reconcile import reconcile
from launcher.sweep import slurm_rules, submit
from results.report.report import write_report
from sweeps.folder.submission import read_submission
from sweeps.points.plan import make_trials
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from train_core.trial.measurement import Measurement, Outcome

cloudpickle.register_pickle_by_value(job_on_node)

NODES = ("cluster.devices_per_node=2", "cluster.num_nodes=4")
OVERRIDES = ["sweep=smoke", "training.num_steps=3", "slurm.time_limit_minutes=5", "slurm.array_parallelism=8"]
PERFORMANCE: dict[str, Any] = {
    **dict.fromkeys(("step_seconds", "step_seconds_min", "step_seconds_max", "tokens_per_second"), 0.1),
    **dict.fromkeys(("model_flops", "hardware_flops", "peak_flops_per_second"), 1.0),
    **dict.fromkeys(("model_flops_per_second_per_device", "hardware_flops_per_second_per_device"), 1.0),
    **dict.fromkeys(("model_flops_utilization", "hardware_flops_utilization"), 1.0),
    **{"num_timed_steps": 1, "num_devices": 1, "num_parameters": 1, "final_loss": 1.0, "losses": [1.0]},
    **{"flops_formula": "made up", "peak_source": "made up", "peak_memory_bytes": [1]},
}
MIXED_NODES = (
    *("slurm.constraint=a100", "+slurm.extra_sbatch.gres=gpu:a100:1"),
    "+slurm.components.h100-nodes={constraint: h100, extra_sbatch: {gres: 'gpu:h100:1'}}",
)
"""The nodes of the test cluster are of two kinds; the first component of a job asks for the second of them."""
TWO_STAGES = {"model.num_layers": 4, "parallel.world_size": 2, "parallel.pipeline_parallel_size": 2}
RANKS = ((1, 1), (2, 2), (4, 2), (6, 2), (8, 2))
"""Ranks and tensor-parallel size of each shape: with two devices each, jobs of one, one, two, three and four nodes."""

POLL_SECONDS, PATIENCE_SECONDS = 1.0, 240.0
REFUSALS = (TrisweepError, OSError)
"""The errors that the command line tells as one message: mistakes of the user's, and of the disk."""

Orders = Mapping[str, Mapping[str, Any]]


@contextmanager
def refusals_told() -> Iterator[None]:
    """Print what is refused with a reason, which is no fault."""
    try:
        yield
    except REFUSALS as refusal:
        print(f"refused: {refusal}", flush=True)


class ChaosWorkbench:
    """One repetition of a scenario.

    Attributes:
        sweep: half of its trials are jobs of one rank, the others of two.
        expected: the outcomes of each trial that is not to end COMPLETED.
        num_faults: how often harm was done.
        needed: the commands that carried the sweep on, for the page.
        has_numbers: whether the training is the made-up one, which gives the numbers that the judge knows.
        chance: what a scenario draws; the same seed draws the same.
    """

    def __init__(self, sweep: Sweep, cluster: Cluster, seed: str = "", overrides: Sequence[str] = ()) -> None:
        self.sweep, self.cluster = sweep, cluster
        self.chance = random.Random(seed)
        settings = compose(Overrides.parse([*OVERRIDES, *NODES, *overrides])).settings
        self.slurm: SlurmSpec = settings.slurm
        self.poll_seconds = settings.controller.poll_seconds
        self.names = [trial.trial_id for trial in sweep.record.trials]
        self.expected: dict[str, tuple[Outcome, ...]] = {}
        self.ends_well: tuple[Outcome, ...] = (Outcome.COMPLETED,)
        self.num_faults = 0
        self.job: SlurmJob = made_up_training
        self.needed: list[str] = []
        self.has_numbers = True
        self._verdict: Judgement | None = None
        self._num_forgotten = 0

    @classmethod
    def new(
        cls, folder: Path, cluster: Cluster, num_trials: int, seed: str = "", num_shapes: int = 2
    ) -> ChaosWorkbench:
        folder.mkdir(parents=True, exist_ok=True)
        points = [_point(index, num_shapes) for index in range(num_trials)]
        return cls(Sweep(SweepFolder(folder), _record(points, _composition().tree)), cluster, seed)

    @classmethod
    def of_mixed_jobs(cls, folder: Path, cluster: Cluster, num_trials: int, seed: str) -> ChaosWorkbench:
        """A sweep whose trials are heterogeneous jobs, first stage on an h100 node, last on an a100 node."""
        folder.mkdir(parents=True, exist_ok=True)
        tree = _composition().tree
        names = ("h100-nodes", "local")
        blocks = [{"cluster": tree["cluster"] | {"name": name}, "num_devices": 1} for name in names]
        points: list[dict[str, Value]] = [{"training.seed": index} for index in range(num_trials)]
        record = _record(points, with_values(tree, {**TWO_STAGES, "mixed": blocks}))
        return cls(Sweep(SweepFolder(folder), record), cluster, seed, MIXED_NODES)

    @classmethod
    def of(cls, folder: Path, cluster: Cluster) -> ChaosWorkbench:
        """The workbench of a sweep that was begun."""
        return cls(Sweep.stored_in(SweepFolder(folder)), cluster)

    def take(self, sweep: Sweep) -> None:
        """Judge this sweep from now on: its trials are to be COMPLETED, or PRUNED by a search that calls them slow."""
        self.ends_well, self.has_numbers = (Outcome.COMPLETED, Outcome.PRUNED), False
        runnable = tuple(trial for trial in sweep.record.trials if trial.selected)
        self.sweep = sweep._replace(record=sweep.record.model_copy(update={"trials": runnable}))
        self.names = [trial.trial_id for trial in runnable]

    def order(self, orders: Orders | None = None, *, seconds: float = 2.0, **default: Any) -> None:
        """Say how long the training of every trial takes, and of single ones how they end."""
        common = {"seconds": seconds, "performance": PERFORMANCE, **default}
        self.sweep.folder.write_record(self.sweep.record)
        (self.sweep.folder.path / ORDERS).write_text(json.dumps({"default": common, **(orders or {})}))

    def order_quick_jobs(self) -> None:
        """Write what `quick_job` reads, which imports nothing of this project."""
        trials = self.sweep.record.trials
        known = {trial.trial_id: trial.experiment.fingerprint for trial in trials if trial.experiment}
        result = {"outcome": "COMPLETED", "cause": "", "started": time.time(), "performance": PERFORMANCE}
        self.order({"fingerprints": known, "measurement": result})

    def start(self, **slurm: Any) -> None:
        """Submit everything, with these settings for Slurm from now on."""
        self.slurm = self.slurm.model_copy(update=slurm)
        submit(self.command, self.slurm, job=self.job)

    def begin(self, orders: Orders | None = None, *, seconds: float = 2.0, **default: Any) -> None:
        """Order, and submit everything with the settings for Slurm that hold."""
        self.order(orders, seconds=seconds, **default)
        self.start()

    def train(self, *, seconds: float) -> None:
        """The same, until all trials train."""
        self.begin(seconds=seconds)
        self.until_running()

    def retry(self, **default: Any) -> None:
        """Have what failed run again, for a second, and carry the sweep on."""
        self.order(seconds=1, **default)
        self.advance(retry_failed=True)
        self.finish()

    @contextmanager
    def without(self, node: str) -> Iterator[None]:
        """Harm the sweep by the loss of a node, which is back when the block ends."""
        self.num_faults += 1
        with self.cluster.without(node):
            yield

    @property
    def command(self) -> SweepCommand:
        """The command that asks for all of its points, whatever they cost."""
        return SweepCommand(self.sweep, slurm_rules(self.slurm))

    def advance(self, *, retry_failed: bool = False) -> list[TrialReading]:
        """Give the same command again; a refusal that it explains is no fault."""
        self.needed.append("sweep --retry-failed" if retry_failed else "sweep")
        with refusals_told():
            submit(replace(self.command, orders=SweepOrders(retry_failed=retry_failed)), self.slurm, job=self.job)
        return reconcile(self.sweep.read())

    def finish(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Carry the sweep on until nothing more is to come."""
        deadline = time.monotonic() + seconds
        while not self._is_over(self.advance()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def settle(self) -> list[TrialReading]:
        """Only look, until every trial has ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            readings = reconcile(self.sweep.read())
            if all(each.outcome and each.outcome.is_final for each in readings) or time.monotonic() > deadline:
                return readings
            time.sleep(POLL_SECONDS)

    def _is_over(self, readings: list[TrialReading]) -> bool:
        may_run = partial(may_run_again, max_resubmits=self.slurm.max_resubmits, retry_cancelled=True)
        return all(each.outcome and each.outcome.is_final and not may_run(each) for each in readings)

    def executions(self, event: str = "start") -> list[Deed]:
        return read_deeds(executions_of(self.sweep.folder.path), event)

    def until_running(self, *names: str) -> None:
        """Wait until the trials train."""
        wait_for(lambda: set(names or self.names) <= {deed.trial for deed in self.executions()}, 90.0)

    def until_complete(self, *names: str, seconds: float = 90.0) -> None:
        wait_for(lambda: set(names) <= {deed.trial for deed in self.executions("complete")}, seconds)

    def processes(self, name: str) -> list[int]:
        """The ranks of a trial, in rank order."""
        latest = {deed.rank: int(deed.process) for deed in self.executions() if deed.trial == name}
        return [latest[rank] for rank in sorted(latest)]

    def job_of(self, name: str) -> str:
        submission = read_submission(self.sweep.folder.trial(name))
        assert submission is not None
        assert submission.job_id is not None
        return submission.job_id

    def harm(self, action: Callable[..., object], *arguments: Any, **further: Any) -> None:
        self.num_faults += 1
        action(*arguments, **further)

    def measurement_of(self, name: str) -> Measurement:
        told = self.sweep.folder.trial(name).read_measurement()
        assert told is not None, f"{name} has no measurement"
        return told

    def forget_completions(self) -> None:
        """Expect that what ran to completion until now runs again."""
        self._num_forgotten = len(self.executions("complete"))

    def take_stock(self) -> None:
        """Judge now, because the folder is about to go."""
        readings = reconcile(self.sweep.read())  # the last look, which writes down what has ended
        write_report(self.sweep, readings)
        wanted = Wanted(self.expected, self.ends_well, self._num_forgotten, has_numbers=self.has_numbers)
        folder = self.sweep.folder
        self._verdict = judge(folder.path, executions_of(folder.path), folder.path / "report.csv", wanted)

    def aftermath(self, scenario: str, seconds: float) -> Aftermath:
        if self._verdict is None:
            self.take_stock()
        assert self._verdict is not None
        return aftermath(scenario, seconds, self._verdict, len(self.names), self.num_faults, self.needed)


def _composition() -> Composition:
    return compose(Overrides.parse([*OVERRIDES, *NODES]))


def _record(points: Sequence[dict[str, Value]], tree: Tree) -> SweepRecord:
    composition = _composition()
    assert composition.settings.sweep is not None
    point_set = PointSet(axes={}, points=tuple(points), baseline=dict(points[0]))
    trials = make_trials(tree, point_set, {})
    return SweepRecord(
        name="chaos",
        mode="cluster",
        spec=composition.settings.sweep,
        tracking=composition.settings.tracking,
        git_sha="chaos",
        created=time.time(),
        plan=(),
        trials=tuple(trial.model_copy(update={"selected": True}) for trial in trials),
    )


def _point(index: int, num_shapes: int) -> dict[str, Value]:
    ranks, tensor = RANKS[index % num_shapes]
    return {
        "training.seed": index,
        "parallel.world_size": ranks,
        "parallel.tensor_parallel_size": tensor,
        "parallel.pipeline_parallel_size": 1,
        "batch.global_batch_size": 24,
    }
