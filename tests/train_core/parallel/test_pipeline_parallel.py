"""The pipeline against torch's own, and its evaluation without gradients."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.parallel.main_gradient import main_gradient
from train_core.parallel.pipeline_parallel import MicroBatch
from train_core.parallel.schedules import forward_only
from train_core.process.world import World
from train_core.training.trainer import Trainer

PIPELINE = {
    "parallel.world_size": 2,
    "parallel.pipeline_parallel_size": 2,
    "batch.micro_batch_size": 2,
    "batch.global_batch_size": 8,
}
INTERLEAVED = {"parallel.schedule": "interleaved", "parallel.virtual_pipeline_size": 4}
LAYOUTS: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "interleaved": INTERLEAVED,
    "zero-bubble": {"parallel.schedule": "zero-bubble"},
}


class Logits(nn.Module):
    """A stage whose last one ends with logits (s, b, V), as torch wants to compute the loss itself."""

    def __init__(self, chunk: Any) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(self, x: Tensor) -> Tensor:
        if self.chunk.embedding is not None:
            x = self.chunk.embedding(x)
        for layer in self.chunk.layers.values():
            x = layer(x)
        return x if self.chunk.head is None else self.chunk.head(self.chunk.final_norm(x))


def gradients_of(trainer: Trainer) -> dict[str, Tensor]:
    named = ((name, main_gradient(parameter)) for name, parameter in trainer.stage.named_parameters())
    return {name: gradient.buffer.clone() for name, gradient in named if gradient is not None}


def run_own_and_torch(world: World, experiment: Experiment, cache_dir: Path, schedule_name: str) -> tuple[Any, ...]:
    """Both losses (0 on the first stage), and the largest difference between gradients, relative to the largest one."""
    from torch.distributed import pipelining

    trainer, m = Trainer(experiment, world, cache_dir), experiment.num_micro_batches
    trainer.replicas.zero_gradients()
    loss = trainer.pipeline.run(trainer.actions, partial(trainer.batches.micro_batch, 1)) / m
    own = gradients_of(trainer)
    batches = [trainer.batches.micro_batch(1, index) for index in range(m)]
    tokens, targets = (torch.cat(parts, dim=1) for parts in zip(*(batch[:2] for batch in batches), strict=True))
    stage = pipelining.PipelineStage(Logits(trainer.stage.chunks[0]), world.rank, world.size, world.device)
    schedule = getattr(pipelining, schedule_name)(
        stage,
        m,
        # torch cuts targets along dim 0 alone.
        loss_fn=lambda logits, target: functional.cross_entropy(logits.flatten(0, 1), target.t().flatten()),
        args_chunk_spec=(pipelining.microbatch.TensorChunkSpec(1),),
    )
    losses: list[Tensor] = []
    for _ in range(2):  # the first step also runs passes that find out shapes, and add to gradients
        trainer.replicas.zero_gradients()
        if world.rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets.t(), losses=losses)
    theirs = gradients_of(trainer)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    difference = max(float((own[name] - theirs[name]).abs().max()) for name in own)
    return float(loss), float(torch.stack(losses).detach().mean()) if losses else 0.0, difference / largest


@pytest.mark.parametrize(("layout", "schedule"), [("1f1b", "Schedule1F1B"), ("zero-bubble", "ScheduleGPipe")])
def test_gradients_are_those_of_torch_pipelining(
    layout: str, schedule: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    answers = worlds(2).run(run_own_and_torch, experiment_of(PIPELINE | LAYOUTS[layout]), tmp_path, schedule)
    for loss, torch_loss, difference in answers:
        assert loss == pytest.approx(torch_loss, rel=1e-6)
        assert difference < 1e-5
    assert answers[1][0] > 1


def evaluate_and_step(world: World, experiments: list[Experiment], cache_dir: Path) -> list[tuple[float, float, int]]:
    """Of each the evaluated loss on this rank, the loss of the first step, and what evaluation has kept."""
    told = []
    for experiment in experiments:
        trainer, m = Trainer(experiment, world, cache_dir), experiment.num_micro_batches
        batch = partial(trainer.batches.micro_batch, 1)
        with torch.no_grad():
            loss = trainer.pipeline.run(forward_only(experiment, m), batch) / m
        told.append((float(loss), trainer.step(1).loss, len(trainer.pipeline._kept)))
    return told


def test_evaluation_gives_the_loss_of_the_last_stage_and_keeps_nothing(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiments = [experiment_of(PIPELINE | values) for values in LAYOUTS.values()]
    first_stage, last_stage = worlds(2).run(evaluate_and_step, experiments, tmp_path)
    assert [loss for loss, _, _ in first_stage] == [0.0] * len(experiments)
    assert [loss for loss, _, _ in last_stage] == pytest.approx([loss for _, loss, _ in last_stage], rel=1e-6)
    assert {kept for *_, kept in first_stage + last_stage} == {0}


def ask_for_tokens(world: World, experiment: Experiment, cache_dir: Path) -> list[int]:
    """Which micro-batches a stage reads."""
    trainer, asked = Trainer(experiment, world, cache_dir), list[int]()

    def batch(index: int) -> MicroBatch:
        asked.append(index)
        return trainer.batches.micro_batch(1, index)

    trainer.pipeline.run(trainer.actions, batch)
    return asked


@pytest.mark.parametrize(
    ("separate", "inner"),
    [
        pytest.param(False, [], id="only the first and the last chunk"),
        pytest.param(True, [0, 1, 2, 3], id="every stage once where documents are separate"),
    ],
)
def test_who_reads_tokens(
    separate: bool, inner: list[int], worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 1000)
    values = PIPELINE | INTERLEAVED | {"parallel.world_size": 4, "parallel.pipeline_parallel_size": 4}
    values |= {"parallel.virtual_pipeline_size": 2, "data.path": str(tmp_path), "data.separate_documents": separate}
    read = worlds(4).run(ask_for_tokens, experiment_of(values), tmp_path / "tokens")
    assert [sorted(asked) for asked in read] == [[0, 1, 2, 3], inner, inner, [0, 1, 2, 3]]
