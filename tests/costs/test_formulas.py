"""The formulas against the literature's closed forms, and against each other."""

from __future__ import annotations

import pytest

from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec
from costs import estimate, hardware_flops, model_flops, num_parameters
from tests.composed import load

PUBLISHED_PARAMETERS = {"gpt-22b": 22e9, "gpt-175b": 175e9, "gpt-1t": 1000e9, "gpt-1.4b": 1.4e9}
FRONTIER = ["cluster=frontier", "precision=bf16", "parallel.world_size=128", "batch.global_batch_size=640"]


def model(name: str) -> ModelSpec:
    return load([f"model={name}"]).model


def frontier(*overrides: str) -> Experiment:
    base = ["model=gpt-175b", "parallel=frontier-175b", "batch=frontier-175b"]
    return load([*base, *FRONTIER, *overrides]).experiment()


@pytest.mark.parametrize(("name", "published"), PUBLISHED_PARAMETERS.items())
def test_models_have_the_published_size(name: str, published: float) -> None:
    assert num_parameters(model(name)) == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_follow_equation_2_of_megatron_lm(name: str) -> None:
    spec = model(name)
    h, layers, vocab, s = spec.hidden_size, spec.num_layers, spec.vocab_size, spec.seq_length
    closed_form = 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocab + s) / (12 * layers * h))
    assert num_parameters(spec) == pytest.approx(closed_form + 2 * h, rel=1e-12)


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_flops_follow_the_published_closed_forms(name: str) -> None:
    spec, batch = model(name), 640
    h, layers, vocab, s = spec.hidden_size, spec.num_layers, spec.vocab_size, spec.seq_length
    korthikanti = 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
    selective = 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers)) + (
        4 * batch * layers * s * s * h
    )
    megatron = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert model_flops(spec, batch) == pytest.approx(korthikanti, rel=1e-12)
    assert hardware_flops(spec, batch, "none") == model_flops(spec, batch)
    assert hardware_flops(spec, batch, "selective") == pytest.approx(selective, rel=1e-12)
    assert hardware_flops(spec, batch, "full") == pytest.approx(megatron, rel=1e-12)


@pytest.mark.parametrize("pipeline", [1, 2, 4, 8, 16])
def test_stages_hold_the_whole_model_and_one_more_copy_of_the_tied_embedding(pipeline: int) -> None:
    point = frontier(f"parallel.pipeline_parallel_size={pipeline}", "parallel.tensor_parallel_size=1")
    held = sum(stage.parameters for stage in estimate(point).stages)
    copy = point.model.vocab_size * point.model.hidden_size if pipeline > 1 else 0
    assert held == num_parameters(point.model) + copy


@pytest.mark.parametrize(
    ("model_name", "layers_per_stage", "tied"),
    [
        ("gpt-22b", (10, 10, 10, 9, 9), True),
        ("gpt-22b", (1, 30, 17), True),
        ("bloom-176b", (11, 24, 24, 11), True),
        ("llama-2-70b", (14, 14, 13, 13, 13, 13), False),
        ("llama-3.1-8b", (7, 8, 9, 8), False),
        ("llama-3.1-8b", (7, 8, 9, 8), True),
        ("llama-3.1-405b", (126,), False),
    ],
)
def test_uneven_stages_and_those_of_a_llama_hold_the_whole_model(
    model_name: str, layers_per_stage: tuple[int, ...], tied: bool
) -> None:
    """What this trainer does not run; a tied token embedding has one more copy on the last stage."""
    p = len(layers_per_stage)
    sizes = [f"parallel.world_size={p}", f"parallel.pipeline_parallel_size={p}", "parallel.tensor_parallel_size=1"]
    layers = [f"parallel.layers_per_stage={list(layers_per_stage)}", f"model.tied_embeddings={str(tied).lower()}"]
    whole = ["parallel.sequence_parallel=false", "batch.global_batch_size=64", "precision=bf16"]
    point = load([f"model={model_name}", "cluster=dgx-h100", *sizes, *layers, *whole]).experiment()
    held = sum(stage.parameters for stage in estimate(point).stages)
    copy = point.model.vocab_size * point.model.hidden_size if tied and p > 1 else 0
    assert held == num_parameters(point.model) + copy


def test_the_authors_parameters_per_rank() -> None:
    """Log 405287 of the Frontier study: 2.718480384e9 in middle stages, 2.899e9 in stage 0 (2,048 positions)."""
    point = estimate(frontier())
    assert point.stages[7].parameters == pytest.approx(2.718480384e9, rel=1e-4)
    assert point.stages[0].parameters == pytest.approx(2.899e9, rel=1e-3)


def test_more_recomputation_keeps_less() -> None:
    activations = [
        estimate(frontier(f"parallel.recompute={recompute}")).stages[0].activations_bytes
        for recompute in ("none", "full")
    ]
    assert activations[1] < activations[0] / 4


def test_terms_add_up_to_the_step() -> None:
    predicted = estimate(frontier())
    terms = predicted.step_terms.by_term()
    assert predicted.step_seconds == pytest.approx(sum(terms.values()))
    assert all(seconds >= 0 for seconds in terms.values())


def test_hardware_rate_over_model_rate_is_the_recomputation() -> None:
    predicted = estimate(frontier())
    ratio = predicted.hardware_flops_per_second_per_device / predicted.model_flops_per_second_per_device
    assert ratio == pytest.approx(predicted.hardware_flops / predicted.model_flops)
    assert 1.3 < ratio < 1.34
