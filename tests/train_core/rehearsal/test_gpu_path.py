"""The trainer's own code for GPUs, on fake CUDA tensors: what it asks of a device, seen operation by operation.

Nothing is computed, so that this says nothing of numbers or of time. What `gpu_stand_ins` stands in for is not the
trainer's; every part of the trainer is the one that trains, but for FSDP2's view of the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from conf.compose.settings import Settings
from conf.compose.tree import with_values
from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.types.recompute import RECOMPUTES
from conf.units import FLOAT32_BYTES
from costs.axes import Layout
from costs.estimate import plan_of, setting_of
from costs.work import work_of
from tests.composed import compose_tree
from tests.costs.test_exact import keeping, num_bytes_of
from tests.covering import covering
from tests.train_core.rehearsal.gpu_observer import GpuObserver, Wait, without_kernel
from tests.train_core.rehearsal.gpu_stand_ins import GPU, FakeGpuMode, no_driver
from train_core.model import elementwise
from train_core.model.initialize import DTYPES
from train_core.parallel.clock import DeviceClock
from train_core.parallel.data_parallel import FlatReplicas, Replicas, replicas_of
from train_core.parallel.fully_sharded import FullySharded
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage
from train_core.process.world import World
from train_core.training.meter import held_out_losses
from train_core.training.trainer import Trainer, TrainerParts

AMPERE, VOLTA = (8, 0), (7, 0)
READ_OF_A_STEP = [Wait("a value that is read", None)]
"""All that the host waits for in a step: the mean loss and the gradient's norm of the whole job, read together."""


REFUSED_WHEN_DETERMINISTIC = {
    f"aten::{name}"
    for name in ("nll_loss", "nll_loss_forward", "put_", "histc", "bincount", "median", "cumsum", "scatter_reduce")
}
"""Operations that torch has no deterministic form of on a GPU, but for those of images. Source: the documentation of
torch.use_deterministic_algorithms, torch 2.13."""


class Case(NamedTuple):
    """One rank of one layout. `place` says which of four stages; a rank alone in its pipeline is the first and last."""

    schedule: str
    place: str
    tensor: str
    zero_stage: int
    family: str
    precision: str
    recompute: str
    dropout: float

    @property
    def stage(self) -> int:
        return {"first": 0, "middle": 1, "last": 3, "alone": 0}[self.place]

    def experiment(self) -> Experiment:
        pipeline, tensor = (1 if self.place == "alone" else 4), (1 if self.tensor == "whole" else 2)
        chunks = 2 if self.schedule == "interleaved" else 1
        return experiment_of(
            {
                "parallel.schedule": self.schedule,
                "parallel.world_size": 2 * tensor * pipeline,
                "parallel.pipeline_parallel_size": pipeline,
                "parallel.virtual_pipeline_size": chunks,
                "parallel.tensor_parallel_size": tensor,
                "parallel.sequence_parallel": self.tensor == "sequence",
                "parallel.zero_stage": self.zero_stage,
                "parallel.recompute": self.recompute,
                "precision.dtype": self.precision,
                "training.dropout": self.dropout,
                "model.num_layers": pipeline * chunks,
                "batch.global_batch_size": 2 * max(2, pipeline),
            }
            | (LLAMA if self.family == "llama" else {})
        )


LLAMA = {
    "model.family": "llama",
    "model.gated_mlp": True,
    "model.tied_embeddings": False,
    "model.rotary_base": 10000.0,
    "model.num_query_groups": 2,
}
SMALL = {
    "model.hidden_size": 32,
    "model.num_attention_heads": 4,
    "model.num_query_groups": 4,
    "model.seq_length": 16,
    "batch.micro_batch_size": 1,
    "data.source": "synthetic",
    "training.num_steps": 3,
    "training.num_warmup_steps": 1,
}


def experiment_of(values: dict[str, Any], cluster: str = "selene") -> Experiment:
    tree = compose_tree(["model=tiny", f"cluster={cluster}"])
    return Settings.model_validate(with_values(tree, SMALL | values)).experiment()


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
PLACES = ("first", "middle", "last", "alone")
TENSORS = ("whole", "split", "sequence")


def cases() -> list[Case]:
    every = product(
        SCHEDULES, PLACES, TENSORS, range(4), ("gpt", "llama"), ("bf16", "fp16", "fp32"), RECOMPUTES, (0.0, 0.1)
    )
    possible = [case for case in map(Case._make, every) if is_possible(case)]
    return covering(possible, lambda case: case._asdict())


EACH_VALUE = (
    Case("gpipe", "first", "whole", 0, "gpt", "bf16", "none", 0.0),
    Case("1f1b", "middle", "split", 1, "llama", "fp16", "selective", 0.1),
    Case("1f1b", "alone", "sequence", 3, "llama", "bf16", "pointwise", 0.1),
    Case("interleaved", "last", "sequence", 2, "gpt", "fp32", "full", 0.1),
    Case("zero-bubble", "middle", "whole", 1, "llama", "bf16", "none", 0.0),
)
"""Each value of each option is in one; those of `cases`, which `make test-all` runs too, have each pair of values."""


def is_possible(case: Case) -> bool:
    """True if the layout can exist. It is asked of thousands, so that no layout is validated."""
    return case.schedule == "1f1b" if case.place == "alone" else case.zero_stage < 3


def replicas_on_gpus(stage: Stage, mesh: Mesh, experiment: Experiment) -> Replicas:
    """Those that train; FSDP2's view of them is not made of fake tensors, because it reads the ranks from it."""
    if not experiment.is_fully_sharded:
        return replicas_of(stage, mesh, experiment)

    def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
        with _disable_current_modes():
            return DeviceMesh.from_group(group, "cuda")

    return FullySharded(stage, mesh, experiment, mesh_of)


@contextmanager
def trainer_on_gpu(
    experiment: Experiment, stage: int, cache_dir: Path, capability: tuple[int, int] = AMPERE
) -> Iterator[tuple[Trainer, GpuObserver]]:
    """The trainer of a stage's first rank, of which the observer sees what is done inside the block."""
    layout = Layout.of(experiment)
    rank = layout.rank(stage)
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
    try:
        with no_driver(capability), FakeGpuMode() as fake:
            world = World(rank, layout.world_size, GPU, "fake", DeviceClock())
            trainer = Trainer(experiment, world, cache_dir, TrainerParts(replicas=replicas_on_gpus))
            fake.steps, observer = True, GpuObserver(world.clock)
            with observer.watching():
                yield trainer, observer
    finally:
        dist.destroy_process_group()


def test_what_is_left_out_of_the_cases_cannot_exist() -> None:
    for layout in product(SCHEDULES, PLACES, TENSORS, range(4), RECOMPUTES):
        case = Case(*layout[:4], "gpt", "bf16", layout[4], 0.0)
        if not is_possible(case):
            with pytest.raises(InfeasiblePlan):
                case.experiment()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        chosen = dict.fromkeys([*EACH_VALUE, *(cases() if metafunc.config.getoption("all_cases") else ())])
        metafunc.parametrize("case", chosen, ids=lambda case: "-".join(map(str, case)))


@pytest.mark.slow
def test_a_step_asks_nothing_of_a_gpu_that_it_lacks_or_that_the_host_waits_for(case: Case, tmp_path: Path) -> None:
    with trainer_on_gpu(case.experiment(), case.stage, tmp_path) as (trainer, seen):
        for step in (1, 2):  # weights that travel beside a forward pass do so from the second step on
            trainer.step(step)
    assert [str(operation) for operation in seen.operations if without_kernel(operation)] == []
    assert not REFUSED_WHEN_DETERMINISTIC & {operation._schema.name for operation in seen.operations}
    has_main_gradients = case.zero_stage < 3
    assert (torch.ops.aten.addmm.dtype_out in seen.operations) == (has_main_gradients and case.precision != "fp32")
    assert seen.on_host == []
    assert seen.waits == 2 * READ_OF_A_STEP


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_offloaded_activations_go_to_pinned_memory_and_come_back_without_a_wait(recompute: str, tmp_path: Path) -> None:
    case = Case("1f1b", "middle", "sequence", 1, "llama", "bf16", recompute, 0.1).experiment()
    values = {"offload_activations": True, "layers_per_stage": (2, 2, 2, 2)}
    model = case.model.model_copy(update={"num_layers": 8})
    parallel = case.parallel.model_copy(update=values)
    with trainer_on_gpu(case.model_copy(update={"model": model, "parallel": parallel}), 1, tmp_path) as (trainer, seen):
        trainer.step(1)
    assert torch.ops.aten._to_copy.default in seen.operations
    assert [str(operation) for operation in seen.operations if without_kernel(operation)] == []
    assert set(seen.on_host) <= {"aten.detach.default"}  # of fake tensors as they are made
    assert seen.waits == READ_OF_A_STEP


def test_the_ways_that_only_gpus_take_are_walked(tmp_path: Path) -> None:
    """Else the walk would show nothing: shards, late weights, wide products, a fused kernel for attention."""
    case = Case("1f1b", "alone", "split", 1, "gpt", "bf16", "none", 0.1)
    with trainer_on_gpu(case.experiment(), case.stage, tmp_path) as (trainer, seen):
        trainer.step(1)
        trainer.replicas.zero_gradients()
        assert isinstance(trainer.replicas, FlatReplicas)
        assert trainer.replicas.gathering, "no weights are on their way"
    done = {str(operation).removesuffix(".default") for operation in seen.operations}
    assert done >= {
        "c10d._reduce_scatter_base_",
        "aten.addmm.dtype_out",
        "aten._scaled_dot_product_flash_attention",
        "aten._scaled_dot_product_flash_attention_backward",
        "aten._fused_adamw_",
    }


def documents(folder: Path) -> None:
    for number in range(9):
        (folder / f"{number}.txt").write_text("some text " * number)


@pytest.mark.parametrize(
    ("precision", "kernel"), [("bf16", "_flash_attention"), ("fp32", "_scaled_dot_product_efficient_attention")]
)
def test_separate_documents_go_through_one_kernel(precision: str, kernel: str, tmp_path: Path) -> None:
    """That for several lengths where it runs, and else the one that takes a mask."""
    documents(tmp_path)
    values = {"data.source": "text", "data.path": str(tmp_path), "data.separate_documents": True}
    batch = {"precision.dtype": precision, "batch.micro_batch_size": 2, "batch.global_batch_size": 2}
    experiment = experiment_of(LLAMA | values | batch | {"training.dropout": 0.1})
    with trainer_on_gpu(experiment, 0, tmp_path / "tokens") as (trainer, seen):
        trainer.step(1)
    done = {str(operation).removesuffix(".default") for operation in seen.operations}
    passes = ("_backward",) if kernel.endswith("product_efficient_attention") else ("_forward", "_backward")
    assert done >= {f"aten.{kernel}{of_pass}" for of_pass in passes}
    assert seen.on_host == []
    assert seen.waits == READ_OF_A_STEP


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shares_out_sequences", [True, False])
def test_kernels_of_attention_that_do_not_pad_get_heads_of_a_multiple_of_eight(
    shares_out_sequences: bool, tmp_path: Path
) -> None:
    documents(tmp_path)
    values: dict[str, Any] = {"model.hidden_size": 48, "precision.dtype": "bf16", "batch.global_batch_size": 1}
    if shares_out_sequences:
        values |= {"parallel.world_size": 2, "parallel.context_parallel_size": 2}
    else:
        values |= {"data.source": "text", "data.path": str(tmp_path), "data.separate_documents": True}
    with trainer_on_gpu(experiment_of(values), 0, tmp_path / "tokens") as (trainer, _), HeadSizes() as seen:
        trainer.step(1)
    assert seen.sizes == {16}, "the heads have 12"


class HeadSizes(TorchDispatchMode):
    """Of what fused kernels of attention are given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in str(func):
            self.sizes.add(args[0].size(-1))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tables_that_ranks_hold_copies_of_are_summed_in_one_order(precision: str, tmp_path: Path) -> None:
    """Each of two tensor ranks computes the whole gradient of learned positions, by no sum that is atomic."""
    documents(tmp_path)
    values = {"data.source": "text", "data.path": str(tmp_path), "data.separate_documents": True}
    plan = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2, "batch.global_batch_size": 1}
    experiment = experiment_of(values | plan | {"precision.dtype": precision})
    with trainer_on_gpu(experiment, 0, tmp_path / "tokens") as (trainer, seen):
        trainer.step(1)
    assert torch.ops.aten.index_put_.default in seen.operations
    assert torch.ops.aten.index_add_.default not in seen.operations
    assert seen.waits == READ_OF_A_STEP


def test_an_evaluation_waits_for_the_device_once(tmp_path: Path) -> None:
    case = Case("1f1b", "last", "sequence", 1, "gpt", "bf16", "none", 0.1)
    with trainer_on_gpu(case.experiment(), case.stage, tmp_path) as (trainer, seen):
        held_out_losses(trainer)
    assert seen.on_host == []
    assert seen.waits == READ_OF_A_STEP


@pytest.mark.parametrize("family", ["gpt", "llama"])
@pytest.mark.parametrize(
    ("cluster", "capability", "precision"),
    [
        ("selene", AMPERE, "bf16"),
        ("selene", AMPERE, "fp16"),
        ("selene", AMPERE, "fp32"),
        ("dgx2-v100", VOLTA, "fp16"),
        ("dgx2-v100", VOLTA, "fp32"),
    ],
)
def test_a_layer_keeps_on_a_gpu_what_the_cost_model_says(
    family: str,
    cluster: str,
    capability: tuple[int, int],
    precision: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Llama's keys and values, which are those of groups, are repeated where the GPU's kernel wants that, and scores
    are stored nowhere.

    Aside from what norms keep of every token, four numbers at most, whose width the cost model does not follow.
    """
    monkeypatch.setattr(elementwise, "HAS_FUSED_RMS_NORM", False)  # fake tensors have no kernel that is one
    model = {"model.num_layers": 1, "model.seq_length": 64} | (LLAMA if family == "llama" else {})
    batch = {"batch.global_batch_size": 1, "precision.dtype": precision}
    experiment = experiment_of(batch | model, cluster)
    with trainer_on_gpu(experiment, 0, tmp_path, capability) as (trainer, _), keeping(trainer.stage) as kept:
        chunk = trainer.stage.chunks[0]
        x = torch.empty(64, 1, 32, dtype=DTYPES[experiment.precision.dtype], device=GPU, requires_grad=True)
        chunk.layers["0"](x, chunk.rotary)
        statistics = 64 * 4 * FLOAT32_BYTES
        expected = work_of(setting_of(experiment), plan_of(experiment)).layer.kept_bytes[0]
        assert num_bytes_of(kept) == pytest.approx(expected, abs=statistics)


@contextmanager
def watched() -> Iterator[GpuObserver]:
    """Whatever is done to fake tensors inside the block, as if it were done in the passes of micro-batch 7."""
    clock = DeviceClock()
    clock.micro_batch = 7
    observer = GpuObserver(clock)
    with no_driver(AMPERE), FakeGpuMode(), observer.watching():
        yield observer


WAITS: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "item": (lambda on_gpu, _: on_gpu[0].item(), "a value that is read"),
    "a number": (lambda on_gpu, _: float(on_gpu.sum()), "a value that is read"),
    "a condition": (lambda on_gpu, _: bool((on_gpu > 0).all()), "a value that is read"),
    "tolist": (lambda on_gpu, _: on_gpu.tolist(), "a value that is read"),
    "cpu": (lambda on_gpu, _: on_gpu.cpu(), "a copy to the host"),
    "copy to the host": (lambda on_gpu, on_host: on_host.copy_(on_gpu), "a copy to the host"),
    "from pageable memory": (lambda _, on_host: on_host.to(GPU, non_blocking=True), "a copy from pageable memory"),
    "blocking": (lambda _, on_host: on_host.pin_memory().to(GPU), "a copy from pageable memory"),
    "a list of numbers": (lambda *_: torch.tensor([1.0, 2.0], device=GPU), "a copy from pageable memory"),
    "synchronize": (lambda *_: torch.cuda.current_stream(GPU).synchronize(), "a stream"),
    "the whole device": (lambda *_: torch.cuda.synchronize(GPU), "the device"),
}


@pytest.mark.parametrize(("work", "why"), WAITS.values(), ids=WAITS)
def test_whatever_makes_the_host_wait_is_seen(work: Callable[[Tensor, Tensor], object], why: str) -> None:
    with watched() as seen:
        work(torch.zeros(4, device=GPU), torch.zeros(4))
    assert seen.waits == [Wait(why, 7)]


def test_a_pinned_copy_that_does_not_block_is_no_wait() -> None:
    with watched() as seen:
        on_gpu = torch.zeros(4).pin_memory().to(GPU, non_blocking=True)
        assert on_gpu.is_cuda
    assert seen.waits == []


def test_work_on_the_host_inside_a_pass_is_seen() -> None:
    with watched() as seen:
        torch.zeros(4) + 1
    assert "aten.add.Tensor" in seen.on_host


def test_an_operation_whose_result_depends_on_values_does_not_pass() -> None:
    """Its size has to be read back from the device, which fake tensors cannot do."""
    with watched(), pytest.raises(DynamicOutputShapeException):
        torch.zeros(4, device=GPU).nonzero()


def test_operations_that_gpus_lack_are_known() -> None:
    aten = torch.ops.aten
    lacking = (aten._scaled_dot_product_flash_attention_for_cpu.default, aten.mkldnn_linear.default)
    having = (aten.mm.default, aten.add_.Tensor, aten.relu.default, aten.reshape.default, torch.ops.c10d.send.default)
    assert all(map(without_kernel, lacking))
    assert not any(map(without_kernel, having))
