"""The types that configuration is made of, and the choices: how a model is laid out, trained, saved and watched.

A *Plan* is a choice; a *Spec* is a fact, and those of a model are in `model_spec`, of a cluster in `cluster_spec`, of a
site in `sites`, of a sweep in `sweep_spec`. Values live in the YAML groups beside this file; a field has a default here
only where records that lack it are to be read. What follows from several of them together is in `setup` and
`experiment`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from conf.errors import ConfigError, InfeasiblePlan
from conf.overrides import value_text
from conf.types.recompute import Recompute

Count = Annotated[int, Field(gt=0)]
MOST_SEQUENCES = 10**9
"""The most sequences of one step. Real trainings use thousands. A search finds every divisor of the number and tries
each as a micro-batch, which for a far larger number would take very long."""
Sequences = Annotated[int, Field(gt=0, le=MOST_SEQUENCES)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What can name a sweep, a cluster and a folder: no slashes, no blanks, and no dot in front."""
MOST_LETTERS = 200
"""A file system takes 255 in a name, of which jobs, drafts and proxies add some."""
Name = Annotated[str, Field(pattern=NAME, max_length=MOST_LETTERS)]
Dtype = Literal["fp32", "bf16", "fp16"]
ContextExchange = Literal["ring", "gather"]
ExpertDispatcher = Literal["alltoall", "deepep", "hybridep"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
RateSchedule = Literal["constant", "linear", "cosine", "wsd", "inverse-square-root"]
OptimizerName = Literal["adamw", "muon"]
Family = Literal["gpt", "llama"]
MatmulRecipe = Literal["fp8-delayed", "fp8-tensorwise", "fp8-rowwise", "fp8-blockwise", "mxfp8", "nvfp4"]
Value = bool | int | float | str | None
ROTARY_BASE = 10_000.0
"""The base of rotary positions for models that name none. Source: arXiv 2104.09864, section 3.2.2."""
DOCUMENTS = "data.separate_documents"
NORM_EPSILON = 1e-5
"""The addition of norms to a mean square or a variance unless the model says otherwise. Source: the config.json of
GPT-2, Llama 2 and Llama 3.1."""


def _listed(value: object) -> object:
    """Counts written as a text, which a point of a sweep holds."""
    is_text = isinstance(value, str) and re.fullmatch(r"\[\d+(,\d+)*\]", value)
    return [int(count) for count in re.findall(r"\d+", str(value))] if is_text else value


def refusal(problem: str, remedy: str) -> PydanticCustomError:
    """An error whose dotted key and value pydantic knows, and whose remedy `conf.compose.load` shows."""
    return PydanticCustomError("axis", "{problem}", {"problem": problem, "remedy": remedy})


Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""A name that may be all digits, as those of accounts and partitions are."""
Printed = Annotated[str, BeforeValidator(lambda value: value_text(value) if isinstance(value, int | float) else value)]
"""The value of a variable, or a word of a command: a number or a truth is one too."""


class Frozen(BaseModel):
    """Immutable, strict (no `"3"` for `3`), and closed: an unknown key is an error."""

    # A diverged loss is NaN; written as JSON null, pydantic's default, it could not be read back.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants", defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic does it, but without what `cached_property` keeps, which follows from the values before."""
        copy = super().model_copy(update=update, deep=deep)
        for name in copy.__dict__.keys() - type(self).model_fields.keys():
            del copy.__dict__[name]
        return copy


_given_fields: dict[frozenset[str], set[str]] = {}


def share_given_fields(*models: BaseModel | None) -> None:
    """Let models of which the same fields were given hold one set of these names, which pydantic makes for each.

    Of thousands of models that are kept, these sets take more memory than the values. A copy gets a set of its own.
    """
    for model in models:
        if model is not None:
            names = model.model_fields_set
            object.__setattr__(model, "__pydantic_fields_set__", _given_fields.setdefault(frozenset(names), names))


class ParallelPlan(Frozen):
    """The layout of one model over the devices. The data-parallel size follows from `world_size`.

    Attributes:
        world_size: ranks of the job, one per device; in YAML, null means every device of the cluster.
        tensor_parallel_size: ranks that share out the matrices of every layer.
        pipeline_parallel_size: stages, each of which holds some of the layers.
        virtual_pipeline_size: model chunks on every stage; more than 1 only with the interleaved schedule.
        schedule: order of forward and backward passes on a stage. `gpipe` runs all forward passes first; `zero-bubble`
            is ZB-H1: weight gradients fill waits.
        layers_per_stage: layers of each stage, first to last; null spreads them evenly.
        sequence_parallel: shard LayerNorm and residual activations over the tensor-parallel ranks.
        zero_stage: what the data-parallel ranks share out: 0 nothing, 1 the optimizer state, 2 also the gradients,
            3 also the weights.
        recompute: activations recomputed in backward: `selective` (attention core), `full` (whole layer), `pointwise`
            (outputs of norms and the activation).
        recompute_every: recompute in the first layer of each model chunk and in every n-th after it; 1 means all.
        tensor_parallel_across_nodes: allow a tensor-parallel group to leave its node; within a rack that one close link
            joins it may so anyway.
        context_parallel_size: ranks that share out the tokens of a sequence in every layer, attention included.
        context_exchange: the way of keys and values among those ranks: `ring` passes them on beside every block of
            attention, `gather` has them all at once: fewer messages, more memory.
        expert_parallel_size: ranks over which a layer's experts are spread.
        expert_tensor_parallel_size: ranks that share out each expert's matrices; null takes tensor_parallel_size.
        zero_group_size: replicas among which ZeRO shares out, all groups holding the same; null means all of them.
        offload_optimizer: keep the optimizer's state in the host's memory and update there.
        offload_activations: keep what layers keep for backward in the host's memory until backward comes to them.
        pipeline_before_data: neighbouring nodes hold stages of one replica, instead of replicas of one stage.
        expert_dispatcher: what brings tokens to their experts: `alltoall` sends a copy to each of them, `deepep` and
            `hybridep` one to each node, which passes it on.
    """

    world_size: Count
    tensor_parallel_size: Count
    pipeline_parallel_size: Count
    virtual_pipeline_size: Count
    schedule: Schedule
    layers_per_stage: Annotated[tuple[Count, ...], Field(strict=False), BeforeValidator(_listed)] | None
    sequence_parallel: bool
    zero_stage: Literal[0, 1, 2, 3]
    recompute: Recompute
    recompute_every: Count
    tensor_parallel_across_nodes: bool
    context_parallel_size: Count = 1
    context_exchange: ContextExchange = "ring"
    expert_parallel_size: Count = 1
    expert_tensor_parallel_size: Count | None = None
    zero_group_size: Count | None = None
    offload_optimizer: bool = False
    offload_activations: bool = False
    pipeline_before_data: bool = False
    expert_dispatcher: ExpertDispatcher = "alltoall"

    @property
    def data_parallel_size(self) -> int:
        model_parallel_size = self.tensor_parallel_size * self.pipeline_parallel_size
        return self.world_size // (model_parallel_size * self.context_parallel_size)

    @property
    def num_replicas(self) -> int:
        """The ranks that hold the same weights, and sum their gradients: context ranks have other tokens, too."""
        return self.data_parallel_size * self.context_parallel_size

    @model_validator(mode="after")
    def _chunks_need_interleaving(self) -> ParallelPlan:
        if (self.virtual_pipeline_size > 1) != (self.schedule == "interleaved"):
            problem = f"does not go with parallel.schedule = {self.schedule}"
            remedy = "Use schedule=interleaved with 2 or more chunks, any other schedule with 1."
            raise InfeasiblePlan("parallel.virtual_pipeline_size", self.virtual_pipeline_size, problem, remedy)
        return self


class BatchPlan(Frozen):
    """Sequences per optimizer step, and per forward pass of one data-parallel replica.

    Attributes:
        global_batch_size: sequences of one optimizer step, over all replicas.
        micro_batch_size: sequences of one forward pass of one replica.
    """

    global_batch_size: Sequences
    micro_batch_size: Sequences


class PrecisionPlan(Frozen):
    """Type of weights and activations. The optimizer works in fp32.

    Attributes:
        dtype: type of weights and activations.
        gradient_dtype: type in which gradients are accumulated over micro-batches and reduced over replicas; `bf16`
            needs bf16 weights.
        initial_loss_scale: fp16 multiplies the loss by this, so that small gradients do not vanish; it halves at every
            overflow.
        loss_scale_window: steps without overflow after which fp16 doubles the scale.
        matmul_recipe: narrower type of the layers' matrix products, and how it is scaled; null multiplies in `dtype`.
        wide_layers: layers at each end of the model whose products stay in `dtype` all the same.
        emulate: make narrow products on a device that has none: operands are rounded alike and multiplied in fp32.
    """

    dtype: Dtype
    gradient_dtype: Literal["fp32", "bf16"]
    initial_loss_scale: AtLeastOne
    loss_scale_window: Count
    matmul_recipe: MatmulRecipe | None = None
    wide_layers: Annotated[int, Field(ge=0)] = 0
    emulate: bool = False

    @property
    def priced_recipe(self) -> MatmulRecipe | None:
        """The recipe whose products a device makes; an emulation has the price of products in `dtype`."""
        return None if self.emulate else self.matmul_recipe

    @property
    def in_words(self) -> str:
        """Its types for people: `bf16`, or `bf16 with products in mxfp8`."""
        emulated = "emulated " if self.emulate else ""
        return f"{self.dtype} with products in {emulated}{self.matmul_recipe}" if self.matmul_recipe else self.dtype

    @model_validator(mode="after")
    def _something_is_narrow(self) -> PrecisionPlan:
        if self.matmul_recipe is None and (self.emulate or self.wide_layers):
            key = "emulate" if self.emulate else "wide_layers"
            problem = "is about low-precision matmuls, and precision.matmul_recipe = null"
            remedy = f"Give precision.matmul_recipe=fp8-tensorwise, or leave precision.{key} out."
            raise ConfigError(f"precision.{key}", getattr(self, key), problem, remedy)
        return self

    @model_validator(mode="after")
    def _gradients_are_as_wide_as_weights(self) -> PrecisionPlan:
        if self.gradient_dtype == "bf16" and self.dtype != "bf16":
            problem = f"is narrower than precision.dtype = {self.dtype} allows"
            remedy = "Use gradient_dtype=fp32, or precision=bf16."
            raise ConfigError("precision.gradient_dtype", "bf16", problem, remedy)
        return self


class HeldOutSet(Frozen):
    """A set that is evaluated and never trained on.

    Attributes:
        path: what data.path is for a single set.
    """

    path: str


class MixedSet(HeldOutSet):
    """A set among those that are mixed.

    Attributes:
        path: what data.path is for a single set.
        weight: its share of the tokens, over the sum of all weights.
    """

    weight: Positive


SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=60)]
"""What can name a set of data, as a part of a dotted key and of a metric."""


class DataSpec(Frozen):
    """The source of tokens.

    Attributes:
        source: `text` reads files, `huggingface` the rows of Parquet, Arrow or JSON lines, `megatron` an indexed
            dataset, `synthetic` draws random tokens (for pure throughput).
        path: a text file or a folder of them; null means the Python standard library's sources. Of rows, a file, a
            folder or a pattern such as `data/train-*.parquet`. For an indexed dataset, its path without `.bin` and
            `.idx`.
        tokenizer: `bytes`; of text `bpe`, trained on it up to the model's vocabulary; of rows a `tokenizer.json` or the
            folder that has one; null where no text is read.
        text_field: the column, or the key of a line, that has the text of a row.
        max_bytes: text beyond this many bytes is not read; null where no text is read, and for all rows.
        cache_dir: folder of the memory-mapped token files; null takes `tokens` in the output folder.
        held_out_fraction: the last part of the tokens, of each set in a mixture, for the held-out loss alone.
        separate_documents: attention and positions stay inside a document: a file of a text, or one that a dataset's
            index names.
        mixture: sets to train on together, in place of `path`, by their names: `{web: {path: web, weight: 0.7}, ...}`.
        held_out: sets for held-out losses of their own (`eval/NAME/loss`), by their names: `{books: {path: books}}`.
    """

    source: Literal["text", "huggingface", "megatron", "synthetic"]
    path: str | None
    tokenizer: str | None
    max_bytes: Count | None
    cache_dir: str | None
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)]
    separate_documents: bool = False
    mixture: dict[SetName, MixedSet] = Field(default={})
    held_out: dict[SetName, HeldOutSet] = Field(default={})
    text_field: str = "text"

    @model_validator(mode="after")
    def _sets_have_tokens_in_common(self) -> DataSpec:
        for key, sets in (("data.mixture", self.mixture), ("data.held_out", self.held_out)):
            if sets and self.source == "synthetic":
                remedy = "Use data=text, huggingface or megatron, or leave it out."
                raise ConfigError(key, sorted(sets), "names sets, and data.source = synthetic reads none", remedy)
            if sets and self.tokenizer == "bpe":
                problem = "names sets, and data.tokenizer = bpe would learn other ids from each"
                raise ConfigError(
                    key, sorted(sets), problem, "Use data.tokenizer=bytes, data=huggingface or data=megatron."
                )
        if self.mixture and self.path is not None:
            problem = "is not read, as data.mixture names the sets"
            raise ConfigError("data.path", self.path, problem, "Make it one of them, with a weight, or leave it out.")
        trained = {each.path: name for name, each in self.mixture.items()} | {self.path: "data.path"}
        for name, each in self.held_out.items():
            if each.path in trained:
                problem = f"is trained on, as {trained[each.path]}"
                remedy = "Name text of its own, or use data.held_out_fraction."
                raise ConfigError(f"data.held_out.{name}.path", each.path, problem, remedy)
        return self

    @model_validator(mode="after")
    def _text_is_read_somehow(self) -> DataSpec:
        for key in ("tokenizer", "max_bytes"):
            if self.source == "text" and getattr(self, key) is None:
                raise ConfigError(f"data.{key}", None, "does not say how to read text", f"Give data.{key}=VALUE.")
        if self.source == "text" and self.tokenizer not in ("bytes", "bpe"):
            remedy = "Use bytes or bpe, or data=huggingface, which reads Parquet and JSON lines with a tokenizer.json."
            raise ConfigError("data.tokenizer", self.tokenizer, "is no tokenizer for data.source = text", remedy)
        if self.source == "huggingface" and self.tokenizer == "bpe":
            remedy = "Give the path of a tokenizer.json, or use bytes."
            raise ConfigError("data.tokenizer", "bpe", "learns from text files alone", remedy)
        return self

    @model_validator(mode="after")
    def _documents_are_there(self) -> DataSpec:
        if self.separate_documents and self.source == "synthetic":
            remedy = f"Set {DOCUMENTS}=false, or use another data.source."
            raise ConfigError(DOCUMENTS, True, "finds no documents in random tokens", remedy)
        return self


FOLLOWING: dict[str, tuple[str, Callable[[float], float]]] = {
    "num_warmup_steps": ("num_steps", lambda steps: min(3, int(steps) - 1)),
    "min_learning_rate": ("learning_rate", lambda rate: float(f"{rate / 10:.12g}")),  # 3e-5 of 3e-4, and no bit less
    "learning_rate_warmup_steps": ("num_steps", lambda steps: min(2, int(steps) - 1)),
}
"""Of a training: the keys whose null stands for a value that follows from another key's."""


def followed(value: object, rule: Callable[[float], float]) -> float:
    """The value that follows from another one; 0 where that is wrong, which is complained of by its own name."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return rule(value) if is_number else 0  # type: ignore[arg-type]


class TrainingPlan(Frozen):
    """The optimizer's schedule, and how many steps are measured.

    In YAML a null of FOLLOWING stands for the value that follows from another key; which of two keys may not be above
    the other, `conf.compose.orders` says.

    Attributes:
        num_steps: optimizer steps in all.
        num_warmup_steps: first steps that are left out of the timing; in YAML, null means 3, or all but one of fewer
            steps.
        learning_rate: its highest value, after the warm-up.
        min_learning_rate: its lowest value, which `linear`, `cosine` and `wsd` come to at the last step; in YAML, null
            means a tenth of learning_rate.
        learning_rate_warmup_steps: linear warm-up, before whatever schedule; in YAML, null means 2, or all but one of
            fewer steps.
        schedule: the learning rate after the warm-up: `constant`; `linear` or `cosine` down to num_steps; `wsd` stays,
            and falls linearly in the last steps; `inverse-square-root` falls with the root of the step.
        learning_rate_decay_steps: last steps in which `wsd` falls; null means a tenth of num_steps.
        optimizer: `adamw`, or `muon` for the matrices of layers and AdamW for all else.
        muon_momentum: share of its running sum of gradients that a step of Muon keeps.
        embedding_rate_factor: what the learning rate is multiplied by for embeddings.
        mup_base_width: the hidden_size at which learning_rate was found: matrices of layers and the head of a wider
            model take less of it and start from smaller weights (muP); null scales nothing.
        weight_decay: of AdamW; norms and biases are left out.
        adam_beta1: share of the gradients' running mean that a step keeps.
        adam_beta2: the same of their running square.
        adam_epsilon: what AdamW adds to the root of the running square.
        clip_gradient_norm: global norm over every axis; null does not clip.
        z_loss: factor of the mean square of the logits' log-sum-exp, added to the loss but not reported with it.
        dropout: after the embedding, in and after attention, and after the feed-forward layer.
        compile_layers: pass what lies between the products of a layer, and casts to fp8, through torch.compile.
        deterministic: take deterministic kernels on GPUs, so that a training that goes on comes to the bits of an
            uninterrupted one.
        seed: of the first weights, dropout and order of the data.
        evaluate_every: steps between evaluations of the held-out loss; null never evaluates.
        num_evaluation_batches: global batches of one evaluation.
    """

    num_steps: Count
    num_warmup_steps: Annotated[int, Field(ge=0)]
    learning_rate: Positive
    min_learning_rate: NonNegative
    learning_rate_warmup_steps: Annotated[int, Field(ge=0)]
    weight_decay: NonNegative
    adam_beta1: Annotated[float, Field(ge=0, lt=1)]
    adam_beta2: Annotated[float, Field(ge=0, lt=1)]
    adam_epsilon: Positive
    clip_gradient_norm: Positive | None
    dropout: Annotated[float, Field(ge=0, lt=1)]
    compile_layers: bool
    deterministic: bool = False
    evaluate_every: Count | None
    num_evaluation_batches: Count
    seed: Annotated[int, Field(ge=0)]
    schedule: RateSchedule = "cosine"
    learning_rate_decay_steps: Count | None = None
    optimizer: OptimizerName = "adamw"
    muon_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    embedding_rate_factor: Positive = 1.0
    mup_base_width: Count | None = None
    z_loss: NonNegative = 0.0

    @property
    def num_decay_steps(self) -> int:
        """The last steps, in which the rate of `wsd` falls."""
        return self.learning_rate_decay_steps or max(1, self.num_steps // 10)

    @model_validator(mode="before")
    @classmethod
    def _defaults_follow(cls, stated: Any) -> Any:
        if not isinstance(stated, dict):
            return stated
        nulls = (name for name in FOLLOWING if stated.get(name, "missing") is None)
        return stated | {name: followed(stated.get(FOLLOWING[name][0]), FOLLOWING[name][1]) for name in nulls}


class CheckpointPlan(Frozen):
    """The times at which training is saved, and the checkpoint that it continues from.

    Attributes:
        every_steps: steps between checkpoints, beside that of the last step; SIGUSR2, SIGTERM and Ctrl-C ask for one
            more and end the training. Null never saves: SIGTERM and Ctrl-C end it at once.
        keep_last: whole checkpoints that are kept.
        asynchronous: write checkpoints while the training continues.
        load: a checkpoint folder, or Hugging Face weights (`*.safetensors`), to start from; null starts from random
            weights. An interrupted trial continues from its own last checkpoint.
        resume: go on after the step of the checkpoint that `load` names, with its schedule and data; else training
            begins with step 1.
    """

    every_steps: Count | None
    keep_last: Count
    asynchronous: bool
    load: str | None
    resume: bool = False

    @model_validator(mode="after")
    def _something_is_resumed(self) -> CheckpointPlan:
        if self.resume and self.load is None:
            problem = "goes on from nothing, as checkpoint.load = null"
            raise ConfigError("checkpoint.resume", True, problem, "Give checkpoint.load=FOLDER, or leave it out.")
        return self


class WatchPlan(Frozen):
    """The dangers that a job is watched for while it runs.

    Attributes:
        hang_seconds: a collective or transfer that waits longer ends the job, naming who waits in what.
        compare_replicas_every: steps between comparisons of the weights' bits over the ranks that hold the same ones;
            null never compares.
        straggler_ratio: a rank whose own work takes longer than this many times its stage's median is named.
        max_overflows: fp16 steps in a row that overflow before the job ends.
        idle_power_seconds: how long the job waits before its first step, to measure idle power; 0 does not wait.
    """

    hang_seconds: Positive
    compare_replicas_every: Count | None
    straggler_ratio: Annotated[float, Field(gt=1)]
    max_overflows: Count
    idle_power_seconds: NonNegative = 0.0


class ProfilePlan(Frozen):
    """The records made beside the step time.

    Attributes:
        breakdown: say in `measurement.json` how much of a step each rank computes, communicates and waits.
        trace_steps: steps of which torch's profiler writes a trace.
        trace_ranks: ranks that write one.
    """

    breakdown: bool
    trace_steps: Annotated[tuple[Count, ...], Field(strict=False)]
    trace_ranks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]
