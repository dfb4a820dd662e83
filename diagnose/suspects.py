"""What makes a run slow, each with its evidence in the file and its price.

No evidence, no suspicion. A suspect of the configuration is priced by the cost model: the step of this run, less
that of the same run without it. What happens while the run goes on is priced by the log itself, or has no price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from conf.nearest import padded_vocabulary
from conf.types.recompute import MODES
from conf.units import GIBIBYTE
from costs import Estimate
from diagnose.evidence import FileEvidence, column_says
from diagnose.measured import MeasuredSteps
from diagnose.memory_risk import MemoryRisk
from diagnose.understood import Understood, price_of, usual_facts
from sweeps.memory_odds import LIKELY
from sweeps.table.configuration import Configuration

LEAST_SHARE = 0.03
"""A smaller part of the step is not worth a word."""
LEAST_BUBBLE = 0.1
LEAST_UNEVEN = 0.03
WHOLE_GRAPH = dict.fromkeys(("launch_seconds", "collective_call_seconds", "micro_batch_seconds"), 0.0)


@dataclass(frozen=True)
class RowChange:
    """Other cells of a run's row, and other facts of its trainer."""

    columns: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suspect:
    """A cause of a slow step.

    Attributes:
        name: for programs.
        title: what the run does.
        seconds: of one step; None without a price.
        is_measured: the log itself says the price; else the cost model does.
        remedy: what to do, in the trainer's words where it has some.
        change: how the run would be without it.
        is_inside_step: what the log prices is a part of its steady steps.
    """

    name: str
    title: str
    evidence: tuple[FileEvidence, ...]
    seconds: float | None
    remedy: str
    change: RowChange | None = None
    is_measured: bool = False
    is_inside_step: bool = False


@dataclass(frozen=True)
class Case:
    """A run with a price, and all that rules ask of it."""

    understood: Understood
    measured: MeasuredSteps | None
    configuration: Configuration
    predicted: Estimate
    risk: MemoryRisk

    @classmethod
    def of(cls, understood: Understood, measured: MeasuredSteps | None) -> Case | None:
        """None where the run has no price."""
        if understood.configuration is None or understood.predicted is None:
            return None
        risk = MemoryRisk(understood, measured)
        return cls(understood, measured, understood.configuration, understood.predicted, risk)

    def says(self, column: str, *settings: str) -> FileEvidence | None:
        return column_says(self.understood.run, column, *settings)

    @property
    def free_memory(self) -> FileEvidence:
        """A sentence about the memory that the run leaves free, measured if the log says it."""
        capacity, seen = self.predicted.memory_capacity_bytes, self.measured and self.measured.reserved_bytes
        held = seen or self.predicted.peak_memory_bytes
        how = "are reserved, by the log" if seen else "are needed, by the prediction"
        return FileEvidence(f"{held / GIBIBYTE:.1f} of {capacity / GIBIBYTE:.1f} GiB {how}", None)


@dataclass(frozen=True)
class Rule:
    """What one rule found: a suspect without its price, and the changes of which the best one prices it."""

    name: str
    title: str
    evidence: tuple[FileEvidence | None, ...]
    changes: tuple[RowChange, ...]
    remedy: str
    needs_memory: bool = False


def suspects_of_configuration(case: Case, least_share: float) -> list[Suspect]:
    """Every choice of the run that costs at least this share of its step, the dearest first."""
    found = [rule for of in RULES for rule in of(case) if all(rule.evidence)]
    options = [
        (rule, change, case.understood.changed(change.columns, change.facts))
        for rule in found
        for change in rule.changes
    ]
    known = [(rule, change, configuration) for rule, change, configuration in options if configuration is not None]
    prices = price_of([configuration for _, _, configuration in known])
    suspects = [_uneven_stages(case)]
    for rule in found:
        fitting = [
            (price.step_seconds, change)
            for (own, change, configuration), price in zip(known, prices, strict=True)
            if own is rule and (not rule.needs_memory or case.risk.fits(configuration, price) >= LIKELY)
        ]
        if fitting:
            seconds, change = min(fitting, key=lambda each: each[0])
            evidence = tuple(each for each in rule.evidence if each)
            gain = case.predicted.step_seconds - seconds
            suspects.append(Suspect(rule.name, rule.title, evidence, gain, _remedy(rule, change), change))
    dear = [one for one in suspects if one and (one.seconds or 0) >= least_share * case.predicted.step_seconds]
    return sorted(dear, key=lambda one: -(one.seconds or 0))


def _remedy(rule: Rule, change: RowChange) -> str:
    if rule.remedy:
        return rule.remedy
    return ", ".join(f"{column} = {value}" for column, value in change.columns.items())


def _flags(case: Case) -> Iterator[Rule]:
    usual = usual_facts(case.configuration.implementation)
    for flag, evidence in case.understood.wrong_flags:
        facts = {name: getattr(usual, name) for name in flag.without}
        yield Rule(flag.name, flag.title, (evidence,), (RowChange(facts=facts),), flag.remedy)


def _attention(case: Case) -> Iterator[Rule]:
    if not case.configuration.implementation.flash_attention and case.configuration.setup.precision.dtype != "fp32":
        title = "attention stores its scores: it is not one fused kernel"
        evidence = case.says("flash_attention", "use_flash_attn")
        yield Rule(
            "unfused attention", title, (evidence,), (RowChange({"flash_attention": "yes"}),), "fused (flash) attention"
        )


def _sequence(case: Case) -> Iterator[Rule]:
    parallel = case.configuration.setup.parallel
    if parallel.tensor_parallel_size > 1 and not parallel.sequence_parallel:
        title = "every tensor rank computes norms and dropout of the whole sequence"
        evidence = case.says("sequence_parallel", "sequence_parallel")
        change = RowChange({"sequence_parallel": "yes"})
        yield Rule("no sequence parallelism", title, (evidence,), (change,), "sequence parallelism")


def _optimizer(case: Case) -> Iterator[Rule]:
    setup = case.configuration.setup
    if setup.parallel.zero_stage == 0 and setup.num_replicas > 1:
        title = f"each of {setup.num_replicas} replicas holds and updates the whole optimizer state"
        evidence = case.says("zero_stage", "use_distributed_optimizer")
        yield Rule(
            "no distributed optimizer",
            title,
            (evidence,),
            (RowChange({"zero_stage": "1"}),),
            "the distributed optimizer",
        )


def _recomputation(case: Case) -> Iterator[Rule]:
    mode = case.configuration.setup.parallel.recompute
    if "layer" not in MODES[mode].repeats:
        return
    changes = tuple(RowChange({"recompute": name}) for name in ("none", "selective"))
    title = "the backward pass computes whole layers again, beside free memory"
    yield Rule("full recomputation", title, (case.says("recompute"), case.free_memory), changes, "", needs_memory=True)


def _sharding(case: Case) -> Iterator[Rule]:
    setup = case.configuration.setup
    if setup.parallel.zero_stage == 3:
        title = "weights are gathered again for every pass of every micro-batch, beside free memory"
        changes = (RowChange({"zero_stage": "2"}), RowChange({"zero_stage": "1"}))
        evidence = (case.says("zero_stage"), case.free_memory)
        yield Rule("weights sharded without need", title, evidence, changes, "", needs_memory=True)


def _tensor_ranks(case: Case) -> Iterator[Rule]:
    setup = case.configuration.setup
    parallel, joined = setup.parallel, max(setup.cluster.devices_per_node, setup.cluster.joined_devices)
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    if tensor <= joined:
        return
    beyond = -(-tensor // joined)
    sizes = [(joined, pipeline), (joined, pipeline * beyond), (max(1, joined // 2), pipeline * beyond * 2)]
    changes = tuple(RowChange({"tp": str(t), "pp": str(p), "vpp": "1", "dp": ""}) for t, p in sizes)
    title = f"groups of {tensor} tensor ranks talk over the network, {setup.cluster.devices_per_node} devices a node"
    yield Rule("tensor ranks across nodes", title, (case.says("tp"),), changes, "", needs_memory=True)


def _bubble(case: Case) -> Iterator[Rule]:
    setup, predicted = case.configuration.setup, case.predicted
    parallel, share = setup.parallel, predicted.step_terms.bubble_seconds / predicted.step_seconds
    stages, micro_batches = parallel.pipeline_parallel_size, setup.num_micro_batches
    if stages == 1 or share < LEAST_BUBBLE:
        return
    chunks = [n for n in range(2, setup.model.num_layers // stages + 1) if setup.model.num_layers % (n * stages) == 0]
    changes = [RowChange({"vpp": str(n)}) for n in chunks]
    changes += [RowChange({"micro_batch": str(n)}) for n in _divisors(setup.batch.micro_batch_size)]
    changes += [RowChange({"pp": str(n), "vpp": "1", "dp": ""}) for n in _divisors(stages)]
    title = f"{micro_batches} micro-batches for {stages} stages leave {share:.0%} of the step to waiting (the bubble)"
    evidence = (case.says("pp"), case.says("global_batch") or case.says("local_batch"))
    yield Rule("few micro-batches", title, evidence, tuple(changes), "", needs_memory=True)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number) if number % size == 0]


def _micro_batch(case: Case) -> Iterator[Rule]:
    if case.configuration.setup.batch.micro_batch_size == 1:
        title = "one sequence at a time makes small products, beside room for more"
        changes = tuple(RowChange({"micro_batch": size}) for size in ("2", "4"))
        evidence = (case.says("micro_batch"), case.free_memory)
        yield Rule("micro-batch of one", title, evidence, changes, "", needs_memory=True)


def _uneven_stages(case: Case) -> Suspect | None:
    """The stages that wait for the fullest one, where the layers do not divide."""
    setup, layers = case.configuration.setup, case.configuration.setup.layers_per_stage
    mean = sum(layers) / len(layers)
    evidence = case.says("layers"), case.says("pp")
    if max(layers) / mean - 1 < LEAST_UNEVEN or not all(evidence):
        return None
    seconds = case.predicted.step_terms.compute_seconds * (1 - mean / max(layers))
    title = f"stages hold {min(layers)} to {max(layers)} layers, and all wait for the fullest"
    stages = [n for n in _divisors(2 * len(layers) + 1) if setup.model.num_layers % n == 0]
    remedy = f"stages that divide {setup.model.num_layers} layers, such as {max(stages, default=1)}"
    return Suspect("uneven stages", title, tuple(each for each in evidence if each), seconds, remedy)


def _offloading(case: Case) -> Iterator[Rule]:
    if case.configuration.setup.parallel.offload_optimizer:
        title = "the optimizer's state is kept and updated on the host, beside free memory"
        cells = dict.fromkeys(("offload_optimizer", "optimizer_offload"), "")
        evidence = (case.says("offload_optimizer") or case.says("optimizer_offload"), case.free_memory)
        yield Rule("offloading", title, evidence, (RowChange(cells),), "the optimizer on the device", needs_memory=True)


def _vocabulary(case: Case) -> Iterator[Rule]:
    setup = case.configuration.setup
    rows, padded = setup.model.vocab_size, padded_vocabulary(setup.model.vocab_size, 1)
    if rows != padded and setup.cluster.device.kind == "gpu":
        title = (
            f"rows of {rows:,} logits begin anywhere in memory, so that the head's products run at part of their rate"
        )
        change = RowChange({"vocab": str(padded)})
        yield Rule("vocabulary padding", title, (case.says("vocab"),), (change,), f"a vocabulary of {padded:,} rows")


def _precision(case: Case) -> Iterator[Rule]:
    setup = case.configuration.setup
    peaks = setup.cluster.device.peak_flops_per_second
    if setup.precision.dtype == "fp32" and setup.cluster.device.kind == "gpu" and "bf16" in peaks:
        title = "products are in fp32, without the units for 16 bits"
        yield Rule("fp32 products", title, (case.says("precision"),), (RowChange({"precision": "bf16"}),), "bf16")


def _host(case: Case) -> Iterator[Rule]:
    setup = case.configuration.setup
    if setup.cluster.device.kind == "gpu":
        title = "layers are so small that devices wait for the host to launch their kernels"
        evidence = case.says("hidden"), case.says("micro_batch") or case.says("local_batch")
        remedy = "CUDA graphs, compiled layers, or more tokens a micro-batch"
        yield Rule("host-bound layers", title, evidence, (RowChange(facts=WHOLE_GRAPH),), remedy)


def _power(case: Case) -> Iterator[Rule]:
    evidence = case.says("power_limit_watts")
    if evidence is not None:
        title = "devices may not draw the power that they are made for"
        yield Rule(
            "power limit",
            title,
            (evidence,),
            (RowChange({"power_limit_watts": ""}),),
            "a higher limit, if yours to set",
        )


def _compilation(case: Case) -> Iterator[Rule]:
    if case.configuration.implementation.name == "torchtitan":
        evidence = case.says("compile", "compile.enable")
        title = "layers are not compiled: what lies between products goes through memory each time"
        yield Rule(
            "layers not compiled", title, (evidence,), (RowChange({"compile": "yes"}),), "[compile] enable = true"
        )


def _overlap(case: Case) -> Iterator[Rule]:
    titles = {
        "async_tp": "tensor ranks wait for their gathers and reductions, none of which is cut into pieces",
        "grouped_gemm": "the products of a rank's experts follow one another",
        "overlap_moe": "the exchanges around experts do not run beside another micro-batch",
    }
    for column, title in titles.items():
        if case.understood.row.get(column, "").lower() in ("no", "false", "0"):
            yield Rule(f"{column} off", title, (case.says(column),), (RowChange({column: "yes"}),), f"{column} on")


RULES: tuple[Callable[[Case], Iterator[Rule]], ...] = (
    *(_flags, _attention, _sequence, _optimizer, _recomputation, _sharding, _tensor_ranks, _bubble, _micro_batch),
    *(_vocabulary, _offloading, _precision, _host, _power, _compilation, _overlap),
)
