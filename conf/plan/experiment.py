"""An `Experiment` is a `Setup` and how it is run: the one immutable value that the trainer takes.

Invariants between what is priced and how it is run live here; those of the setup live in `setup`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

from pydantic import model_validator

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.expert_axis import check_own_experts
from conf.plan.setup import Setup
from conf.plan.setup_parts import SetupParts
from conf.plan.trainer_call import JOB_NAMES, call_of, met_limits, names_of
from conf.plan.trainer_limits import limits_of_program, require_runnable
from conf.types.model_spec import ExpertsSpec, ModelSpec
from conf.types.recompute import UNCOMPILED
from conf.types.schema import (
    DOCUMENTS,
    ROTARY_BASE,
    CheckpointPlan,
    DataSpec,
    OptimizerName,
    ParallelPlan,
    PrecisionPlan,
    ProfilePlan,
    TrainingPlan,
    WatchPlan,
)
from conf.types.stage_spec import StagePlace
from conf.types.trainer_spec import TRISWEEP, TrainerSpec
from conf.units import count_of

NARROW_MULTIPLE = 16
"""Kernels for 8 bits take operands whose rows are a multiple of so many elements."""


def _in_json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


USUAL_VALUES = {
    group: {name: _in_json(field.default) for name, field in spec.model_fields.items() if not field.is_required()}
    for group, spec in (
        ("parallel", ParallelPlan),
        ("data", DataSpec),
        ("precision", PrecisionPlan),
        ("model", ModelSpec),
        ("checkpoint", CheckpointPlan),
        ("training", TrainingPlan),
    )
}
"""Values that keys have by themselves, which no fingerprint names, so that a further key changes none. Ten thousand
experiments are asked at a time."""


class ExperimentParts(SetupParts):
    """The parts of an experiment, not yet checked against each other."""

    data: DataSpec
    training: TrainingPlan
    checkpoint: CheckpointPlan
    watch: WatchPlan
    profile: ProfilePlan
    trainer: TrainerSpec = TRISWEEP


class Experiment(Setup, ExperimentParts):
    """One point of a sweep, whole: the value that is estimated on paper and trained on devices.

    Attributes:
        stage: its place among the stages that follow each other; None of a trial that is a sweep's own point.

    Raises:
        InfeasiblePlan: the parts cannot exist together; names the dotted key, its value and what would fit.
    """

    stage: StagePlace | None = None

    @property
    def label(self) -> str:
        """The name of its layout; of a script, its own, with the devices of a trial where they are several."""
        if not self.trainer.is_script:
            return super().label
        size = self.parallel.world_size
        return f"{self.trainer.program}-{size}devices" if size > 1 else self.trainer.program

    @property
    def dropout(self) -> float:
        return self.training.dropout

    @property
    def optimizer(self) -> OptimizerName:
        return self.training.optimizer

    @property
    def compiles_layers(self) -> bool:
        return self.training.compile_layers

    @property
    def has_held_out_loss(self) -> bool:
        """True if the training evaluates a held-out loss: of another program, if a pattern finds one in its log."""
        if self.trainer.is_own:
            return self.training.evaluate_every is not None
        return "held_out_loss" in self.trainer.log.quantities

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits; two experiments that have the same ones measure the same thing."""
        # What a run is watched with, what a model is called and where files are cached do not change a measurement. A
        # cluster counts by its name alone: a corrected constant of its file does not change what was measured on it.
        content = self.model_dump(
            mode="json",
            exclude={"cluster": True, "mixed": True, "watch": True, "model": {"name"}, "data": {"cache_dir"}},
        )
        content["cluster"] = self.place
        # Null and the value that it stands for measure the same thing. Where no text is read, these values mean
        # nothing.
        content["data"]["tokenizer"] = self.data.tokenizer or "bytes"
        content["data"]["max_bytes"] = self.data.max_bytes or 1
        content["model"]["head_size"] = self.model.query_size // self.model.num_attention_heads
        content["model"]["rotary_base"] = self.model.rotary_base or ROTARY_BASE
        _leave_out_usual_values(content)
        if self.stage is None:
            del content["stage"]
        content["parallel"]["layers_per_stage"] = self.layers_per_stage
        del content["trainer"]
        if not self.trainer.is_own:  # another program measures something else
            content["trainer"] = self.trainer.identity()
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        for check in OWN_RUN_CHECKS if self.trainer.is_own else (_check_command,):
            check(self)
        return self


def _leave_out_usual_values(content: dict[str, Any]) -> None:
    """Take out keys that have the value which they have by themselves."""
    for group, usual in USUAL_VALUES.items():
        values = content[group]
        for name in [name for name, value in usual.items() if values[name] == value]:
            del values[name]
    if experts := content["model"].get("experts"):
        for name in ("balance_loss", "balance_bias", "scores", "routed_scale", "num_groups", "top_groups"):
            if experts[name] == ExpertsSpec.model_fields[name].default:
                del experts[name]


def _check_own_limits(experiment: Experiment) -> None:
    """Refuse what can be priced for other trainers, and what this package's own does not carry out."""
    otherwise = "choose another trainer, such as trainer=megatron-lm, or plan it with --implementation megatron-core"
    require_runnable(experiment, TRISWEEP.name, limits_of_program(TRISWEEP.name), otherwise)


def _check_profile(experiment: Experiment) -> None:
    profile, training, world_size = experiment.profile, experiment.training, experiment.parallel.world_size
    if absent := [rank for rank in profile.trace_ranks if rank >= world_size]:
        problem = f"names ranks that do not exist ({absent}): parallel.world_size = {world_size}"
        remedy = f"Use ranks 0 to {world_size - 1}."
        raise InfeasiblePlan("profile.trace_ranks", list(profile.trace_ranks), problem, remedy)
    key, steps = "profile.trace_steps", list(profile.trace_steps)
    if absent := [step for step in steps if step > training.num_steps]:
        problem = f"names steps that do not come ({absent}): training.num_steps = {training.num_steps}"
        raise InfeasiblePlan(key, steps, problem, f"Use steps 1 to {training.num_steps}, or more steps.")
    if bool(steps) != bool(profile.trace_ranks):
        remedy = "Give both profile.trace_steps and profile.trace_ranks, or neither."
        raise InfeasiblePlan(key, steps, f"does not go with profile.trace_ranks = {list(profile.trace_ranks)}", remedy)
    # Traced steps are slower and left out of the timing, as warm-up steps are; some step has to remain.
    if sum(step > training.num_warmup_steps for step in set(steps)) == training.num_steps - training.num_warmup_steps:
        remedy = "Trace fewer steps, or add steps: traced ones are slower and so not timed."
        raise InfeasiblePlan(key, steps, "leaves no step to time", remedy)


def _check_training(experiment: Experiment) -> None:
    training = experiment.training
    if training.compile_layers and training.dropout:
        problem = f"would compile again in every step, as training.dropout = {training.dropout} draws new masks"
        remedy = "Set training.compile_layers=false, or training.dropout=0."
        raise InfeasiblePlan("training.compile_layers", True, problem, remedy)
    if training.compile_layers and experiment.data.separate_documents:
        problem = f"would compile again for every batch, as {DOCUMENTS} = true gives each other documents"
        remedy = f"Set training.compile_layers=false, or {DOCUMENTS}=false."
        raise InfeasiblePlan("training.compile_layers", True, problem, remedy)
    require_falling(training)
    _require_mup(training, experiment.model)
    require_compilable(training, experiment.parallel.recompute, offloads=experiment.parallel.offload_activations)
    require_whole_attention(training, experiment.parallel.context_parallel_size)
    require_plain_scores(training, experiment.model)


def _check_narrow_products(experiment: Experiment) -> None:
    """Refuse sizes that the kernels do not take, along which operands are laid out."""
    precision, key = experiment.precision, "precision.matmul_recipe"
    if precision.matmul_recipe is None or precision.emulate:
        return
    for name, width in _widths_of_products(experiment.model, experiment.parallel.tensor_parallel_size):
        if width % NARROW_MULTIPLE:
            problem = f"multiplies rows of a multiple of {NARROW_MULTIPLE} elements, and {name} are {width}"
            raise InfeasiblePlan(key, precision.matmul_recipe, problem, f"Choose other sizes, or {key}=null.")


def _widths_of_products(model: ModelSpec, num_ranks: int) -> Iterator[tuple[str, int]]:
    """Yield what the products of a layer take and put out on each of so many tensor ranks, with its name."""
    latent, experts, pairs = model.latent_attention, model.experts, 2 * model.key_value_size
    yield "model.hidden_size", model.hidden_size
    yield "the queries of a tensor rank", model.query_size // num_ranks
    if latent is None:
        yield ("the queries, keys and values of a tensor rank", (model.query_size + pairs) // num_ranks)
    else:
        short = {"query_rank": latent.query_rank or 0, "key_value_rank": latent.key_value_rank}
        yield from ((f"model.latent_attention.{name}", width) for name, width in short.items())
        yield "the short vectors of latent attention", sum(short.values()) + latent.rotary_head_size
        plain_keys = model.query_size - model.num_attention_heads * latent.rotary_head_size
        yield "the keys and values of a tensor rank", (plain_keys + model.attended_size) // num_ranks
        yield "the values of a tensor rank", model.attended_size // num_ranks
    if experts is None or experts.num_dense_layers:
        yield "the feed-forward width of a tensor rank", model.ffn_hidden_size // num_ranks
    if experts is not None:
        yield "model.experts.ffn_hidden_size", experts.ffn_hidden_size
        yield "the shared expert's width of a tensor rank", experts.shared_ffn_hidden_size // num_ranks


def _require_mup(training: TrainingPlan, model: ModelSpec) -> None:
    """Raises ConfigError where muP has no rule: its head learns more slowly than an embedding, and Muon has its own."""
    key, width = "training.mup_base_width", training.mup_base_width
    if width is not None and model.tied_embeddings:
        problem = "scales the head otherwise than the embedding, and model.tied_embeddings = true makes them one"
        raise ConfigError(key, width, problem, "Use model.tied_embeddings=false, or leave it out.")
    if width is not None and training.optimizer == "muon":
        problem = "scales the rates of AdamW, and training.optimizer = muon scales by the shape of a matrix"
        raise ConfigError(key, width, problem, "Use training.optimizer=adamw, or leave it out.")


def require_falling(training: TrainingPlan) -> None:
    """Raises ConfigError for a decay of a schedule that has none, and InfeasiblePlan for one longer than its room."""
    key, steps = "training.learning_rate_decay_steps", training.learning_rate_decay_steps
    if steps is not None and training.schedule != "wsd":
        problem = f"is of training.schedule = wsd, and it is {training.schedule}"
        raise ConfigError(key, steps, problem, "Leave it out, or use training.schedule=wsd.")
    room = training.num_steps - training.learning_rate_warmup_steps
    if steps is not None and steps > room:
        problem = f"is more than the {count_of(room, 'step')} after the warm-up"
        raise InfeasiblePlan(key, steps, problem, f"Use {room} or less, a shorter warm-up, or more steps.")


def require_whole_attention(training: TrainingPlan, context_parallel_size: int) -> None:
    """Raises InfeasiblePlan for dropout beside context ranks, in this package's own trainer."""
    if training.dropout and context_parallel_size > 1:
        problem = f"does not work with context parallelism: {context_parallel_size} ranks share a sequence's scores"
        remedy = "Set training.dropout=0, or parallel.context_parallel_size=1."
        raise InfeasiblePlan("training.dropout", training.dropout, problem, remedy)


def require_plain_scores(training: TrainingPlan, model: ModelSpec) -> None:
    """Raises InfeasiblePlan for dropout beside capped scores or sinks, in this package's own trainer."""
    if training.dropout and model.scores_in_blocks:
        key = "model.scores_cap" if model.scores_cap is not None else "sinks of model.parts"
        problem = f"would drop scores, of which no kernel here does so beside {key}"
        raise InfeasiblePlan("training.dropout", training.dropout, problem, "Set training.dropout=0.")


def require_compilable(training: TrainingPlan, recompute: str, *, offloads: bool) -> None:
    """Raises InfeasiblePlan for compiled layers beside such recomputation or offloading, in this package's trainer."""
    if training.compile_layers and offloads:
        problem = "does not go with training.compile_layers = true, whose graphs choose what they keep"
        remedy = "Set parallel.offload_activations=false, or training.compile_layers=false."
        raise InfeasiblePlan("parallel.offload_activations", True, problem, remedy)
    if training.compile_layers and recompute in UNCOMPILED:
        problem = f"would lose the marks by which parallel.recompute = {recompute} recomputes outputs"
        remedy = "Set training.compile_layers=false, or choose another parallel.recompute."
        raise InfeasiblePlan("training.compile_layers", True, problem, remedy)


def _check_watch(experiment: Experiment) -> None:
    every = experiment.watch.compare_replicas_every
    if every is not None and experiment.parallel.zero_stage == 3:
        problem, remedy = "finds no replicas with parallel.zero_stage = 3", "Use null, or zero_stage=2 or less."
        raise InfeasiblePlan("watch.compare_replicas_every", every, problem, remedy)


def _check_command(experiment: Experiment) -> None:
    """Make the command once, so that a wrong name in it is found before anything is submitted."""
    trainer = experiment.trainer
    if experiment.mixed is not None:
        problem = f"puts stages on several types of devices, which trainer {trainer.name} cannot be told"
        raise InfeasiblePlan("mixed", experiment.place, problem, "Use trainer=trisweep, or mixed=null.")
    for key, sets in (("data.mixture", experiment.data.mixture), ("data.held_out", experiment.data.held_out)):
        if sets:
            remedy = "Leave it out, or use trainer=trisweep; the program may have a flag of its own."
            raise InfeasiblePlan(key, sorted(sets), f"is not passed on to trainer {trainer.name}", remedy)
    if experiment.data.separate_documents:
        remedy = f"Set {DOCUMENTS}=false, or use trainer=trisweep; the program may have a flag of its own."
        raise InfeasiblePlan(DOCUMENTS, True, f"is not passed on to trainer {trainer.name}", remedy)
    if experiment.precision.emulate or experiment.precision.wide_layers:
        key = "emulate" if experiment.precision.emulate else "wide_layers"
        value, remedy = getattr(experiment.precision, key), "Leave it out, or use trainer=trisweep."
        raise InfeasiblePlan(f"precision.{key}", value, f"is not passed on to trainer {trainer.name}", remedy)
    _require_told(experiment)
    folders = experiment.stage.folder_names if experiment.stage else ()
    if not trainer.trains and experiment.stage is None:
        problem, remedy = "does not train, and a sweep's points are trainings", "Make it a stage, in sweep.stages."
        raise ConfigError("trainer.kind", trainer.kind, problem, remedy)
    job = dict.fromkeys((*JOB_NAMES, *folders), "")
    call_of(trainer, experiment, job)
    names = names_of(trainer, experiment, job)
    met_limits(trainer.differs, names, "trainer.differs")
    for limit in met_limits(trainer.refuses, names, "trainer.refuses"):
        # A name of the file's own, such as torchtitan's flavor, tells nobody what to change: what it follows from does.
        follows = trainer.values.get(limit.of)
        key = follows.of if follows is not None else limit.of
        remedy = "Choose another value, or another trainer."
        if "." not in key:
            raise InfeasiblePlan("trainer", trainer.name, f"cannot run this plan: {limit.because}", remedy)
        raise InfeasiblePlan(key, names[key], f"trainer {trainer.name}: {limit.because}", remedy)
    if trainer.limits_of is not None:
        require_runnable(experiment, trainer.name, limits_of_program(trainer.limits_of))


def _require_told(experiment: Experiment) -> None:
    """Refuse keys of the optimizer that no text of another program's file names, so that it would not hear of them."""
    training, told = experiment.training, experiment.trainer.model_dump_json()
    for name in ("optimizer", "embedding_rate_factor", "mup_base_width") if experiment.trainer.trains else ():
        key, value = f"training.{name}", getattr(training, name)
        if value != TrainingPlan.model_fields[name].default and key not in told:
            remedy = "Leave it out, or use trainer=trisweep; a program of yours may take {" + key + "} in its words."
            raise InfeasiblePlan(key, value, f"is not passed on to trainer {experiment.trainer.name}", remedy)


OWN_RUN_CHECKS = (
    _check_own_limits,
    check_own_experts,
    _check_profile,
    _check_training,
    _check_narrow_products,
    _check_watch,
)
"""The checks of what our own trainer cannot run; of other programs `trainer.limits_of` and `trainer.refuses` say so."""
