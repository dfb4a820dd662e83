"""The length of a training that `--tokens` or `--steps` states, in the command of another program."""

from __future__ import annotations

import math

from conf.compose.load import Composition
from conf.compose.settings import Settings
from conf.errors import ConfigError
from conf.plan.trainer_call import flat

STEPS, WARMUP = "training.num_steps", "training.learning_rate_warmup_steps"
WARMUP_SHARE, MOST_WARMUP_STEPS = 0.01, 2000
"""Of the warm-up where nobody states one. Source of its most: Llama 2 (arXiv 2307.09288, section 2.2)."""
OF_THE_LENGTH = {f"{{{name}}}" for name in (STEPS, WARMUP, "decay_steps")}
"""What a program's flags say of it."""


def of_length(composition: Composition, settings: Settings, num_steps: int) -> tuple[Settings, str]:
    """The settings for a training of so many steps, and what is said of them.

    A warm-up that somebody states, by its key or with a file of `training`, stays. Raises ConfigError where
    `training.num_steps` says another length.
    """
    given, training = composition.overrides, settings.training
    stated = training.num_steps
    if STEPS in given.pinned_keys() and stated != num_steps:
        problem = f"is another length than the {num_steps:,} steps of --tokens or --steps"
        raise ConfigError(STEPS, stated, problem, "Leave one of them out.")
    warmup, words = training.learning_rate_warmup_steps, "as stated"
    if WARMUP not in given.pinned_keys() and given.stated_value("training") is None:
        warmup = min(MOST_WARMUP_STEPS, math.ceil(WARMUP_SHARE * num_steps), num_steps - 1)
        words = f"a hundredth, at most {MOST_WARMUP_STEPS:,}, as {WARMUP} does not say it"
    lengths = {
        "num_steps": num_steps,
        "learning_rate_warmup_steps": warmup,
        "num_warmup_steps": min(training.num_warmup_steps, num_steps - 1),
    }
    tokens = num_steps * settings.batch.global_batch_size * settings.model.seq_length
    changed = type(training).model_validate(training.model_dump() | lengths)
    stated_flags = dict(flat(settings.trainer.flags))
    # Flags of the length are no longer those of a measurement.
    measuring = tuple(name for name in settings.trainer.measuring if stated_flags.get(name) not in OF_THE_LENGTH)
    trainer = settings.trainer.model_copy(update={"measuring": measuring})
    note = f"It trains {tokens:,} tokens in {num_steps:,} steps, the first {warmup:,} of them to warm up ({words})."
    return settings.model_copy(update={"training": changed, "trainer": trainer}), note
