"""Random layouts with random schedules and optimizers train like an oracle that was written anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from conf.types.model_spec import OF_EXPERTS, OWN_PARTS
from tests.train_core.conftest import Worlds
from tests.train_core.training.random_layouts import Case, Values, case_of
from tests.train_core.training.test_random_layouts import require_training_like_the_oracle

SCHEDULES = ("constant", "linear", "wsd", "inverse-square-root")


def recipe(random: Random, values: Values) -> Values:
    schedule = random.choice(SCHEDULES)
    room = values["training.num_steps"] - values["training.learning_rate_warmup_steps"]
    drawn: Values = {"training.schedule": schedule}
    drawn["training.optimizer"] = random.choice(("adamw", "muon", "muon"))
    drawn["training.z_loss"] = random.choice((0.0, 1e-3, 0.1))
    drawn["model.logits_cap"] = random.choice((None, 2.0, 30.0))
    drawn["training.muon_momentum"] = random.choice((0.0, 0.9, 0.95))
    drawn["training.embedding_rate_factor"] = random.choice((1.0, 0.3, 4.0))
    if drawn["training.optimizer"] == "adamw" and random.random() < 0.5:
        drawn |= {"training.mup_base_width": random.choice((4, 16, 64)), "model.tied_embeddings": False}
    if schedule == "wsd":
        drawn["training.learning_rate_decay_steps"] = random.choice((None, random.randint(1, room)))
    return drawn


def windows(random: Random, values: Values) -> Values:
    """Attention to the last tokens in all layers or most of them.

    Not to the own token alone, where queries and keys get no gradient but rounding, which Adam makes full steps of.
    """
    layers, length = values["model.num_layers"], values["model.seq_length"]
    every = random.choice((None, None, *range(2, layers + 1)))
    drawn: Values = {"model.attention_window": {"size": random.randint(2, max(2, length)), "full_every": every}}
    if values["model.family"] == "llama" and random.random() < 0.5:
        drawn |= {"model.parts": ["local_rotary"], "model.rotary_base": 500.0}
    return drawn | {"model.latent_attention": None}


CASES = [case_of(number, recipe) for number in range(1000, 1030)]


@pytest.mark.one_in(15)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_random_recipe_trains_like_the_oracle(
    case: Case, worlds: Worlds, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    require_training_like_the_oracle(case.experiment, worlds, tmp_path, record_property)


WINDOWED = [case_of(number, windows) for number in range(3000, 3030)]


@pytest.mark.one_in(15)
@pytest.mark.slow
@pytest.mark.parametrize("case", WINDOWED, ids=[case.name for case in WINDOWED])
def test_a_random_layout_with_windows_trains_like_the_oracle(
    case: Case, worlds: Worlds, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    require_training_like_the_oracle(case.experiment, worlds, tmp_path, record_property)


def offloading(random: Random, values: Values) -> Values:
    """Offloaded activations, with what goes with them.

    Not of a single token, where queries and keys get no gradient but rounding.
    """
    schedule = "1f1b" if values["parallel.schedule"] == "zero-bubble" else values["parallel.schedule"]
    recompute = random.choice(("none", "selective", "full"))
    drawn = {"parallel.offload_activations": True, "parallel.schedule": schedule, "parallel.recompute": recompute}
    return drawn | ({"model.seq_length": 2} if values["model.seq_length"] == 1 else {})


OFFLOADED = [case_of(number, offloading) for number in range(7000, 7030)]


@pytest.mark.one_in(15)
@pytest.mark.slow
@pytest.mark.parametrize("case", OFFLOADED, ids=[case.name for case in OFFLOADED])
def test_a_random_layout_that_offloads_activations_trains_like_the_oracle(
    case: Case, worlds: Worlds, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    require_training_like_the_oracle(case.experiment, worlds, tmp_path, record_property)


DRAWN_PARTS = sorted(OWN_PARTS - {"local_rotary"})  # which only changes layers with windows


def parts(random: Random, values: Values) -> Values:
    """What Gemma and others have, each by chance."""
    has_experts, layers, length = "model.experts" in values, values["model.num_layers"], values["model.seq_length"]
    found = [
        part
        for part in sorted(OWN_PARTS - {"local_rotary"})
        if random.random() < 0.5 and (has_experts or part not in OF_EXPERTS)
    ]
    found = [part for part in found if part != "post_norms" or "norms_behind" not in found]
    drawn: Values = {"model.parts": found, "model.latent_attention": None}
    # Scores of weights that were just drawn are about 0.01.
    drawn["model.scores_cap"] = random.choice((None, 0.005, 0.02))
    drawn["model.query_pre_attn_scalar"] = random.choice((None, None, 0.5, 3.0))
    drawn["model.qkv_bias"] = values["model.family"] == "llama" and random.random() < 0.3
    if random.random() < 0.4:
        every = random.choice((None, *range(2, layers + 1)))
        drawn["model.attention_window"] = {"size": random.randint(2, max(2, length)), "full_every": every}
    return drawn


def experts_of_gpt_oss(random: Random, values: Values) -> Values:
    """All that a gpt-oss has, where a layout has experts; in a few cases one expert for each token."""
    if (experts := values.get("model.experts")) is None:
        return parts(random, values) | {"model.parts": ["sinks"], "model.scores_cap": None}
    found = ["sinks", "output_bias", "mlp_bias", "router_bias", "capped_activation"]
    top_k = random.choice((1, experts["top_k"]))
    plain = {"shared_ffn_hidden_size": 0, "num_dense_layers": 0, "top_k": top_k, "balance_bias": 0.0}
    return parts(random, values) | {"model.parts": found, "model.qkv_bias": True, "model.experts": experts | plain}


WITH_PARTS = [case_of(number, parts) for number in (*range(5010, 5030), *range(5000, 5010))]
WITH_PARTS += [case_of(number, experts_of_gpt_oss) for number in range(6003, 6063, 4)]
WITH_PARTS += [case_of(number, experts_of_gpt_oss) for number in range(6000, 6010)]


@pytest.mark.one_in(20)
@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_PARTS, ids=[case.name for case in WITH_PARTS])
def test_a_random_layout_with_parts_of_other_types_trains_like_the_oracle(
    case: Case, worlds: Worlds, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    require_training_like_the_oracle(case.experiment, worlds, tmp_path, record_property)


def test_recipes_are_drawn_in_all_options() -> None:
    assert {case.experiment.training.schedule for case in CASES} == set(SCHEDULES)
