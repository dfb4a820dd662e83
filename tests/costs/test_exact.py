"""The formulas against the real model: on the meta device and under fake tensors nothing is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from conf.folders import options
from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec
from conf.types.recompute import RECOMPUTES, Recompute
from costs import estimate, hardware_flops, model_flops, num_parameters
from costs.axes import Layout
from costs.collectives import ring_of
from costs.counts.buckets import parameters_of
from costs.estimate import plan_of, setting_of
from costs.stages import StageGroup
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas
from costs.step.stage_memory import group_memory
from costs.work import work_of
from tests.composed import load
from tests.costs.llama import Llama
from tests.costs.priced import unscaled, with_links, with_trainer
from train_core.model.attention import CausalAttention
from train_core.model.dropout import AttentionWithDropout
from train_core.model.transformer import Transformer
from train_core.parallel.groups import build_mesh
from train_core.parallel.main_gradient import deferred_products
from train_core.parallel.offload import HostMemory
from train_core.parallel.parallelize import Stage, parallelize, treatment_of

NUM_SEQUENCES = 2


def counted_flops(model: Transformer | Llama, tokens_shape: tuple[int, int]) -> int:
    tokens = torch.zeros(tokens_shape, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    return int(counter.get_total_flops())


def assert_exact(model: Transformer | Llama, spec: ModelSpec) -> None:
    shape = (spec.seq_length, NUM_SEQUENCES) if isinstance(model, Transformer) else (NUM_SEQUENCES, spec.seq_length)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters(spec)
    assert counted_flops(model, shape) == model_flops(spec, NUM_SEQUENCES)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", options("model"))
def test_parameters_and_model_flops_equal_the_real_model(name: str) -> None:
    """FLOPs of one layer and of two, for every further layer is the same; those of all layers in the test below.

    Dense first layers are left out of one that is as long as they are.
    """
    spec = load([f"model={name}"]).model
    dense = 0 if spec.experts is None else spec.num_dense_layers
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in Transformer(spec).parameters()) == num_parameters(spec)
        for num_layers in (dense + 1, dense + 2):
            short = spec.model_copy(update={"num_layers": num_layers})
            assert_exact(Transformer(short), short)


def test_parameters_follow_the_biases_of_queries_keys_and_values() -> None:
    spec = load(["model=llama-3.1-8b", "model.num_layers=2", "model.qkv_bias=true"]).model
    with torch.device("meta"):
        assert_exact(Transformer(spec), spec)
    assert num_parameters(spec) - num_parameters(spec.model_copy(update={"qkv_bias": False})) == 2 * (4096 + 2 * 1024)


@pytest.mark.thorough  # than those of each kind of layer above
@pytest.mark.parametrize("name", ["gpt-1.4b", "llama-3.1-8b"])
def test_model_flops_of_all_layers_equal_the_real_models(name: str) -> None:
    spec = load([f"model={name}"]).model
    with torch.device("meta"):
        assert_exact(Transformer(spec), spec)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "override",
    ["model.num_query_groups=2", "model.head_size=64", "model.gated_mlp=false", "model.tied_embeddings=true"],
)
@pytest.mark.parametrize("kind", [Transformer, Llama], ids=["the trainer's", "a plain one"])
def test_parameters_and_model_flops_follow_every_part_of_a_llamas_shape(
    kind: type[Transformer | Llama], override: str
) -> None:
    spec = load(["model=llama-3.1-8b", "model.num_layers=2", override]).model
    with torch.device("meta"):
        assert_exact(kind(spec), spec)


FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _square_products(count: int) -> Callable[..., int]:
    def flops(*shapes: Any, out_val: Any = None, **_: Any) -> int:
        b, heads, s, head_size = shapes[0].shape if hasattr(shapes[0], "shape") else shapes[0]
        return int(count * 2 * b * heads * s * s * head_size)

    return flops


PRODUCTS_OF_ATTENTION = {FLASH: _square_products(2), FLASH_BACKWARD: _square_products(4)}


@pytest.mark.slow
@pytest.mark.parametrize("recompute", RECOMPUTES)
def test_the_trainer_multiplies_exactly_the_hardware_flops(recompute: Recompute) -> None:
    """With the flash kernel, whose products torch's counter does not know on a CPU: two forward, four backward.

    Under full recomputation torch would stop before a plain layer's last product, whose result backward does not need;
    the trainer's own functions are repeated whole.
    """
    experiment = experiment_of("gpt-175b", 1, 1, "model.num_layers=4", f"parallel.recompute={recompute}")
    spec = experiment.model
    counting = FlopCounterMode(display=False, custom_mapping=PRODUCTS_OF_ATTENTION)
    with fake_stage(experiment, rank=0) as built, counting as counter:
        tokens = torch.zeros(spec.seq_length, NUM_SEQUENCES, dtype=torch.long)
        built.chunks[0](tokens, tokens).backward()
    # the trainer's own functions run their weight gradients inside backward, where the counter sees them too
    assert counter.get_total_flops() == hardware_flops(spec, NUM_SEQUENCES, recompute)


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("model", "tensor", "pipeline"),
    [("gpt-22b", 1, 8), ("gpt-22b", 8, 1), ("gpt-175b", 4, 16), ("gpt-1t", 8, 64), ("llama-3.1-8b", 2, 4)],
)
def test_parameters_of_first_middle_and_last_stage_equal_the_trainers(model: str, tensor: int, pipeline: int) -> None:
    experiment = experiment_of(model, tensor, pipeline)
    stages = estimate(experiment).stages
    for stage in sorted({0, pipeline // 2, pipeline - 1}):
        with fake_stage(experiment, rank=stage * tensor) as built:
            assert sum(p.numel() for p in built.chunks[0].parameters()) == stages[stage].parameters


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("llama-3.1-8b", "model.qkv_bias=true"),
        ("llama-3.1-8b", "model.qk_norm=true"),
        ("deepseek-v2", "model.experts=null"),
        ("deepseek-v2", "model.latent_attention.query_rank=null"),
    ],
)
def test_parameters_in_the_order_of_the_trainers_buckets_have_every_part(model: str, part: str, sequence: bool) -> None:
    overrides = [part, f"parallel.sequence_parallel={str(sequence).lower()}", "model.experts=null"]
    experiment = experiment_of(model, 2, 1, "model.num_layers=2", *overrides)
    with fake_stage(experiment, rank=0) as built:
        shapes = [tuple(parameter.shape) for _, parameter in built.named_parameters()]
        treated = [treatment_of(built, name, parameter) for name, parameter in built.named_parameters()]
    parameters = list(parameters_of(experiment, 0))
    listed = [(one.rows,) if one.columns == 1 else (one.rows, one.columns) for one in parameters]
    assert sorted(zip(listed, (one.treatment for one in parameters), strict=True)) == sorted(
        zip(shapes, treated, strict=True)
    )


def layer_shape(experiment: Experiment) -> tuple[int, int, int]:
    """What a layer takes and returns on one rank: (s/c, b, h), or (s/c/t, b, h) with sequence parallelism."""
    model, parallel = experiment.model, experiment.parallel
    tokens = model.seq_length // parallel.context_parallel_size
    rows = tokens // (parallel.tensor_parallel_size if parallel.sequence_parallel else 1)
    return rows, experiment.batch.micro_batch_size, model.hidden_size


@contextmanager
def keeping(built: Stage) -> Iterator[list[torch.Tensor]]:
    """What forward passes keep for backward, aside from parameters and the table of rotary positions."""
    chunk = built.chunks[0]
    parameters = {tensor.untyped_storage()._cdata for tensor in (*chunk.parameters(), *chunk.buffers())}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in parameters:
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def num_bytes_of(tensors: list[torch.Tensor]) -> int:
    """Of their storage, which several may share."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def assert_bytes_are_those_of_the_trainer(experiment: Experiment, share: float = 0.0) -> None:
    """What one layer's forward pass keeps, which may differ by so much, and its weight gradients that are put off."""
    expected = work_of(setting_of(experiment), plan_of(experiment)).layer
    with fake_stage(experiment, rank=0) as built, deferred_products() as products:
        x = torch.empty(layer_shape(experiment), dtype=torch.bfloat16, requires_grad=True)
        with keeping(built) as kept:
            out = built.chunks[0].layers["0"](x, built.chunks[0].rotary)
        assert num_bytes_of(kept) == pytest.approx(expected.kept_bytes[0], rel=share, abs=0)
        kept.clear()
        out.backward(torch.empty_like(out))
        deferred = num_bytes_of([tensor for product in products for tensor in product.args[1:3]])
        assert deferred == expected.kept_bytes[0] + expected.deferred_bytes[0]


@pytest.mark.covering
@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (4, False), (4, True), (8, True)])
@pytest.mark.parametrize(("model", "micro_batch"), [("gpt-175b", 1), ("gpt-175b", 2), ("llama-3.1-8b", 2)])
def test_activation_bytes_of_a_layer_equal_the_trainers(
    recompute: Recompute, tensor: int, sequence: bool, model: str, micro_batch: int
) -> None:
    experiment = experiment_of(
        model,
        tensor,
        1,
        "model.num_layers=1",
        f"parallel.sequence_parallel={str(sequence).lower()}",
        f"parallel.recompute={recompute}",
        f"batch.micro_batch_size={micro_batch}",
    )
    assert_bytes_are_those_of_the_trainer(experiment)


@pytest.mark.parametrize("more", ["model.head_size=128", "model.gated_mlp=true", "parallel.recompute=selective"])
@pytest.mark.parametrize("tensor", [1, 4])
def test_activation_bytes_of_a_layer_without_turned_heads_equal_the_trainers_in_groups(tensor: int, more: str) -> None:
    groups = ["model.num_attention_heads=16", "model.num_query_groups=8", "model.hidden_size=1024"]
    overrides = ["model.num_layers=1", "batch.micro_batch_size=2", "parallel.recompute=none", *groups, more]
    assert_bytes_are_those_of_the_trainer(experiment_of("gpt-22b", tensor, 1, *overrides))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (4, False), (4, True)])
def test_activation_bytes_of_a_layer_with_norms_of_heads_equal_the_trainers(
    recompute: Recompute, tensor: int, sequence: bool
) -> None:
    overrides = [f"parallel.sequence_parallel={str(sequence).lower()}", f"parallel.recompute={recompute}"]
    experiment = experiment_of("llama-3.1-8b", tensor, 1, "model.num_layers=1", "model.qk_norm=true", *overrides)
    assert_bytes_are_those_of_the_trainer(experiment)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("rank", ["1536", "null"])
def test_activation_bytes_of_a_layer_with_latent_attention_equal_the_trainers(
    recompute: Recompute, tensor: int, sequence: bool, rank: str
) -> None:
    overrides = [f"parallel.sequence_parallel={str(sequence).lower()}", f"parallel.recompute={recompute}"]
    overrides += ["model.experts=null", f"model.latent_attention.query_rank={rank}", "model.num_layers=1"]
    experiment = experiment_of("deepseek-v2", tensor, 1, *overrides)
    assert_bytes_are_those_of_the_trainer(experiment)


@pytest.mark.one_in(24)
@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (4, True)])
@pytest.mark.parametrize(("context", "exchange"), [(2, "ring"), (4, "gather"), (8, "ring")])
@pytest.mark.parametrize(("model", "micro_batch"), [("gpt-175b", 2), ("llama-3.1-8b", 1)])
def test_activation_bytes_of_a_layer_of_context_ranks_equal_the_trainers(
    recompute: Recompute, tensor: int, sequence: bool, context: int, exchange: str, model: str, micro_batch: int
) -> None:
    experiment = experiment_of(
        model,
        tensor,
        1,
        "model.num_layers=1",
        f"parallel.world_size={tensor * context}",
        f"parallel.context_parallel_size={context}",
        f"parallel.context_exchange={exchange}",
        f"parallel.sequence_parallel={str(sequence).lower()}",
        f"parallel.recompute={recompute}",
        f"batch.micro_batch_size={micro_batch}",
    )
    assert_bytes_are_those_of_the_trainer(experiment)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tensor", "context", "exchange"), [(1, 2, "ring"), (4, 4, "gather")])
def test_activation_bytes_of_a_layer_of_context_ranks_with_latent_attention_equal_the_trainers(
    recompute: Recompute, tensor: int, context: int, exchange: str
) -> None:
    overrides = [f"parallel.context_parallel_size={context}", f"parallel.context_exchange={exchange}"]
    overrides += [f"parallel.world_size={tensor * context}", f"parallel.recompute={recompute}"]
    overrides += [f"parallel.sequence_parallel={str(tensor > 1).lower()}", "model.experts=null", "model.num_layers=1"]
    experiment = experiment_of("deepseek-v2", tensor, 1, *overrides)
    assert_bytes_are_those_of_the_trainer(experiment)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (1, 8), (4, 8)])
@pytest.mark.parametrize("shared", [0, 14336])
def test_activation_bytes_of_a_layer_with_experts_equal_the_trainers(
    recompute: Recompute, tensor: int, expert: int, shared: int
) -> None:
    """But for scores, weights and places, a few values per token, where each expert gets as many as any other."""
    experiment = experiment_of(
        "mixtral-8x7b",
        tensor,
        1,
        "model.num_layers=1",
        f"model.experts.shared_ffn_hidden_size={shared}",
        f"parallel.world_size={tensor * expert}",
        f"parallel.sequence_parallel={str(tensor > 1).lower()}",
        f"parallel.expert_parallel_size={expert}",
        "parallel.expert_tensor_parallel_size=1",
        f"parallel.recompute={recompute}",
    )
    assert_bytes_are_those_of_the_trainer(experiment, share=1e-3)


@pytest.mark.parametrize("recompute", ["none", "full", "pointwise"])
@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (4, True)])
def test_activation_bytes_of_a_layer_that_drops_values_equal_the_trainers(
    recompute: Recompute, tensor: int, sequence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With attention as a fused kernel has it, which draws its mask anew in backward; a CPU has none with dropout."""
    monkeypatch.setattr(AttentionWithDropout, "attend", CausalAttention.attend)
    overrides = [f"parallel.sequence_parallel={str(sequence).lower()}", f"parallel.recompute={recompute}"]
    experiment = experiment_of("gpt-175b", tensor, 1, "model.num_layers=1", "training.dropout=0.1", *overrides)
    assert_bytes_are_those_of_the_trainer(experiment)


def test_a_middle_stage_keeps_its_layers_activations_and_its_output() -> None:
    experiment = experiment_of(
        "gpt-175b", 4, 16, "parallel.sequence_parallel=false", "parallel.recompute=full", "batch.global_batch_size=1"
    )
    plans, setting = plan_of(experiment), setting_of(experiment)
    group = StageGroup(*map(np.array, ([1], [7], [6], [0], [0])))
    stage = group_memory(PricedStage(PricedReplicas(setting, plans), work_of(setting, plans), group))
    with fake_stage(experiment, rank=7 * 4) as built:
        x = torch.empty(2048, 1, 12288, dtype=torch.bfloat16, requires_grad=True)
        with keeping(built) as kept:
            out = built.chunks[0](x)
    assert stage.activations_bytes[0] == num_bytes_of([*kept, out])


class Sent(TorchDispatchMode):
    """Bytes that collectives pass through a rank: of a gather or a scatter all but its own, of a sum twice that."""

    def __init__(self, num_ranks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes, self.share = 0.0, (num_ranks - 1) / num_ranks

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            tensors = args[0] if "allreduce" in str(function) else args[:2]
            passes = 2 if "allreduce" in str(function) else 1
            self.num_bytes += passes * self.share * max(tensor.nbytes for tensor in tensors)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("sequence", [False, True])
def test_bytes_of_a_layers_collectives_equal_the_trainers(sequence: bool, recompute: Recompute) -> None:
    experiment = experiment_of(
        "gpt-175b",
        8,
        1,
        "model.num_layers=1",
        f"parallel.sequence_parallel={str(sequence).lower()}",
        f"parallel.recompute={recompute}",
        "batch.micro_batch_size=2",
    )
    without_latency = unscaled(with_links(setting_of(experiment), latency_seconds=0.0))
    setting = with_trainer(without_latency, overlaps_weight_gradient=False)
    rate = ring_of(setting, np.array([8]), np.array([1])).bandwidth[0]
    layer = work_of(setting, plan_of(experiment)).layer
    with fake_stage(experiment, rank=0) as built, Sent(8) as sent:
        x = torch.empty(layer_shape(experiment), dtype=torch.bfloat16, requires_grad=True)
        out = built.chunks[0].layers["0"](x, built.chunks[0].rotary)
        forward = sent.num_bytes
        out.backward(torch.empty_like(out))
    assert layer.tensor_forward_seconds[0] * rate == pytest.approx(forward)
    assert layer.tensor_backward_seconds[0] * rate == pytest.approx(sent.num_bytes - forward)


class Weighed(HostMemory):
    """Counts the bytes that it takes, and keeps nothing."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def take(self, flat: torch.Tensor) -> None:
        self.num_bytes += flat.nbytes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("model", ["gpt-22b", "llama-3.1-8b"])
def test_offloaded_bytes_equal_the_trainers_and_are_all_that_is_added_to_a_step(model: str, recompute: str) -> None:
    """Of four layers all that they keep goes, but for the first one's input, and comes back; nothing hides it."""
    more = ["model.num_layers=4", f"parallel.recompute={recompute}", "parallel.sequence_parallel=true"]
    plain, offloading = (
        experiment_of(model, 4, 1, *more, f"parallel.offload_activations={on}") for on in ("false", "true")
    )
    weighed, work = Weighed(), work_of(setting_of(plain), plan_of(plain))
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        with FakeTensorMode():
            mesh = build_mesh(Layout.of(offloading), 0)
            chunk = parallelize(offloading, mesh, torch.device("cpu"), host=weighed).chunks[0]
            tokens = torch.zeros(plain.model.seq_length, plain.batch.micro_batch_size, dtype=torch.long)
            chunk(tokens, tokens)
    finally:
        dist.destroy_process_group()
    expected = int(4 * work.layer.kept_bytes[0] - work.held_hidden_bytes[0])
    assert weighed.num_bytes == expected
    seconds = [estimate(each).step_terms.compute_seconds for each in (plain, offloading)]
    rounds = 2 * plain.num_micro_batches * expected / plain.cluster.host_bytes_per_second
    assert seconds[1] - seconds[0] == pytest.approx(rounds, rel=1e-9)
