"""The checkpoint that `checkpoint.load` means, and its description of itself. One rank asks for all.

Whether a checkpoint is of the same model, shapes alone do not tell. Four heads of 8 are as wide as eight of 4, and no
tensor knows the base of rotary positions.

To go on with a training (`checkpoint.resume`) takes more. Data order follows from seed, step and sequence alone, and
the learning rate from step and schedule, so that nothing else is needed for the same losses in any layout. Precision,
micro-batches and the schedule may change, and so may the masks of dropout, which some layouts draw otherwise; a change
is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from conf.compose.tree import value_at
from conf.errors import ConfigError
from conf.overrides import for_a_shell, value_text
from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec
from conf.types.schema import DOCUMENTS, ROTARY_BASE, PrecisionPlan, Value
from train_core.checkpoints.checkpoint_folder import KEY, Facts, checkpoints_in, damage, last_whole, read_facts
from train_core.checkpoints.reader import read_metadata, saved_shapes
from train_core.checkpoints.weight_files import foreign_weights
from train_core.model.transformer import Transformer


def whole_checkpoint(path: Path, unreadable: Mapping[Path, str]) -> Path:
    """The checkpoint that `checkpoint.load` names: the path itself, or the last whole one of a folder of them.

    Args:
        unreadable: checkpoints whose tensors have turned out to be damaged, and what is wrong with each.

    Raises:
        ConfigError: there is none.
    """
    if (problem := unreadable.get(path) or damage(path)) is None:
        return path
    if (last := last_whole(path, unreadable)) is not None:
        return last
    if not checkpoints_in(path) and (foreign := foreign_weights(path)) is not None:
        raise foreign
    if not path.is_dir():
        remedy = (
            "Name a checkpoint folder, or null. What the hub has is fetched first: hf download NAME --local-dir FOLDER"
        )
        raise ConfigError(KEY, str(path), "is not a folder", remedy)
    if held := checkpoints_in(path):
        problem = f"the last one, {held[-1].name}, {unreadable.get(held[-1]) or damage(held[-1])}"
        raise ConfigError(KEY, str(path), f"holds no whole checkpoint: {problem}", "Name another folder, or null.")
    instead = last_whole(path.parent, unreadable)
    remedy = "Name another one, or null." if instead is None else f"The last complete one next to it is {instead}."
    raise ConfigError(KEY, str(path), f"is not a complete checkpoint: it {problem}", remedy)


Refusal = Callable[[Path, Facts], None]
"""Raises ConfigError where nothing is to be taken from a checkpoint that describes itself so."""


def descriptions_in(checkpoint: Path, model: ModelSpec, refuse: Refusal) -> tuple[Facts, Metadata]:
    """A checkpoint's description of itself and of its tensors.

    Raises:
        Unreadable: it is damaged.
        ConfigError: it is of another model, or `refuse` refuses it.
    """
    facts = read_facts(checkpoint)
    require_same_spec(checkpoint, facts.model, model)
    refuse(checkpoint, facts)
    metadata = read_metadata(checkpoint, facts)
    require_same_shapes(checkpoint, saved_shapes(metadata), model)
    return facts, metadata


def require_same_spec(checkpoint: Path, saved: ModelSpec, model: ModelSpec) -> None:
    """Raises ConfigError where the checkpoint's model computes something else from the same weights."""
    before, now = (each.experts.balance_bias if each.experts else None for each in (saved, model))
    if before and now == 0:
        problem = f"would drop the biases by which the routers of the checkpoint {checkpoint} choose"
        raise ConfigError("model.experts.balance_bias", now, problem, "Use 1.0e-9, which hardly moves them.")
    has, wanted = _meaning(saved), _meaning(model)
    differing = [key for key in wanted if key in has and has[key] != wanted[key]]
    if not differing:
        return
    first = differing[0]
    problem = f"is not the {value_text(has[first])} of the model in the checkpoint {checkpoint}"
    same = " ".join(for_a_shell(f"model.{key}", has[key]) for key in differing)
    remedy = f"Use {same}, or name a checkpoint of this model as {KEY}."
    raise ConfigError(f"model.{first}", wanted[first], problem, remedy)


OF_TRAINING = ("balance_loss", "balance_bias", "capacity_factor", "imbalance")
"""The fields of a model's experts by which they are trained, or priced, and not what they compute."""


def _meaning(model: ModelSpec) -> dict[str, Any]:
    """The values that decide what the model computes, by key; a null is the value that it stands for."""
    values = model.model_dump(exclude={"name"}) | {"head_size": model.query_size // model.num_attention_heads}
    if model.experts is not None:
        experts = values.pop("experts")
        values |= {f"experts.{name}": value for name, value in experts.items() if name not in OF_TRAINING}
    if model.family == "gpt":
        return values | {"rotary_base": None}  # learned positions do not turn
    # Rotary positions have no weights, so that the same ones serve sequences of any length.
    del values["seq_length"]
    return values | {"rotary_base": model.rotary_base or ROTARY_BASE}


def require_same_shapes(checkpoint: Path, saved: Mapping[str, tuple[int, ...]], model: ModelSpec) -> None:
    """Raises ConfigError where the checkpoint's weights are not those of the model; `saved` are shapes by name."""
    with torch.device("meta"):
        wanted = {name: tuple(parameter.shape) for name, parameter in Transformer(model).named_parameters()}
    for name in sorted({*saved, *wanted}):
        if saved.get(name) != wanted.get(name):
            has, wants = saved.get(name, "nothing"), wanted.get(name, "nothing")
            problem = f"belongs to another model: of {name} it holds {has}, and model={model.name} has {wants}"
            raise ConfigError(KEY, str(checkpoint), problem, "Name a checkpoint of this model, or change model.*.")


RESUME, NUM_STEPS, DROPOUT = "checkpoint.resume", "training.num_steps", "training.dropout"
OPTIMIZER = "training.optimizer"
TOKENS, MASKS = "tokens", "masks"
ORDER = ("batch.global_batch_size", "model.seq_length", "training.seed", "data.held_out_fraction", DOCUMENTS)
"""The keys that decide, with the tokens, which sequences a step has, and which tokens of theirs see each other."""
WEIGHTS = "data.mixture."
"""The beginning of the keys of a mixture's weights."""
TEXT = ("data.source", "data.tokenizer", "data.max_bytes", "data.path")
"""The keys that decide tokens, which are the same for a text of another length limit or path where its content is."""
SCHEDULE = (
    NUM_STEPS,
    "training.learning_rate",
    "training.min_learning_rate",
    "training.learning_rate_warmup_steps",
    "training.schedule",
    "training.learning_rate_decay_steps",
    "training.muon_momentum",
    "training.embedding_rate_factor",
    "training.mup_base_width",
    "training.weight_decay",
    "training.adam_beta1",
    "training.adam_beta2",
    "training.adam_epsilon",
    "training.clip_gradient_norm",
    "training.z_loss",
    DROPOUT,
    *(f"model.experts.{name}" for name in OF_TRAINING if name != "imbalance"),
    "batch.micro_batch_size",
    *(f"precision.{name}" for name in PrecisionPlan.model_fields),
)
"""The keys that decide how the weights change: what is made of gradients, which values are dropped, what is rounded."""


def facts_of_training(experiment: Experiment, tokens: str | None) -> dict[str, Value]:
    """The settings that decide the losses, besides model and first weights, by dotted key; see `Facts.training`.

    Args:
        tokens: the name of the token file, which tells its content; None where tokens are drawn at random.
    """
    tree = experiment.model_dump(mode="json")
    derived: dict[str, Value] = {TOKENS: tokens, MASKS: _masks(experiment)}
    derived |= {f"{WEIGHTS}{name}.weight": each.weight for name, each in experiment.data.mixture.items()}
    return derived | {key: value_at(tree, key) for key in (*ORDER, *TEXT, *SCHEDULE, OPTIMIZER)}


def _masks(experiment: Experiment) -> str:
    """What masks of dropout follow from besides seed, step, sequence and site; see `model.dropout`."""
    parallel, kind = experiment.parallel, experiment.cluster.device.kind
    # Tensor ranks draw masks of their own for their parts of a sequence, and a GPU's for the scores of all their heads.
    drawing = parallel.tensor_parallel_size if parallel.sequence_parallel or kind == "gpu" else 1
    parts = "sequences and heads" if parallel.sequence_parallel else "heads"
    return f"{experiment.batch.micro_batch_size} at once on {kind}, {parts} in {drawing}"


def require_same_states(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value]) -> None:
    """Raises ConfigError where the checkpoint holds the states of another optimizer, which mean something else."""
    saved, asked = facts.training.get(OPTIMIZER, "adamw"), wanted[OPTIMIZER]
    if saved != asked:
        remedy = f"Use {OPTIMIZER}={saved}, or start from its weights alone: trisweep export, then {KEY}=FOLDER."
        raise ConfigError(
            OPTIMIZER, asked, f"is not the {saved} whose states the checkpoint {checkpoint} holds", remedy
        )


def require_same_data(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value], instead: str) -> None:
    """Refuse to go on from a checkpoint after which other data would come than if the training had not stopped.

    Args:
        wanted: what `facts_of_training` says of the training that is to go on.
        instead: what to do where the data of then is not wanted.

    Raises:
        ConfigError: names the first value that differs.
    """
    saved = facts.training
    differing = _differing((*ORDER, *sorted(key for key in saved if key.startswith(WEIGHTS))), saved, wanted)
    # How the text was named matters only where its tokens differ: the same content may lie elsewhere by now.
    if _differing((TOKENS,), saved, wanted):
        differing += _differing(TEXT, saved, wanted)
        if not differing:
            problem = f"holds other text than when {checkpoint} was written ({wanted[TOKENS]}, not {saved[TOKENS]})"
            names = [key.removeprefix(WEIGHTS).removesuffix(".weight") for key in wanted if key.startswith(WEIGHTS)]
            key, value = ("data.mixture", sorted(names)) if names else ("data.path", wanted["data.path"])
            raise ConfigError(key, value, problem, f"Give the text of then, {instead}.")
    if differing:
        first = differing[0]
        problem = f"is not the {value_text(saved[first])} of the training in the checkpoint {checkpoint}"
        same = " ".join(for_a_shell(key, saved[key]) for key in differing)
        raise ConfigError(first, wanted.get(first), problem, f"Use {same}, {instead}.")


def require_own_data(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value]) -> None:
    """Raises ConfigError where a training would go on in its own folder with other data; see `require_same_data`."""
    require_same_data(checkpoint, facts, wanted, f"or move {checkpoint.parent} away to begin with step 1")


def require_same_training(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value]) -> None:
    """Raises ConfigError where a training would go on from another one with other data, or has no step left to do."""
    require_same_states(checkpoint, facts, wanted)
    instead = f"or use {RESUME}=false to begin with step 1"
    require_same_data(checkpoint, facts, wanted, instead)
    num_steps: Any = wanted[NUM_STEPS]
    if num_steps <= facts.step:
        problem = f"leaves none to do after step {facts.step} of the checkpoint {checkpoint}"
        raise ConfigError(NUM_STEPS, num_steps, problem, f"Give more steps, {instead}.")


def how_it_goes_on(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value]) -> str:
    """For people: after which step a training goes on, and what decides its losses and is not what it was."""
    saved = facts.training
    changed = _differing(SCHEDULE, saved, wanted)
    values = ", ".join(f"{key} = {value_text(wanted[key])}, which was {value_text(saved[key])}" for key in changed)
    with_what = f" with {values}" if changed else ""
    masks = "; dropout draws other masks than there" if wanted[DROPOUT] and _differing((MASKS,), saved, wanted) else ""
    return f"going on after step {facts.step} of {checkpoint}{with_what}{masks}"


def how_it_starts(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value]) -> str:
    """For people: that ids mean other text than where a training starts from; empty where they mean the same."""
    saved = facts.training
    by_pairs = any(
        said.get("data.source") == "text" and said.get("data.tokenizer") == "bpe" for said in (saved, wanted)
    )
    if not by_pairs or None in (saved.get(TOKENS), wanted[TOKENS]) or saved[TOKENS] == wanted[TOKENS]:
        return ""
    learnt = f"whose ids meant other text ({saved[TOKENS]}, not {wanted[TOKENS]})"
    return f"starting from {checkpoint}, {learnt}: byte pairs are those of the text from which they were learnt"


def _differing(keys: Sequence[str], saved: Mapping[str, Value], wanted: Mapping[str, Value]) -> list[str]:
    """The keys of which a checkpoint says another value; one of another version may not say all of them."""
    return [key for key in keys if key in saved and saved[key] != wanted.get(key)]
