"""The outcome of a trial, and its measurement. No torch here: submitter and reports read these types too."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from conf.types.schema import Count, Frozen, NonNegative, Positive
from costs.flops_rates import BlockRates


class Outcome(StrEnum):
    """The state of a trial. All but PENDING and RUNNING are final.

    PREEMPTED: Slurm ended its job in favour of another, and did not run it again.
    PRUNED: the sweep ended it early, because its first steps were clearly slower or worse than the best.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMED_OUT = "TIMED_OUT"
    NODE_FAILED = "NODE_FAILED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    PRUNED = "PRUNED"
    INFEASIBLE = "INFEASIBLE"

    @property
    def is_final(self) -> bool:
        return self not in LIVE


LIVE = (Outcome.PENDING, Outcome.RUNNING)
"""The outcomes of trials that have not ended."""


class Fault(StrEnum):
    """The cause of a trial's early end, as far as another attempt depends on it; several may share one outcome.

    LOST: Slurm no longer knows the job, which left no word.
    HARDWARE: a device, its driver or the network.
    START: the job ended before the program in it had begun.
    PREFLIGHT: the check of its nodes before the training (`slurm.preflight`) found one that is not fit.
    DISK: there was no room on a disk, inodes and quotas included.
    HANG: the ranks waited in vain for longer than `watch.hang_seconds`.
    KILLED: a signal from outside, and nobody says whose.
    CRASH: an error in this package, or in the libraries that it calls.
    INPUT: an error of the user's: the configuration, the data, or a program of their own.
    UNREAD: a program of the user's ended well, and its log does not tell what is to be measured.
    UNTIMED: a program of the user's ended well, and its log tells of steps, and of none how long it took.
    """

    MEMORY = "MEMORY"
    TIME = "TIME"
    NODE = "NODE"
    PREEMPTED = "PREEMPTED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"
    HARDWARE = "HARDWARE"
    START = "START"
    PREFLIGHT = "PREFLIGHT"
    DISK = "DISK"
    HANG = "HANG"
    KILLED = "KILLED"
    CRASH = "CRASH"
    INPUT = "INPUT"
    UNREAD = "UNREAD"
    UNTIMED = "UNTIMED"


FAULT_OF_OUTCOME = {
    Outcome.OUT_OF_MEMORY: Fault.MEMORY,
    Outcome.TIMED_OUT: Fault.TIME,
    Outcome.NODE_FAILED: Fault.NODE,
    Outcome.PREEMPTED: Fault.PREEMPTED,
    Outcome.CANCELLED: Fault.CANCELLED,
    Outcome.FAILED: Fault.CRASH,
}
"""The fault where nobody has said more than the outcome."""


NOT_KNOWN = "unknown"
LOSS = "loss"
"""The name under which other programs print the loss of a step."""
"""A fact about the software of a program that is not ours."""


class SystemUse(Frozen):
    """The use of devices and processes by a training at one step. Nothing of other jobs is in it, unless it says so.

    Attributes:
        device_busy_percent: of a moment, up to a second long, after the step: how much of it the driver saw a kernel
            run, the mean over all GPUs. None on a CPU, or where a GPU does not tell.
        device_memory_bytes: in use on the fullest GPU, by whatever uses it. None on a CPU.
        device_watts: of all devices together, the mean since the last sample, by the counters of energy. Those of a
            CPU are the machine's, with whatever else runs on it. None where a device has none, and during warm-up.
        cpu_cores: how many cores the ranks kept busy, all together, the mean since the last sample.
        resident_bytes: the host's memory that the fullest rank holds.
    """

    device_busy_percent: NonNegative | None = None
    device_memory_bytes: Annotated[int, Field(ge=0)] | None = None
    device_watts: NonNegative | None = None
    cpu_cores: NonNegative
    resident_bytes: Annotated[int, Field(ge=0)] | None = None


class StepMetrics(Frozen):
    """One line of `metrics.jsonl`, appended by rank 0 after each optimizer step.

    Attributes:
        step: counts from 1.
        step_seconds: the time of the slowest rank.
        warmup: the step is left out of the measurement.
        stragglers: ranks whose own work has lately taken much longer than that of the other ranks.
        time: seconds since the epoch.
        held_out_loss: the loss on held-out sequences after this step; None where it was not evaluated.
        busiest_expert_load: tokens of the busiest expert of any layer over the mean of its layer; None without experts.
        dropped_share: of all choices of experts in the step, those that found no room; None without a capacity.
        system: what was used meanwhile, every few seconds and at the last step; None at the steps between.
        figures: what another program printed under names of its own, where all of them are read; of this package's own
            trainer `eval/NAME/loss` of each set that is held out, and `data/NAME/tokens` and `data/NAME/epochs`, seen
            so far, of each that is mixed.
    """

    step: Count
    num_steps: Count
    loss: float
    gradient_norm: float
    learning_rate: float
    step_seconds: Positive
    tokens_per_second: Positive
    model_flops_per_second_per_device: Positive
    warmup: bool
    stragglers: Annotated[tuple[int, ...], Field(strict=False)] = ()
    time: float
    held_out_loss: float | None = None
    busiest_expert_load: Positive | None = None
    dropped_share: NonNegative | None = None
    system: SystemUse | None = None
    figures: dict[str, float] = Field(default_factory=dict)

    @property
    def held_out_in_words(self) -> str:
        """Such as `held out 5.4321 (books 5.1023, code 5.7619)`; empty where nothing was evaluated."""
        if self.held_out_loss is None:
            return ""
        found = ((SET_LOSS.fullmatch(name), loss) for name, loss in self.figures.items())
        sets = ", ".join(f"{match[1]} {loss:.4f}" for match, loss in found if match)
        return f"held out {self.held_out_loss:.4f}" + (f" ({sets})" if sets else "")


SET_LOSS, SET_EPOCHS = re.compile(r"eval/(.+)/loss"), re.compile(r"data/(.+)/epochs")
"""Figures of this package's own trainer: the loss of a set that is held out, and the epochs of one that is mixed."""


class StepTerms(Frozen):
    """The parts of one rank's step: medians over the timed steps. In brackets stand the terms of `costs.StepTime`.

    A wait is the part of a collective or transfer that no work hides, and includes waiting for ranks that come later.

    Attributes:
        compute_seconds: the rank's own work except for the optimizer, recomputation included (compute).
        tensor_seconds: waits for collectives inside layers, of tensor and context ranks (tensor).
        pipeline_wait_seconds: waits for other stages: activations, gradients, the tied embedding (pipeline + bubble).
        data_seconds: waits for sums of gradients and gathered weights (data). Null where not known, under ZeRO-3 on a
            GPU, whose streams wait for each other inside FSDP2; compute_seconds holds those waits then.
        synchronization_seconds: waits for all ranks in the sums of the loss and the gradient's norm (waiting, and what
            is left of the bubble).
        optimizer_seconds: the rank's own work in clipping and update (optimizer).
    """

    compute_seconds: NonNegative
    tensor_seconds: NonNegative
    pipeline_wait_seconds: NonNegative
    data_seconds: NonNegative | None
    synchronization_seconds: NonNegative
    optimizer_seconds: NonNegative

    @property
    def own_seconds(self) -> float:
        """The rank's own work, without waits."""
        return self.compute_seconds + self.optimizer_seconds


class Breakdown(Frozen):
    """The step of every rank, in rank order, and the rank with the most work of its own."""

    ranks: Annotated[tuple[StepTerms, ...], Field(strict=False, min_length=1)]
    slowest_rank: int

    @property
    def slowest(self) -> StepTerms:
        return self.ranks[self.slowest_rank]


class Performance(Frozen):
    """The measurements over the timed steps of one completed trial. Names are shared with `costs.Estimate`.

    Attributes:
        is_timed: False of a program that printed no times, where none was sought: its seconds of a step are by our
            clock, from its start on, over the number of steps, and nothing that follows from them is compared.
        step_seconds: median over the timed steps of the slowest rank's time; `..._min` and `..._max` are its spread.
        num_devices: physical devices in use: GPUs, or on a CPU the cores that the ranks shared.
        model_flops: floating-point operations that one step needs, all devices together.
        hardware_flops: the same plus recomputation.
        peak_flops_per_second: dense peak of one device; in a mixed job the mean over all devices.
        peak_source: data sheet, or `measured` in the same run.
        model_flops_utilization: model_flops_per_second_per_device over the peak (MFU); `hardware_...` is HFU.
        peak_memory_bytes: per rank, in rank order: device memory allocated, on a CPU the resident set.
        losses: the loss of every step, warm-up included, but for those that left no record.
        unrecorded_steps: steps of an earlier run whose metrics it could not keep, as when the machine lost its power,
            or of the training that was resumed.
        breakdown: where each rank's step goes; null unless profile.breakdown asks for it.
        stragglers: ranks whose own work takes more than watch.straggler_ratio times their stage's median.
        tflops_as_printed: of one device, as another program than this trainer counts and prints them: their median over
            the timed steps. By its own formula, so that it is not compared with any other figure here.
        blocks: each type of devices of a mixed job, in the order of the pipeline; empty where all are the same.
        expert_loads: the tokens of every expert in the timed steps over the mean of its layer, for each layer with
            experts in order; empty without experts.
        dropped_share: of all choices of experts in the timed steps, those for which there was no room; null without a
            capacity, and where the process that ended the training has timed no step.
        energy_joules_per_step: of all devices, by counters that were read beside the timed steps: their mean power
            times step_seconds. Idle power is in it. Null where a device had no counter; never an estimate.
        energy_joules_per_token: the same over the tokens of a step.
        energy_watts: the mean power of all devices together, from the first timed step's start to the last one's end.
        energy_seconds: how long that was; counters of GPUs move about ten times a second.
        energy_source: which counters, and of how many parts.
        energy_idle_watts: of the same devices, as they held the model and did nothing; null unless
            watch.idle_power_seconds asks for it.
        energy_host_joules_per_step: of the sockets and the memory of the hosts beside GPUs, all jobs on them included.
    """

    step_seconds: Positive
    step_seconds_min: Positive
    step_seconds_max: Positive
    num_timed_steps: Count
    num_devices: Count
    tokens_per_second: Positive
    model_flops: Positive
    hardware_flops: Positive
    flops_formula: str
    model_flops_per_second_per_device: Positive
    hardware_flops_per_second_per_device: Positive
    peak_flops_per_second: Positive
    peak_source: str
    model_flops_utilization: NonNegative
    hardware_flops_utilization: NonNegative
    peak_memory_bytes: Annotated[tuple[int, ...], Field(strict=False)]
    losses: Annotated[tuple[float, ...], Field(strict=False)]
    unrecorded_steps: Annotated[tuple[int, ...], Field(strict=False)] = ()
    final_loss: float
    num_parameters: Count
    breakdown: Breakdown | None = None
    stragglers: Annotated[tuple[int, ...], Field(strict=False)] = ()
    tflops_as_printed: float | None = None
    blocks: Annotated[tuple[BlockRates, ...], Field(strict=False)] = ()
    expert_loads: Annotated[tuple[tuple[float, ...], ...], Field(strict=False)] = ()
    dropped_share: NonNegative | None = None
    energy_joules_per_step: Positive | None = None
    energy_joules_per_token: Positive | None = None
    energy_watts: Positive | None = None
    energy_seconds: Positive | None = None
    energy_source: str | None = None
    energy_idle_watts: NonNegative | None = None
    energy_host_joules_per_step: Positive | None = None
    is_timed: bool = True

    @property
    def busiest_expert_load(self) -> float | None:
        """The tokens of the busiest expert of any layer over the mean of its layer; None without experts."""
        return max(map(max, self.expert_loads), default=None)

    @property
    def recorded_steps(self) -> list[int]:
        """The steps of `losses`."""
        num_steps, unrecorded = len(self.losses) + len(self.unrecorded_steps), set(self.unrecorded_steps)
        return [step for step in range(1, num_steps + 1) if step not in unrecorded]


class Environment(Frozen):
    """The place and the code of a measurement.

    Attributes:
        trainer_code: digest of the trainer's code, or of another program's scripts; empty where it has none here.
        git_sha: the commit of Trisweep itself.
    """

    hostname: str
    device: str
    backend: str
    torch_version: str
    python_version: str
    git_sha: str
    trainer_code: str = ""
    num_cores: Count


class Measurement(Frozen):
    """`measurement.json`: how one trial ended, and, when it completed, what it measured.

    Attributes:
        cause: one sentence for people; empty when the trial completed.
        failing_rank: the rank that is to blame; null where no single rank is, as when two replicas differ.
        traceback: where the failure was noticed, by that rank or by one that waited for it.
        fault: what ended it; None where it completed, or where nobody has said more than the outcome.
        nodes: those that may be to blame: of the failing rank where it is known, else all of the job's.
        over_capacity_bytes: how much more memory the failed request needed than was free; the whole step may need
            more. None where it is not known.
        metrics: figures that a program printed or left under names of its own, such as an evaluation's score.
    """

    fingerprint: str
    outcome: Annotated[Outcome, Field(strict=False)]
    cause: str
    failing_rank: int | None = None
    traceback: str | None = None
    performance: Performance | None = None
    environment: Environment | None = None
    started: float
    ended: float
    fault: Annotated[Fault, Field(strict=False)] | None = None
    nodes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    over_capacity_bytes: NonNegative | None = None
    metrics: dict[str, float] = Field(default_factory=dict)

    @property
    def mixture_in_words(self) -> str:
        """Such as `seen: code 30.0 % (0.41 epochs), web 70.0 % (1.2 epochs)`; empty where no sets were mixed."""
        epochs = {match[1]: value for name, value in self.metrics.items() if (match := SET_EPOCHS.fullmatch(name))}
        tokens = {name: self.metrics.get(f"data/{name}/tokens", 0.0) for name in epochs}
        shares = (f"{name} {tokens[name] / sum(tokens.values()):.1%} ({epochs[name]:.3g} epochs)" for name in epochs)
        return f"seen: {', '.join(shares)}" if sum(tokens.values()) else ""

    @property
    def why(self) -> Fault | None:
        """The fault that ended it, from the outcome alone where nobody has said more."""
        return self.fault or FAULT_OF_OUTCOME.get(self.outcome)


class RankFailure(Frozen):
    """`failures/rank-N.json`: left by a rank that caught its own exception or waited in vain, before it exits.

    Attributes:
        blamed: the rank whose fault it is: mostly the rank itself. None where no single rank is to blame.
        fault: see `Measurement`, as for `over_capacity_bytes`.
        node: on which the rank ran; empty where that is not known.
    """

    rank: int
    outcome: Annotated[Outcome, Field(strict=False)]
    cause: str
    traceback: str
    time: float
    blamed: int | None = None
    fault: Annotated[Fault, Field(strict=False)] | None = None
    node: str = ""
    over_capacity_bytes: NonNegative | None = None


DISK = "disk"
"""The line of a `Standing` whose rank waits for the file system, and for no rank."""


class Standing(Frozen):
    """`waits/rank-N.json`: where a rank stands while a job seems to hang.

    Attributes:
        operation: what it waits for, in words; None while it is at its own work.
        line: name of the axis on which it waits; empty for its own work.
        number: which one of the operations that it started on that axis; 0 for a transfer.
        ranks: those without which the operation does not end; for a transfer the other end.
        reached: how many operations it has started, by axis.
        seconds: for how long it has stood there.
        stack: where its training thread is, innermost call last, and after it other threads that are at work.
    """

    rank: int
    step: int
    micro_batch: int | None
    operation: str | None
    line: str
    number: int
    ranks: Annotated[tuple[int, ...], Field(strict=False)]
    reached: dict[str, int]
    seconds: float
    stack: str

    def waits_with(self, other: Standing) -> bool:
        """True if both wait in the same collective."""
        return self.number > 0 and (self.line, self.number, self.ranks) == (other.line, other.number, other.ranks)
