"""Groups of parameters with other rates: embeddings, and matrices of wide models by muP.

Random layouts of them are in training/test_random_recipes.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conf.errors import ConfigError, InfeasiblePlan
from tests.composed import load
from tests.messages import refused
from tests.train_core.conftest import ALONE, ExperimentOf
from train_core.training.trainer import Trainer

WIDTHS = (32, 128)


def largest_change_of_logits(experiment_of: ExperimentOf, width: int, folder: Path, **training: object) -> float:
    """The root mean square of what three steps change in the logits of one batch."""
    heads = width // 8
    shape = {"model.hidden_size": width, "model.ffn_hidden_size": 2 * width, "model.num_layers": 2}
    shape |= {"model.num_attention_heads": heads, "model.num_query_groups": heads, "model.tied_embeddings": False}
    rates = {"training.learning_rate": 3e-3, "training.learning_rate_warmup_steps": 0, "training.schedule": "constant"}
    values = {f"training.{name}": value for name, value in training.items()}
    trainer = Trainer(experiment_of(shape | rates | values), ALONE, folder)
    (model,), tokens = trainer.stage.chunks, torch.arange(16)[:, None]
    model.loss.forward = lambda logits, _: logits

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model(tokens, tokens).clone()

    before = logits()
    del model.loss.forward
    for step in (1, 2, 3):
        trainer.step(step)
    model.loss.forward = lambda logits, _: logits
    return float((logits() - before).square().mean().sqrt())


def test_with_mup_a_wider_model_changes_its_logits_as_much_as_a_narrow_one(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """The coordinate check of arXiv 2203.03466, appendix D.1."""
    plain = [largest_change_of_logits(experiment_of, width, tmp_path) for width in WIDTHS]
    scaled = [largest_change_of_logits(experiment_of, width, tmp_path, mup_base_width=32) for width in WIDTHS]
    assert scaled[0] == plain[0], "at its base nothing is scaled"
    assert plain[1] / plain[0] > 2
    assert 0.6 < scaled[1] / scaled[0] < 1.5


def test_embeddings_alone_take_another_rate(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    rates: dict[str, object] = {"model.num_layers": 1, "training.weight_decay": 0.0}
    rates |= {"training.learning_rate_warmup_steps": 0, "training.clip_gradient_norm": None}
    moved = []
    for factor in (1.0, 0.25):
        trainer = Trainer(experiment_of(rates | {"training.embedding_rate_factor": factor}), ALONE, tmp_path)
        before = {name: value.detach().clone() for name, value in trainer.stage.named_parameters()}
        trainer.step(1)
        moved.append({name: value.detach() - before[name] for name, value in trainer.stage.named_parameters()})
    for name in moved[0]:
        expected = moved[0][name] * (0.25 if name.startswith("embedding.") else 1.0)
        torch.testing.assert_close(moved[1][name], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("change", ["optimizer=muon", "embedding_rate_factor=2.0", "mup_base_width=64"])
def test_another_program_that_is_not_told_is_refused(change: str) -> None:
    plan = ["model=llama-2-7b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=64"]
    plan += ["parallel.world_size=8", f"training.{change}"]
    key = change.split("=")[0]
    with refused(InfeasiblePlan, f"training.{key}"):
        load([*plan, "trainer=megatron-lm"]).experiment()
    own = ["trainer=command", f"trainer.command=[train, '{{training.{key}}}']"]
    assert load([*plan, *own]).experiment().trainer.trains


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model.tied_embeddings": False, "training.optimizer": "muon"},
    ],
)
def test_mup_is_refused_where_it_has_no_rule(values: dict[str, object], experiment_of: ExperimentOf) -> None:
    with refused(ConfigError, "training.mup_base_width"):
        experiment_of({"training.mup_base_width": 16} | values)
