"""The formulas against the real model: on the meta device and under fake tensors nothing is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from conf.experiment import Experiment
from conf.load import load, options
from conf.schema import ModelSpec, Recompute
from tests.train_core.costs.llama import Llama
from train_core.costs import hardware_flops, model_flops, num_parameters
from train_core.costs.estimate import plan_of, setting_of
from train_core.costs.parameters import stage_parameters
from train_core.costs.work import work_of
from train_core.mesh import Layout, build_mesh
from train_core.model import GPT
from train_core.parallelize import Stage, apply_recompute, parallelize

NUM_SEQUENCES = 2


def counted_flops(model: GPT | Llama, tokens_shape: tuple[int, int]) -> int:
    tokens = torch.zeros(tokens_shape, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    return counter.get_total_flops()


def assert_exact(spec: ModelSpec) -> None:
    with torch.device("meta"):
        model = GPT(spec) if spec.family == "gpt" else Llama(spec)
    shape = (spec.seq_length, NUM_SEQUENCES) if spec.family == "gpt" else (NUM_SEQUENCES, spec.seq_length)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters(spec)
    assert counted_flops(model, shape) == model_flops(spec, NUM_SEQUENCES)


@pytest.mark.parametrize("name", options("model"))
def test_parameters_and_model_flops_equal_the_real_model(name: str) -> None:
    assert_exact(load([f"model={name}"]).model)


@pytest.mark.parametrize(
    "override",
    ["model.num_query_groups=2", "model.head_size=64", "model.gated_mlp=false", "model.tied_embeddings=true"],
)
def test_parameters_and_model_flops_follow_every_part_of_a_llamas_shape(override: str) -> None:
    assert_exact(load(["model=llama-3.1-8b", "model.num_layers=2", override]).model)


def test_full_recomputation_repeats_all_of_a_layers_forward_but_its_last_product() -> None:
    """Torch stops repeating once it has what backward needs; the published convention counts the last product too."""
    spec = load(["model=gpt-175b", "model.num_layers=4"]).model
    with torch.device("meta"):
        model = GPT(spec)
    apply_recompute(model, "full")
    last_product = 2 * NUM_SEQUENCES * spec.seq_length * spec.ffn_hidden_size * spec.hidden_size
    executed = hardware_flops(spec, NUM_SEQUENCES, "full") - spec.num_layers * last_product
    assert counted_flops(model, (spec.seq_length, NUM_SEQUENCES)) == executed


FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _square_products(count: int) -> Callable[..., int]:
    def flops(*shapes: Any, out_val: Any = None, **_: Any) -> int:
        b, heads, s, head_size = shapes[0].shape if hasattr(shapes[0], "shape") else shapes[0]
        return count * 2 * b * heads * s * s * head_size

    return flops


def test_selective_recomputation_repeats_the_attention_core() -> None:
    """With the flash kernel, whose products torch's counter does not know on a CPU: two forward, four backward."""
    experiment = experiment_of("gpt-175b", 1, 1, "model.num_layers=4", "parallel.recompute=selective")
    spec = experiment.model
    known = {FLASH: _square_products(2), FLASH_BACKWARD: _square_products(4)}
    with fake_stage(experiment, rank=0) as built, FlopCounterMode(display=False, custom_mapping=known) as counter:
        tokens = torch.zeros(spec.seq_length, NUM_SEQUENCES, dtype=torch.long)
        built.model(tokens, tokens).backward()
    # the trainer's own functions run their weight gradients inside backward, where the counter sees them too
    assert counter.get_total_flops() == hardware_flops(spec, NUM_SEQUENCES, "selective")


@contextmanager
def fake_stage(experiment: Experiment, rank: int) -> Iterator[Stage]:
    """What the trainer builds on one rank of a world that does not exist."""
    dist.init_process_group("fake", rank=rank, world_size=experiment.parallel.world_size, store=FakeStore())
    try:
        with FakeTensorMode():
            yield parallelize(experiment, build_mesh(Layout.of(experiment), rank), torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def experiment_of(model: str, tensor: int, pipeline: int, *overrides: str) -> Experiment:
    sizes = [f"parallel.tensor_parallel_size={tensor}", f"parallel.pipeline_parallel_size={pipeline}"]
    world = [f"parallel.world_size={tensor * pipeline}", "cluster=frontier", "cluster.num_nodes=64", "precision=bf16"]
    return load([f"model={model}", *sizes, *world, *overrides]).experiment()


@pytest.mark.parametrize(
    ("model", "tensor", "pipeline"), [("gpt-22b", 1, 8), ("gpt-22b", 8, 1), ("gpt-175b", 4, 16), ("gpt-1t", 8, 64)]
)
def test_parameters_of_first_middle_and_last_stage_equal_the_trainers(model: str, tensor: int, pipeline: int) -> None:
    experiment = experiment_of(model, tensor, pipeline)
    for stage in sorted({0, pipeline // 2, pipeline - 1}):
        with fake_stage(experiment, rank=stage * tensor) as built:
            assert sum(p.numel() for p in built.model.parameters()) == stage_parameters(experiment, stage)


def kept_bytes(experiment: Experiment) -> int:
    """Storage that one layer's forward pass keeps for backward, parameters aside."""
    model, parallel = experiment.model, experiment.parallel
    rows = model.seq_length // (parallel.tensor_parallel_size if parallel.sequence_parallel else 1)
    with fake_stage(experiment, rank=0) as built:
        parameters = {parameter.untyped_storage()._cdata for parameter in built.model.parameters()}
        kept: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage()._cdata not in parameters:
                kept[tensor.untyped_storage()._cdata] = tensor
            return tensor

        shape = (rows, experiment.batch.micro_batch_size, model.hidden_size)
        x = torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = built.model.layers["0"](x)
        del out
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (4, False), (4, True), (8, True)])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_activation_bytes_of_a_layer_equal_the_trainers(
    recompute: Recompute, tensor: int, sequence: bool, micro_batch: int
) -> None:
    experiment = experiment_of(
        "gpt-175b",
        tensor,
        1,
        "model.num_layers=1",
        f"parallel.sequence_parallel={str(sequence).lower()}",
        f"parallel.recompute={recompute}",
        f"batch.micro_batch_size={micro_batch}",
    )
    assert kept_bytes(experiment) == work_of(setting_of(experiment), plan_of(experiment)).layer.kept_bytes[0]
