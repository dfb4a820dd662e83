"""The collectives on paper against those that real ranks call, counted at torch's own process groups.

Nothing here asks the trainer or the cost model what a rank does: groups are told by the ranks in them, from the order
of ranks that docs/trainer.md states, and bytes by the tensors that torch is given. Cases are 54,000 to 54,059, chosen
before any of them was run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from conf.plan.experiment import Experiment
from costs.counts.traffic import stage_traffic
from tests.train_core.conftest import Worlds
from tests.train_core.training.random_layouts import Values, case_of
from train_core.process.world import World
from train_core.training.trainer import Trainer

CASES = range(54_000, 54_060)
CASES_OF_MAKE_TEST = (54_006, 54_007, 54_012, 54_057)
"""All axes, context and experts among them, three schedules, ZeRO-2, both recipes and documents, on 6 and 8 ranks."""
MUON_CASES = range(58_000, 58_030)
MUON_CASES_OF_MAKE_TEST = (58_000, 58_003)
MANY_FILES = {
    "data.source": "text",
    "data.tokenizer": "bytes",
    "data.path": str(Path(__file__).parents[3] / "docs" / "how-to"),
    "data.max_bytes": 20_000,
    "data.separate_documents": True,
}
Seen = Counter[tuple[str, frozenset[int], str]]
"""By what is counted (number or bytes), the ranks of the group, and the kind."""

KINDS = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv": "receive",
}
OTHERS = (
    *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce_coalesced", "alltoall"),
    *("barrier", "broadcast", "gather", "recv_anysource", "reduce", "reduce_scatter", "scatter"),
    *("reduce_scatter_tensor_coalesced", "all_gather_single_coalesced", "reduce_scatter_single_coalesced"),
)
"""What else a group can do: under its own name, as the model has none of it."""


@contextmanager
def counted() -> Iterator[Seen]:
    """Inside the block, every operation of a process group of this rank is counted.

    Bytes are of the whole tensor: what is summed, what a gather makes, what a scatter or an exchange is given.
    """
    seen: Seen = Counter()

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        kind = KINDS.get(name, name)

        def call(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            tensors = list(_tensors(args))
            # An exchange is given its output and then its input, as all are that have two.
            num_bytes = tensors[-1].nbytes if kind == "all_to_all" else max(each.nbytes for each in tensors)
            ranks, of = frozenset(dist.get_process_group_ranks(group)), named(kind, group.group_desc)
            seen["number", ranks, of] += 1
            seen["bytes", ranks, of] += num_bytes
            return original(group, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in (*KINDS, *OTHERS):
            if (original := getattr(dist.ProcessGroup, name, None)) is not None:
                patch.setattr(dist.ProcessGroup, name, counting(name, original))
        yield seen


def named(kind: str, group: str) -> str:
    """Exchanges of matrices apart from those of experts, whose group may have the same ranks."""
    return f"{kind} over {group}" if kind == "all_to_all" and group != "expert" else kind


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for leaf in tree:
            yield from _tensors(leaf)


def second_step(world: World, experiment: Experiment, cache_dir: Path) -> Seen:
    """What a rank calls in its second step, with messages also where ranks of a machine share memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train_core.parallel.shared_memory.SharedMemory.of", lambda *_: None)
        trainer = Trainer(experiment, world, cache_dir)
        trainer.step(1)
        with counted() as seen:
            trainer.step(2)
    return seen


def groups_of(experiment: Experiment, rank: int) -> dict[str, frozenset[int]]:
    """The ranks of every group of this one: tensor ranks are neighbours, then come context, data and pipeline."""
    parallel = experiment.parallel
    t, c, p, n = (getattr(parallel, f"{axis}_size") for axis in AXES)
    in_stage = n // p
    stage, within = divmod(rank, in_stage)
    first, all_of = stage * in_stage, range(stage * in_stage, (stage + 1) * in_stage)
    e = parallel.expert_parallel_size
    return {
        "tensor": frozenset(range(rank // t * t, rank // t * t + t)),
        "context": frozenset(r for r in all_of if r % t == rank % t and r // (t * c) == rank // (t * c)),
        "data": frozenset(r for r in all_of if r % t == rank % t),
        "expert": frozenset(range(first + within // e * e, first + within // e * e + e)),
        "expert_replicas": frozenset(all_of[within % e :: e]),
        "embedding": frozenset((within, n - in_stage + within)),
        "world": frozenset(range(n)),
    }


AXES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "world")


def on_paper(experiment: Experiment, stage: int) -> Seen:
    """As the cost model counts it; what passes between stages is not told apart by its other end."""
    rank = stage * experiment.parallel.world_size // experiment.parallel.pipeline_parallel_size
    groups, seen = groups_of(experiment, rank) | {"pipeline": frozenset[int]()}, Seen()
    for row in stage_traffic(experiment, stage):
        seen["number", groups[row.group], named(row.kind, row.group)] += row.number
        seen["bytes", groups[row.group], named(row.kind, row.group)] += row.num_bytes
    return seen


def of_first_rank(experiment: Experiment, stage: int, seen_by: list[Seen]) -> Seen:
    """As its first rank has called it; of experts' exchanges, whose parts differ, the mean over the group's ranks."""
    rank = stage * experiment.parallel.world_size // experiment.parallel.pipeline_parallel_size
    context, seen = groups_of(experiment, rank)["context"], Seen()
    for (what, ranks, kind), amount in seen_by[rank].items():
        between_stages = kind in ("send", "receive") and ranks != context
        if kind == "all_to_all":
            total = sum(seen_by[other][what, ranks, kind] for other in ranks)
            assert total % len(ranks) == 0, "more or fewer rows were sent than there are"
            seen[what, ranks, kind] = total // len(ranks)
        else:
            seen[what, frozenset() if between_stages else ranks, kind] += amount
    return seen


def further(random: Random, values: Values) -> Values:
    """What layouts alone do not draw: dropout, narrow numbers, documents, and gradients of other types."""
    recipe = random.choice((None, "fp8-tensorwise", "fp8-rowwise"))
    dtype = "bf16" if recipe else random.choice(("fp32", "bf16"))
    alone, tensor = values["parallel.context_parallel_size"] == 1, values["parallel.tensor_parallel_size"]
    return {
        "training.num_steps": 2,
        "training.dropout": random.choice((0.0, 0.1)) if alone else 0.0,
        "precision.dtype": dtype,
        "precision.gradient_dtype": random.choice(("fp32", dtype)),
        "precision.matmul_recipe": recipe,
        "precision.emulate": recipe is not None,
        "precision.wide_layers": random.choice((0, 0, 1)) if recipe else 0,
    } | (MANY_FILES | {"model.vocab_size": 264 * tensor} if random.random() < 0.2 else {})


def with_muon(random: Random, values: Values) -> Values:
    """The same, where matrices of layers travel for their update."""
    drawn: Values = {"training.optimizer": "muon", "training.embedding_rate_factor": random.choice((1.0, 3.0))}
    if (experts := values.get("model.experts")) is not None:  # rows that a full expert drops do not travel
        drawn["model.experts"] = experts | {"capacity_factor": None}
    return further(random, values) | drawn


def differences(experiment: Experiment, worlds: Worlds, cache_dir: Path) -> dict[Any, tuple[int, int]]:
    """What is called and what is counted, by stage and key, where these differ."""
    seen_by = worlds(experiment.parallel.world_size).run(second_step, experiment, cache_dir)
    found = dict[Any, tuple[int, int]]()
    for stage in range(experiment.parallel.pipeline_parallel_size):
        called, counted_as = of_first_rank(experiment, stage, seen_by), on_paper(experiment, stage)
        for key in sorted(called.keys() | counted_as.keys(), key=repr):
            if called[key] != counted_as[key]:
                found[stage, key] = (called[key], counted_as[key])
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        all_cases = metafunc.config.getoption("all_cases")
        cases = (
            (CASES, CASES_OF_MAKE_TEST)
            if metafunc.function is test_real_ranks_call_what_is_counted_on_paper
            else (
                MUON_CASES,
                MUON_CASES_OF_MAKE_TEST,
            )
        )
        metafunc.parametrize("number", cases[0] if all_cases else cases[1])


@pytest.mark.slow
def test_real_ranks_call_what_is_counted_on_paper(number: int, worlds: Worlds, tmp_path: Path) -> None:
    assert differences(case_of(number, further).experiment, worlds, tmp_path) == {}


@pytest.mark.slow
def test_real_ranks_exchange_for_muon_what_is_counted_on_paper(number: int, worlds: Worlds, tmp_path: Path) -> None:
    assert differences(case_of(number, with_muon).experiment, worlds, tmp_path) == {}
