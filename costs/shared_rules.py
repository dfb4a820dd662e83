"""The rules that the trainer follows and the cost model counts by. No torch.

Which parameters of a rank share a flat bucket, and how long a bucket is:

    in model order               qkv.weight  qkv.bias  up.weight  up.bias  down.weight  down.bias
    sorted by their treatment    qkv.weight  up.weight  down.weight   |   qkv.bias  up.bias  down.bias
    cut where it grows too long  [qkv.weight  up.weight] [down.weight ]   [qkv.bias  up.bias  down.bias ]
                                                                     ^ padded, so that all replicas get an equal shard
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from conf.types.schema import TrainingPlan
from costs.axes import REPLICAS

Parameter = TypeVar("Parameter")
Role: TypeAlias = Literal["", "embedding", "hidden", "head"]
"""What a matrix is in the model: of an embedding, of a layer, or the head; empty where the update does not ask."""

ALIGNMENT = 64
"""Elements; every shard begins at a multiple of it, where vector units and NCCL are fastest."""

MAX_BUCKET_ELEMENTS = 2**25
"""The most elements of a bucket with more than one parameter: enough for the full rate of a link, and so few that there
are several buckets, of which one is summed while gradients of the next are still made."""


class Treatment(NamedTuple):
    """The properties that the parameters of a bucket have in common.

    It says nothing of the rank, so that the buckets of all tensor ranks are alike. What several of them hold would else
    lie at another offset on each, where a sum over three or more replicas adds in another order and rounds otherwise.

    Attributes:
        decays: weight decay applies (to matrices, not to biases and norms).
        copied_over: the groups, such as `tensor` or `embedding`, whose ranks all hold the same values.
        summed_over: the groups over which their gradients have to be summed, apart from the replicas.
        reduced_over: the axes along which their replicas lie, the names of one group of the mesh.
        role: where the training updates such matrices otherwise than others, as `kept_role` says.
    """

    decays: bool
    copied_over: tuple[str, ...]
    summed_over: tuple[str, ...]
    reduced_over: tuple[str, ...] = REPLICAS
    role: Role = ""


def rate_factor(role: Role, plan: TrainingPlan, hidden_size: int) -> float:
    """What the learning rate is multiplied by for parameters of a role.

    Source: arXiv 2203.03466, table 3, column of Adam.
    """
    if role == "embedding":
        return plan.embedding_rate_factor
    return plan.mup_base_width / hidden_size if role and plan.mup_base_width is not None else 1.0


def kept_role(role: Role, plan: TrainingPlan, hidden_size: int) -> Role:
    """The role, or nothing where the training treats it as all others, with which it then shares buckets."""
    is_muons = role == "hidden" and plan.optimizer == "muon"
    return role if is_muons or rate_factor(role, plan, hidden_size) != 1.0 else ""


def bucket_members(
    parameters: Iterable[Parameter],
    treatment_of: Callable[[Parameter], Treatment],
    length_of: Callable[[Parameter], int],
    max_elements: int = MAX_BUCKET_ELEMENTS,
) -> Iterator[tuple[Treatment, list[Parameter]]]:
    """The members of each bucket, in model order inside a treatment; `parameters` are in model order."""
    alike = sorted(parameters, key=treatment_of)
    for treatment, members in groupby(alike, key=treatment_of):
        for run in _runs(members, length_of, max_elements):
            yield treatment, run


def _runs(
    members: Iterable[Parameter], length_of: Callable[[Parameter], int], max_elements: int
) -> Iterator[list[Parameter]]:
    """Cut `members` into runs of neighbours that together stay within the limit; a longer parameter is alone."""
    run: list[Parameter] = []
    length = 0
    for member in members:
        if run and length + length_of(member) > max_elements:
            yield run
            run, length = [], 0
        run.append(member)
        length += length_of(member)
    yield run


def padded_length(num_elements: int, num_shards: int) -> int:
    """The next length that splits into equal, aligned shards."""
    multiple = ALIGNMENT * num_shards
    return -(-num_elements // multiple) * multiple


NEWTON_SCHULZ_STEPS = 5
"""Of Muon, each of which multiplies a matrix with itself, the square with itself, and both."""


def orthogonal_flops(rows: int, columns: int) -> int:
    """The products that make a whole matrix orthogonal: its square, the square's, and the sum of both with it."""
    short, long = sorted((rows, columns))
    return NEWTON_SCHULZ_STEPS * 2 * short * short * (2 * long + short)


def rounds_of(
    matrices: Iterable[Parameter], flops_of: Callable[[Parameter], int], num_ranks: int
) -> Iterator[list[Parameter]]:
    """Rounds in which each rank makes one matrix orthogonal, the costliest first: those of a round are alike."""
    sorted_matrices = sorted(matrices, key=flops_of, reverse=True)
    for first in range(0, len(sorted_matrices), num_ranks):
        yield sorted_matrices[first : first + num_ranks]


HALF_BYTES = 2
LARGEST_FLASH_HEAD = 192
"""The largest head whose backward pass the flash kernel has on every generation; most have it up to 256."""


def flash_runs(element_bytes: int, head_size: int, *, has_bf16: bool) -> bool:
    """True if a GPU computes attention by the flash kernel.

    It takes the keys and values of groups as they are, one for several query heads. The memory-efficient kernel wants
    as many as there are query heads, so that the trainer repeats them before it, and the cost model counts those bytes.
    With neither torch would store all scores, which the trainer never lets it do for the sake of groups.

    Args:
        element_bytes: of queries, keys and values: 2 for fp16 and bf16, 4 for fp32.
        has_bf16: the GPU multiplies bf16. NVIDIA's do from Ampere on, and the kernel was written for these; it was
            written for AMD's that do so too.

    Source: `can_use_flash_attention` and `can_use_mem_efficient_attention` in
    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch. The latter kernel takes groups in recent releases of
    torch and not on AMD, so that it is not relied on.
    """
    return element_bytes == HALF_BYTES and head_size <= LARGEST_FLASH_HEAD and has_bf16
