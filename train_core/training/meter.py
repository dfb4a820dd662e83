"""What is measured of a training: step times, and the `Performance` that follows; held-out losses and traces beside."""

from __future__ import annotations

import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from conf.errors import TrainingError
from conf.plan.experiment import Experiment
from conf.types.schema import ProfilePlan
from costs import (
    DOCUMENT_FLOPS_FORMULA,
    FLOPS_FORMULA,
    DoneShares,
    block_rates,
    executed_flops,
    model_flops,
    num_parameters,
)
from costs.axes import REPLICAS, Layout
from costs.flops_rates import BlockRates, flops_fields
from train_core.data.batches import Batches
from train_core.data.tokens import HELD_OUT, TRAINING
from train_core.expert_load import ExpertLoads, StepLoad
from train_core.model.initialize import DTYPES
from train_core.optimizers.optimizer import StepResult
from train_core.parallel.collectives import Axis, all_reduce
from train_core.parallel.groups import gather, gather_objects, total
from train_core.parallel.schedules import forward_only
from train_core.process.machine import machine_id
from train_core.process.stop import StopAsked, never
from train_core.process.world import World, result_of_first, usable_cores
from train_core.training.trainer import Trainer
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Breakdown, Performance, StepMetrics
from train_core.watch.energy_meter import EnergyMeter
from train_core.watch.sampler import SystemSampler
from train_core.watch.step_parts import LatestSteps, TermsHistory, breakdown_of, stage_timeline, stragglers, terms_of

MEASURED = "measured"
MATMUL_SECONDS = 0.5
MATMUL_SIZES = {"cpu": 1024, "cuda": 8192}
"""Large enough to reach the device's rate, and small enough that many products fit into the half second."""

MOST_READ_AGAIN = 100
"""So many steps at most have their documents looked up again, which takes up to 50 ms for each."""


def count_devices(world: World, axis: Axis) -> int:
    """The number of devices that the ranks use: GPUs, or on CPUs the cores, which several ranks may share."""
    if world.device.type != "cpu":
        return world.size
    cores_of: dict[str, set[int]] = defaultdict(set)
    ranks_of: dict[str, int] = defaultdict(int)
    for name, cores in gather_objects((machine_id(), usable_cores()), axis):
        cores_of[name] |= cores
        ranks_of[name] += 1
    return sum(min(ranks_of[name], len(cores_of[name])) for name in ranks_of)


def matmul_flops_per_second(world: World, axis: Axis, dtype: torch.dtype, seconds: float = MATMUL_SECONDS) -> float:
    """The rate of all ranks together when each multiplies square matrices for the same half second."""
    n = MATMUL_SIZES[world.device.type]
    a = torch.rand(n, n, device=world.device).to(dtype)  # constant data would draw less power and clock higher
    out = torch.mm(a, a)  # the first product also loads kernels
    synchronize(world.device)
    # All ranks begin together, because cores that share caches, memory and power are slower when all of them work.
    total([0.0], axis, world.device)
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        torch.mm(a, a, out=out)
        synchronize(world.device)  # else the loop would count products that are only queued
        done += 1
    return total([2 * n**3 * done / elapsed], axis, world.device)[0]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was asked to, as a CPU always has."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def peak_memory_bytes(device: torch.device) -> int:
    """The most device memory that was allocated; on a CPU the largest resident set of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


@contextmanager
def trace_step(trial: TrialFolder | None, rank: int, plan: ProfilePlan, step: int) -> Iterator[None]:
    """Record the block by torch's profiler if the plan asks for it, and leave a Chrome trace in the trial folder."""
    if trial is None or step not in plan.trace_steps or rank not in plan.trace_ranks:
        yield
        return
    from torch.profiler import profile  # here: the import takes a tenth of a second, and most ranks trace nothing

    with profile() as recorded:
        yield
    with trial.writing_trace(step, rank) as draft:
        recorded.export_chrome_trace(str(draft))


def attended_share(batches: Batches, step: int) -> float:
    """The scores between tokens of one document, of all pairs of tokens in this replica's sequences of a step.

    Of n equal documents in every sequence that is 1 / n.
    """
    if batches.documents is None:
        return 1.0
    first = (step - 1) * batches.global_batch_size + batches.first_sequence
    numbers = (batches.documents[TRAINING](first + i)[:-1] for i in range(batches.num_sequences))
    shares = (np.bincount(of_tokens - of_tokens[0]) / of_tokens.size for of_tokens in numbers)
    return sum(float(np.square(each).sum()) for each in shares) / batches.num_sequences


class DoneStep(NamedTuple):
    """What the measurement of a training takes from a step. Of a million steps nothing more is kept: metrics are 17
    times as large.

    Attributes:
        attended_share: of the whole global batch, as in `DoneShares`; None where another process ran the step.
        dropped_share: None where experts have no limit.
    """

    step: int
    num_steps: int
    loss: float
    step_seconds: float
    warmup: bool
    attended_share: float | None = None
    dropped_share: float | None = None

    @classmethod
    def of(cls, metrics: StepMetrics, attended_share: float | None = None) -> DoneStep:
        timing = metrics.step_seconds, metrics.warmup
        return cls(metrics.step, metrics.num_steps, metrics.loss, *timing, attended_share, metrics.dropped_share)


def history_of(trial: TrialFolder, done: int, num_steps: int, axis: Axis) -> list[DoneStep]:
    """What was measured before an interruption, after which `done` of `num_steps` steps are done.

    Raises:
        TrainingError: all steps are done, and the folder does not say how they went.
    """
    # One rank reads it for all, as it may be long.
    history = result_of_first(lambda: [DoneStep.of(metrics) for metrics in trial.rewind_metrics(done)], axis)
    if done >= num_steps and not history:
        raise TrainingError(
            f"the last checkpoint in {trial.checkpoints} is from step {done}, the final one, but"
            f" {trial.metrics.name} does not say how its steps went",
            "Train more steps (training.num_steps), or remove the checkpoints to train anew.",
        )
    return history


class HeldOutLosses(NamedTuple):
    """The loss of the part that is held out, or the mean of the sets' where there is none, and that of each set."""

    mean: float
    of_sets: dict[str, float]


def held_out_losses(trainer: Trainer) -> HeldOutLosses:
    """Means over `training.num_evaluation_batches` global batches, the same at every call. Every rank calls it."""
    losses = {name: _held_out_loss(trainer, name) for name in trainer.batches.evaluated}
    trainer.replicas.after_evaluation()  # else ZeRO-3 would keep weights for backward passes that do not come
    own = losses.pop(HELD_OUT, None)
    return HeldOutLosses(statistics.fmean(losses.values()) if own is None else own, losses)


def _held_out_loss(trainer: Trainer, name: str) -> float:
    experiment, mesh = trainer.experiment, trainer.mesh
    num_batches = experiment.training.num_evaluation_batches
    actions = forward_only(experiment, experiment.num_micro_batches)
    losses = torch.zeros((), device=trainer.pipeline.device)
    with torch.no_grad():
        for batch in range(num_batches):
            losses += trainer.pipeline.run(actions, partial(trainer.batches.held_out_micro_batch, name, batch))
    # Every tensor rank of the last stage knows the loss; one of them reports it.
    share = (losses if mesh.tensor.rank == 0 else losses * 0).double()
    num_summands = num_batches * experiment.num_micro_batches * mesh.replicas.size
    return float(all_reduce(share, mesh.world).wait()) / num_summands  # the only wait for the device


class Meter:
    """Times steps and turns them into metrics. Every rank has one; all get the same numbers."""

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        axis: Axis,
        stop_asked: StopAsked = never,
        history: Sequence[DoneStep] = (),
        done: int = 0,
        attended_share: Callable[[int], float] = lambda step: 1.0,
        loads: ExpertLoads | None = None,
    ) -> None:
        """`history` was measured before an interruption, after which the first steps are warm-up steps once more.

        Args:
            done: the last step that was done before, here or in the training that is resumed.
            attended_share: of this replica's sequences of a step, as in `DoneShares`.
            loads: those of the experts that are trained; None knows of none.
        """
        self.experiment, self.world, self.axis = experiment, world, axis
        self.attended_share, self.loads = attended_share, loads
        self.stop_asked, self.stop_signal = stop_asked, 0  # the ranks agree on the latter with every step's time
        self.num_devices = count_devices(world, axis)
        self.peak, self.peak_source = self._peak()
        self._forget_peak_memory()
        self.steps = list(history)
        # A new process warms up again: kernels are loaded, memory is allocated and links are joined anew.
        self.num_warmup_steps = done + experiment.training.num_warmup_steps
        self.layout, self.terms, self.recorded = Layout.of(experiment), TermsHistory(), LatestSteps()
        self.energy = EnergyMeter(world.device)
        self.energy.measure_idle(experiment.watch.idle_power_seconds)
        self.system = SystemSampler(world, axis, experiment.training.num_steps)

    def _peak(self) -> tuple[float, str]:
        """The peak in FLOP/s of one device, in a mixed job the mean over all, and where the number comes from."""
        sources = [block.cluster.device.peak_source for block in self.experiment.blocks]
        if MEASURED not in sources:
            return self.experiment.peak_flops_per_second, "; ".join(dict.fromkeys(sources))
        dtype = DTYPES[self.experiment.precision.dtype]
        return matmul_flops_per_second(self.world, self.axis, dtype) / self.num_devices, MEASURED

    def _forget_peak_memory(self) -> None:
        """Measure the memory of steps alone: building the model and measuring the peak FLOP/s took some too."""
        if self.world.device.type == "cuda":
            synchronize(self.world.device)
            torch.cuda.reset_peak_memory_stats(self.world.device)

    def time_step(self, step: int, run: Callable[[], StepResult]) -> StepMetrics:
        """Run one step. Its time is the slowest rank's; finding that out lies outside it."""
        # Rank 0 may have spent time on reporting the last step. This collective lets all ranks start together.
        total([0.0], self.axis, self.world.device)
        if self._is_timed(step):
            self.energy.begin()
        start = time.perf_counter()
        result = run()
        synchronize(self.world.device)
        elapsed = time.perf_counter() - start
        self.energy.follow()
        terms = terms_of(elapsed, self.world.clock.seconds_by_name(), self.layout.size(*REPLICAS) > 1)
        self.terms.add(terms, is_timed=self._is_timed(step))
        record = self.world.clock.end_step()
        # What ranks tell each other travels in one collective: the time, the straggler's share, the wish to stop, the
        # replica's documents, and what they use.
        own = self.terms.recent_own_seconds(), float(self.stop_asked()), self.attended_share(step)
        of_ranks = gather([elapsed, *own, *self.system.read(step, self.energy)], self.axis, self.world.device)
        seconds_of_ranks, own_seconds, signals, shares, *used = zip(*of_ranks, strict=True)
        # The slowest rank's time is the job's, for the next step begins when all have ended this one.
        seconds, self.stop_signal = max(seconds_of_ranks), int(max(signals))
        if self._is_timed(step) and self._speaks_for_its_stage:
            self.recorded.add(seconds, record)
        plan, batch, model = self.experiment.training, self.experiment.batch, self.experiment.model
        # All ranks have gathered the same numbers, so that they all come to the same metrics and the same decisions.
        share = statistics.fmean(shares)  # replicas have equally many ranks, and sequences
        load = self.loads.add_step(is_timed=step > self.num_warmup_steps) if self.loads is not None else StepLoad()
        done = DoneShares(share, 1 - (load.dropped_share or 0.0))
        needed = model_flops(model, batch.global_batch_size, done)
        metrics = StepMetrics(
            step=step,
            num_steps=plan.num_steps,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            learning_rate=result.learning_rate,
            step_seconds=seconds,
            tokens_per_second=batch.global_batch_size * model.seq_length / seconds,
            model_flops_per_second_per_device=needed / seconds / self.num_devices,
            warmup=step <= self.num_warmup_steps,
            stragglers=self._stragglers(own_seconds),
            time=time.time(),
            system=self.system.combine(list(zip(*used, strict=True)), seconds),
            **load._asdict(),
        )
        self.steps.append(DoneStep.of(metrics, share))
        return metrics

    def write_timeline(self, trial: TrialFolder) -> None:
        """Leave when the passes of a timed step ran: a rank of each stage does."""
        if (step := self.recorded.nearest_to(statistics.median(self._timed_seconds()))) is None:
            return
        seconds, record = step
        of = self.layout.coordinates(self.world.rank).pipeline, self.layout.size("pipeline")
        trial.write_timeline(stage_timeline(seconds, record, self.world.clock, self.world.rank, of))

    @property
    def _speaks_for_its_stage(self) -> bool:
        """True for the first tensor rank of the first replica: all ranks of a stage run the same passes."""
        return not any(self.layout.coordinates(self.world.rank)._replace(pipeline=0))

    def performance(self) -> Performance:
        """The measurement over the steps after warm-up. Every rank calls it, because memory is gathered."""
        experiment, batch = self.experiment, self.experiment.batch.global_batch_size
        timed = self._timed_seconds()
        seconds = statistics.median(timed)  # one disturbed step must not change the result
        done = DoneShares(self._attended_share(), 1 - self._dropped_share())
        needed, executed = model_flops(experiment.model, batch, done), executed_flops(experiment, done=done)
        breakdown = self._breakdown()
        memory = tuple(gather_objects(peak_memory_bytes(self.world.device), self.axis))
        energy, tokens = self.energy.of_all_ranks(self.axis), batch * experiment.model.seq_length
        return Performance(
            step_seconds=seconds,
            step_seconds_min=min(timed),
            step_seconds_max=max(timed),
            num_timed_steps=len(timed),
            num_devices=self.num_devices,
            tokens_per_second=tokens / seconds,
            **flops_fields(needed, executed, seconds * self.num_devices, self.peak),
            flops_formula=DOCUMENT_FLOPS_FORMULA if experiment.data.separate_documents else FLOPS_FORMULA,
            peak_source=self.peak_source,
            peak_memory_bytes=memory,
            losses=tuple(step.loss for step in self.steps),
            unrecorded_steps=self._unrecorded_steps(),
            final_loss=self.steps[-1].loss,
            num_parameters=num_parameters(experiment.model),
            breakdown=breakdown if experiment.profile.breakdown else None,
            stragglers=self._stragglers([terms.own_seconds for terms in breakdown.ranks]) if breakdown else (),
            blocks=self._blocks(seconds, memory, done),
            **energy.fields(seconds, tokens),
            **(self.loads.fields() if self.loads is not None else {}),
        )

    def _attended_share(self) -> float:
        """Over the timed steps of this process; where another one has run all of them, over the last of them."""
        timed = self._timed_steps()
        if known := [step.attended_share for step in timed if step.attended_share is not None]:
            return statistics.fmean(known)
        own = statistics.fmean(self.attended_share(step.step) for step in timed[-MOST_READ_AGAIN:])
        return statistics.fmean(share for (share,) in gather([own], self.axis, self.world.device))

    def _dropped_share(self) -> float:
        return statistics.fmean(step.dropped_share or 0.0 for step in self._timed_steps())

    def _blocks(self, step_seconds: float, memory_of_ranks: Sequence[int], done: DoneShares) -> tuple[BlockRates, ...]:
        world_size, of_stage = self.layout.world_size, self.layout.world_size // self.layout.size("pipeline")
        fullest = [max(memory_of_ranks[first : first + of_stage]) for first in range(0, world_size, of_stage)]
        measured = self.peak if self.peak_source == MEASURED else None
        return block_rates(self.experiment, step_seconds, fullest, self.num_devices / world_size, measured, done)

    def _is_timed(self, step: int) -> bool:
        """True if a step counts: neither a warm-up step nor one that was traced, which is slower."""
        return step > self.num_warmup_steps and step not in self.experiment.profile.trace_steps

    def _unrecorded_steps(self) -> tuple[int, ...]:
        recorded = {step.step for step in self.steps}
        return tuple(step for step in range(1, self.experiment.training.num_steps + 1) if step not in recorded)

    def _timed_seconds(self) -> list[float]:
        return [step.step_seconds for step in self._timed_steps()]

    def _timed_steps(self) -> list[DoneStep]:
        """The steps after warm-up; of a training that was extended, those since it was asked for more."""
        plan, traced = self.experiment.training, self.experiment.profile.trace_steps
        # Steps of a shorter training say so themselves. Its own summary told of them, maybe on another day's machine.
        own = [step for step in self.steps if step.num_steps == plan.num_steps] or self.steps
        timed = [step for step in own if not step.warmup and step.step not in traced]
        # Only warm-up steps may be left after an interruption near the end, or where few steps were added.
        return timed or own[plan.num_warmup_steps :] or own[1:] or own

    def _breakdown(self) -> Breakdown | None:
        """The parts of each rank's step; None where no step was left to run after an interruption."""
        medians = self.terms.medians()
        return breakdown_of(gather(medians, self.axis, self.world.device)) if medians else None

    def _stragglers(self, own_seconds: Sequence[float]) -> tuple[int, ...]:
        return stragglers(own_seconds, self.layout, self.experiment.watch.straggler_ratio)
