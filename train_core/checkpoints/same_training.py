"""A check that a training can go on from another one: the same data in the same order, and a step left to do.

Data order and dropout follow from seed, step and sequence alone, and the learning rate from step and schedule, so that
nothing else is needed for the same losses in any layout. The schedule may change; a change is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.experiment import Experiment
from conf.overrides import for_a_shell, written
from conf.schema import Value
from conf.tree import value_at
from train_core.checkpoints.checkpoint_folder import Facts

RESUME, NUM_STEPS, TOKENS = "checkpoint.resume", "training.num_steps", "tokens"
ORDER = ("batch.global_batch_size", "model.seq_length", "training.seed", "data.held_out_fraction")
"""The keys that decide, with the tokens, which sequences a step has."""
TEXT = ("data.source", "data.tokenizer", "data.max_bytes", "data.path")
"""The keys that decide tokens, which are the same for a text of another length limit or path where its content is."""
SCHEDULE = (
    NUM_STEPS,
    "training.learning_rate",
    "training.min_learning_rate",
    "training.learning_rate_warmup_steps",
    "training.weight_decay",
    "training.adam_beta1",
    "training.adam_beta2",
    "training.adam_epsilon",
    "training.clip_gradient_norm",
    "training.dropout",
)
"""The keys that decide, with the gradients, how the weights change; and which values are dropped."""


def facts_of_training(experiment: Experiment, tokens: str | None) -> dict[str, Value]:
    """The settings that decide the losses, besides model and first weights, by dotted key; see `Facts.training`.

    Args:
        tokens: the name of the token file, which tells its content; None where tokens are drawn at random.
    """
    tree = experiment.model_dump(mode="json")
    return {TOKENS: tokens} | {key: value_at(tree, key) for key in (*ORDER, *TEXT, *SCHEDULE)}


def require_same_training(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value]) -> None:
    """Refuse to go on from a checkpoint after which other data would come than if the training had not stopped.

    Args:
        wanted: what `facts_of_training` says of the training that is to go on.

    Raises:
        ConfigError: names the first value that differs; or no step is left to do.
    """
    instead = f"or use {RESUME}=false to begin with step 1"
    saved = facts.training
    differing = _differing(ORDER, saved, wanted)
    if _differing((TOKENS,), saved, wanted):
        differing += _differing(TEXT, saved, wanted)
        if not differing:
            problem = f"holds other text than when {checkpoint} was written ({wanted[TOKENS]}, not {saved[TOKENS]})"
            raise ConfigError("data.path", wanted["data.path"], problem, f"Give the text of then, {instead}.")
    if differing:
        first = differing[0]
        problem = f"is not the {written(saved[first])} of the training in the checkpoint {checkpoint}"
        same = " ".join(for_a_shell(key, saved[key]) for key in differing)
        raise ConfigError(first, wanted[first], problem, f"Use {same}, {instead}.")
    num_steps: Any = wanted[NUM_STEPS]
    if num_steps <= facts.step:
        problem = f"leaves none to do after step {facts.step} of the checkpoint {checkpoint}"
        raise ConfigError(NUM_STEPS, num_steps, problem, f"Give more steps, {instead}.")


def how_it_goes_on(checkpoint: Path, facts: Facts, wanted: Mapping[str, Value]) -> str:
    """For people: after which step a training goes on, and what of its schedule is not what it was."""
    saved = facts.training
    changed = _differing(SCHEDULE, saved, wanted)
    values = ", ".join(f"{key} = {written(wanted[key])}, which was {written(saved[key])}" for key in changed)
    with_what = f" with {values}" if changed else ""
    return f"going on after step {facts.step} of {checkpoint}{with_what}"


def _differing(keys: Sequence[str], saved: Mapping[str, Value], wanted: Mapping[str, Value]) -> list[str]:
    """The keys of which a checkpoint says another value; one of another version may not say all of them."""
    return [key for key in keys if key in saved and saved[key] != wanted[key]]
