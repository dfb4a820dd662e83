"""Compiled layers compute what plain ones do; where there is no compiler that is said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from tests.messages import refused
from tests.train_core.conftest import ALONE, ExperimentOf
from tests.train_core.training.layouts import MIXTURE
from train_core.model.initialize import rotary_table_of
from train_core.model.transformer import Layer
from train_core.parallel.layers import require_compiler
from train_core.training.trainer import Trainer
from train_core.watch.nonfinite import origin_of_nonfinite

SMALL: dict[str, Any] = {
    "model.num_layers": 1,
    "data.source": "synthetic",
    "batch.global_batch_size": 2,
    "batch.micro_batch_size": 1,
}
LLAMA = SMALL | {"model.family": "llama", "model.gated_mlp": True, "parallel.recompute": "full"}


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler warns of itself
@pytest.mark.parametrize(
    "values", [SMALL, LLAMA, SMALL | MIXTURE | {"model.num_layers": 2}], ids=["gpt", "llama, recomputed", "experts"]
)
def test_compiled_layers_train_like_plain_ones(
    values: dict[str, Any], experiment_of: ExperimentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced and differentiated by the compiler, without its minutes of generating code."""
    monkeypatch.setattr("train_core.parallel.layers.BACKEND", "aot_eager")
    plain, compiled = (
        Trainer(experiment_of(values | {"training.compile_layers": chosen}), ALONE, tmp_path)
        for chosen in (False, True)
    )
    for step in (1, 2, 3):
        assert compiled.step(step).loss == pytest.approx(plain.step(step).loss, rel=1e-5)


def result_of(forward: Callable[..., Tensor], layer: Layer, rotary: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of every weight."""
    x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    layer.zero_grad()
    out = forward(x, rotary)
    out.square().mean().backward()
    gradients = [tensor.grad for tensor in (x, *layer.parameters())]
    return [out.detach(), *(gradient.clone() for gradient in gradients if gradient is not None)]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_llamas_layer_is_one_graph_to_the_compiler(experiment_of: ExperimentOf) -> None:
    """As it is before it is split, with products that do nothing else; rotary positions are what breaks easily."""
    spec = experiment_of(LLAMA | {"model.num_query_groups": 2}).model
    torch.manual_seed(0)
    layer, rotary = Layer(spec), rotary_table_of(spec)
    assert rotary is not None
    torch._dynamo.reset()
    whole = torch.compile(layer.forward, backend="aot_eager", fullgraph=True, dynamic=False)
    for compiled, plain in zip(result_of(whole, layer, rotary), result_of(layer.forward, layer, rotary), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_trainers_layers_share_their_code_which_breaks_at_matrix_products_alone(
    experiment_of: ExperimentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch compiles a function eight times at most, and then runs it as it is."""
    monkeypatch.setattr("train_core.parallel.layers.BACKEND", "aot_eager")
    ten_layers = LLAMA | {"training.compile_layers": True, "model.num_layers": 10}
    assert num_graphs(experiment_of(ten_layers), tmp_path) == 5
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert all("ParallelLinear.forward" in reason for reason in breaks)


def num_graphs(experiment: Experiment, cache_dir: Path) -> int:
    """That one step has compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    Trainer(experiment, ALONE, cache_dir).step(1)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.thorough  # than ten layers that share their code
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_layers_that_repeat_attention_share_their_code_however_many_there_are(
    experiment_of: ExperimentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train_core.parallel.layers.BACKEND", "aot_eager")
    compiled = SMALL | {"training.compile_layers": True, "parallel.recompute": "selective"}
    few, many = (experiment_of(compiled | {"model.num_layers": layers}) for layers in (1, 10))
    assert num_graphs(few, tmp_path) == num_graphs(many, tmp_path) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_where_a_value_that_is_not_finite_comes_from_is_found_inside_compiled_layers(
    experiment_of: ExperimentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's code knows nothing of hooks that came later."""
    monkeypatch.setattr("train_core.parallel.layers.BACKEND", "aot_eager")
    trainer = Trainer(experiment_of(SMALL | {"training.compile_layers": True}), ALONE, tmp_path)
    trainer.step(1)
    trainer.stage.chunks[0].get_parameter("layers.0.feed_forward_norm.weight").data.fill_(3e38)
    told = origin_of_nonfinite(trainer.stage, trainer.mesh, trainer.masters(), partial(trainer.is_finite_again, 2))
    assert told.words.startswith("first in the output of layers.0.feed_forward_norm (micro-batch 0) of rank 0")


@pytest.mark.slow
def test_a_trainer_starts_without_the_compiler() -> None:
    """Importing it takes every rank of a job seconds."""
    code = "import sys, train_core.training.trainer; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_machine_without_a_compiler_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train_core.parallel.layers._missing_cpp_compiler", lambda: "a C++ compiler")
    with refused(ConfigError, "training.compile_layers"):
        require_compiler(torch.device("cpu"))
