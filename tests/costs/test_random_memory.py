"""The memory on paper against what torch holds while one rank of the trainer takes a step on fake tensors.

Live storages are summed after every operation, by nothing of the trainer's or the rehearsal's own. Cases are 54,100 to
54,159, chosen before any of them was run. Of the first cost model 27 were within the bounds. The others were found
among 70,000 to 70,059 and 90,500 to 90,539, and are mended. None holds more than predicted by more than the bounds.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conf.plan.experiment import Experiment
from conf.types.model_spec import OF_EXPERTS, OWN_PARTS
from costs import estimate
from tests.train_core.training.random_layouts import Further, Values, case_of
from train_core.process.world import World
from train_core.rehearsal.stage import OF_REHEARSALS
from train_core.training.trainer import Trainer

FOUND_SINCE = (70_002, 70_005, 70_006, 70_028, 70_029, 70_046, 90_501, 90_507, 90_508, 90_518, 90_534)
CASES = (*range(54_100, 54_160), *FOUND_SINCE)
CASES_OF_MAKE_TEST = (54_120, 54_124, 54_127, 54_134, 54_142, 70_005, 70_006, 90_507, 90_508, 90_518)
"""A single micro-batch, the embedding's sums, GPipe with experts, ZeRO-2 at a loss, casts to fp8; the final norm,
queries of a single group, a layer without experts, ZeRO-3 at a loss, the update: all were wrong."""
OFFLOADED = range(120_000, 120_030)
SHARE, MOST_BYTES = 0.02, 8 * 2**20
BEYOND = {
    **dict.fromkeys((54_101, 54_108, 54_113), 0.08),  # zero-bubble in fp8: casts of products that are put off
    54_125: 0.14,  # every second layer recomputes, in uneven chunks: the fullest of each is not there at once
    70_002: 0.03,  # the layer at work is priced as one that recomputes, where the last of a chunk does not
    **dict.fromkeys((54_140, 54_148, 54_149), 0.05),  # ZeRO-2: buckets are taken to be as long as they may be
    **dict.fromkeys((54_157, 90_501), 0.07),  # ZeRO-2 under zero-bubble: buckets that one pass ends and the next begins
    120_007: 0.08,  # ZeRO-2 again, under which it holds as many bytes less without offloading, but for 15 MiB
    120_011: 0.03,  # experts, 10 of 12 MiB without offloading too
    120_018: 0.03,  # as 70_002
    110_010: 0.18,  # ZeRO-2 under zero-bubble too, as much without its parts
    54_159: 0.03,  # experts get a multiple of 16 rows here, which nothing has to pad; a router does not see to that
}
"""Those that hold less than predicted, beyond the bounds, and by how much they may."""


class LiveStorages(TorchDispatchMode):
    """Every storage that an operation has put out, while it lives; one that is emptied counts nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.most_of: dict[int, int] = {}
        self.most = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.prim.device.default:  # which autograd asks for more often than for all else
            return args[0].fake_device
        if function is torch.ops.aten._local_scalar_dense.default:
            return 1.0  # fake tensors have no values
        out = function(*args, **kwargs or {})
        for tensor in tree_leaves(out):
            if type(tensor) is FakeTensor:
                self._hold(tensor.untyped_storage())
        # Summing up hundreds of storages after every operation would take as long as the operations.
        if self.most > self.peak:
            self.peak = max(self.peak, sum(storage.nbytes() for storage in self.storages))
        return out

    def _hold(self, storage: torch.UntypedStorage) -> None:
        """Count the storage to `most`, which takes none for emptied, and is no less than what is held."""
        address, num_bytes = storage._cdata, storage.nbytes()
        known = self.most_of.get(address)
        if known is None:
            self.storages.add(storage)
            weakref.finalize(storage, self._let_go, address)
        if known is None or num_bytes > known:
            self.most_of[address] = num_bytes
            self.most += num_bytes - (known or 0)

    def _let_go(self, address: int) -> None:
        self.most -= self.most_of.pop(address)


def held_bytes(experiment: Experiment, stage: int) -> int:
    """The most that the first rank of a stage holds at any moment of its first step."""
    ranks = experiment.parallel.world_size
    rank = stage * ranks // experiment.parallel.pipeline_parallel_size
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with torch.autograd.set_multithreading_enabled(False), FakeTensorMode(), LiveStorages() as live:
            trainer = Trainer(experiment, World(rank, ranks, torch.device("cpu"), "fake"), Path(), OF_REHEARSALS)
            live.peak = 0
            trainer.step(1)
    finally:
        dist.destroy_process_group()
    return live.peak


def at_size(random: Random, values: Values) -> Values:
    """The same layouts with sizes at which rounding up is small, on more replicas, in bf16 and fp8."""
    t, times = values["parallel.tensor_parallel_size"], random.choice((1, 1, 2, 4))
    groups, head_size = t * random.choice((1, 2)), random.choice((64, 128))
    sizes = {
        "model.hidden_size": 256 * random.randint(2, 8),
        "model.head_size": head_size,
        "model.num_query_groups": groups,
        "model.num_attention_heads": groups * random.choice((1, 2, 4)),
        "model.ffn_hidden_size": 128 * t * random.randint(4, 20),
        "model.vocab_size": t * random.choice((1024, 4096, 8192)),
        "model.seq_length": values["model.seq_length"] * 256,
    }
    if (latent := values.get("model.latent_attention")) is not None:
        width: Values = {"rotary_head_size": 32, "key_value_rank": 128 * random.randint(1, 4)}
        width |= {"query_rank": random.choice((None, 256)), "value_head_size": random.choice((64, head_size))}
        sizes |= {
            "model.num_query_groups": sizes["model.num_attention_heads"],
            "model.latent_attention": latent | width,
        }
    if (experts := values.get("model.experts")) is not None:
        width = {"ffn_hidden_size": 128 * random.randint(2, 8)}
        width["shared_ffn_hidden_size"] = 128 * t * bool(experts["shared_ffn_hidden_size"])
        sizes["model.experts"] = experts | width
    return sizes | {
        "parallel.world_size": values["parallel.world_size"] * times,
        "batch.global_batch_size": values["batch.global_batch_size"] * times,
        "data.source": "synthetic",
        "data.tokenizer": None,
        "data.max_bytes": None,
        "training.dropout": random.choice((0.0, 0.0, 0.1)) if values["parallel.context_parallel_size"] == 1 else 0.0,
        "precision.dtype": "bf16",
        "precision.gradient_dtype": random.choice(("fp32", "fp32", "bf16")),
        "precision.matmul_recipe": random.choice((None, None, "fp8-tensorwise", "fp8-rowwise")),
    }


def offloaded(random: Random, values: Values) -> Values:
    """The same with offloaded activations, and what goes with them."""
    schedule = "1f1b" if values["parallel.schedule"] == "zero-bubble" else values["parallel.schedule"]
    recompute = random.choice(("none", "selective", "full"))
    chosen = {"parallel.offload_activations": True, "parallel.schedule": schedule, "parallel.recompute": recompute}
    return at_size(random, values) | chosen


DRAWN_PARTS = sorted(OWN_PARTS - {"local_rotary"})  # which has no memory but a table


def with_parts(random: Random, values: Values) -> Values:
    """The same with what few models have."""
    sizes = at_size(random, values)
    has_experts = "model.experts" in sizes
    found = [
        part
        for part in sorted(OWN_PARTS - {"local_rotary"})
        if random.random() < 0.6 and (has_experts or part not in OF_EXPERTS)
    ]
    found = [part for part in found if part != "post_norms" or "norms_behind" not in found]
    return sizes | {
        "model.parts": found,
        "model.latent_attention": None,
        "model.scores_cap": random.choice((None, 50.0)),
        "training.dropout": 0.0,
        "precision.matmul_recipe": None,
    }


def experiment_of(number: int, further: Further = at_size) -> tuple[Experiment, int]:
    """The setup, and the stage of it that is held against torch."""
    experiment = case_of(number, further, ("model=tiny", "cluster=dgx-h100")).experiment
    return experiment, Random(number).randrange(experiment.parallel.pipeline_parallel_size)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        all_cases = metafunc.config.getoption("all_cases")
        metafunc.parametrize("number", CASES if all_cases else CASES_OF_MAKE_TEST)


@pytest.mark.slow
def test_a_stage_holds_what_is_counted_on_paper(number: int) -> None:
    experiment, stage = experiment_of(number)
    held, predicted = held_bytes(experiment, stage), estimate(experiment).stages[stage].allocated_bytes
    assert held - predicted <= max(SHARE * held, MOST_BYTES), "a plan that is said to fit may not"
    assert predicted - held <= max(BEYOND.get(number, SHARE) * held, MOST_BYTES)


@pytest.mark.one_in(14)
@pytest.mark.slow
@pytest.mark.parametrize("with_parts_number", range(110_000, 110_014))
def test_a_stage_with_parts_of_other_types_holds_what_is_counted_on_paper(with_parts_number: int) -> None:
    experiment, stage = experiment_of(with_parts_number, with_parts)
    held, predicted = held_bytes(experiment, stage), estimate(experiment).stages[stage].allocated_bytes
    assert held - predicted <= max(SHARE * held, MOST_BYTES), (held, predicted)
    assert predicted - held <= max(BEYOND.get(with_parts_number, SHARE) * held, MOST_BYTES), (held, predicted)


@pytest.mark.one_in(10)
@pytest.mark.slow
@pytest.mark.parametrize("offloaded_number", OFFLOADED)
def test_a_stage_with_offloaded_activations_holds_what_is_counted_on_paper(offloaded_number: int) -> None:
    experiment, stage = experiment_of(offloaded_number, offloaded)
    held, predicted = held_bytes(experiment, stage), estimate(experiment).stages[stage].allocated_bytes
    assert held - predicted <= max(SHARE * held, MOST_BYTES), (held, predicted)
    assert predicted - held <= max(BEYOND.get(offloaded_number, SHARE) * held, MOST_BYTES), (held, predicted)
