"""The division of an interleaved pipeline's stages into model chunks, and of a step's micro-batches into groups.

With v chunks on each of p stages, chunk c of stage r is part c p + r of the model. The embedding and the head make a
part of their own where no layer is left for the first chunk of the first stage, or for the last of the last:

    7,8x14,7 layers in 8 chunks    stage 0       | embedding | 1 layer | ... | 1 layer |
                                   stages 1-14   | 1 layer   | 1 layer | ... | 1 layer |
                                   stage 15      | 1 layer   | ...     | 1 layer | head |

Trainer, checkpoints and cost model all take the rules from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby

MOST_SPELT = 3
"""Layers that a layout spells one by one."""


def chunk_layers(layers: int, num_chunks: int, *, is_first_stage: bool) -> tuple[int, ...]:
    """The number of layers of each of a stage's chunks, as even as possible.

    On the first stage the lighter chunks come first, beside the embedding, on every other stage last, which on the last
    stage is beside the head.
    """
    each, more = divmod(layers, num_chunks)
    lighter, heavier = (each,) * (num_chunks - more), (each + 1,) * more
    return lighter + heavier if is_first_stage else heavier + lighter


def chunk_ranges(layers_per_stage: Sequence[int], num_chunks: int) -> tuple[tuple[range, ...], ...]:
    """Indices of the layers of each stage's chunks: stage after stage, and within it chunk after chunk.

    The pipeline passes all stages once for every chunk. Source: arXiv 2104.04473, section 2.2.2.
    """
    of_stages = [
        chunk_layers(layers, num_chunks, is_first_stage=stage == 0) for stage, layers in enumerate(layers_per_stage)
    ]
    parts = [of_stage[chunk] for chunk in range(num_chunks) for of_stage in of_stages]
    ranges = [range(stop - length, stop) for stop, length in zip(accumulate(parts), parts, strict=True)]
    return tuple(tuple(ranges[stage :: len(of_stages)]) for stage in range(len(of_stages)))


def least_layers(stage: int, num_stages: int, num_chunks: int) -> int:
    """The fewest layers with which a stage can be cut: one for each chunk, but for those with embedding or head alone.

    Without interleaving every stage has a layer.
    """
    return max(1, num_chunks - (stage in (0, num_stages - 1)))


def group_sizes(num_micro_batches: int, num_stages: int) -> tuple[int, ...]:
    """Micro-batches of the groups that go through chunk after chunk together: as even as possible, the larger first.

    A group has at least as many as there are stages, unless the step has fewer: in a smaller one the first stage would
    wait for a micro-batch to come round before it could go on with the next chunk. Megatron-Core refuses a last group
    smaller than that too.
    """
    count = max(1, num_micro_batches // num_stages)
    each, more = divmod(num_micro_batches, count)
    return (each + 1,) * more + (each,) * (count - more)


def pipeline_layout(layers_per_stage: Sequence[int], num_chunks: int) -> str:
    """The parts of the model in the notation of Megatron-Core, such as `Ett|(ttt|)*2ttL`: E embeds, t is a layer.

    Parts stand in the order in which a micro-batch passes them. Source: Megatron-Core,
    pipeline_parallel_layer_layout.py, parse_str_to_list.
    """
    chunks = zip(*chunk_ranges(layers_per_stage, num_chunks), strict=True)
    sizes = [len(part) for chunk in chunks for part in chunk]
    parts = ["t" * layers if layers <= MOST_SPELT else f"t*{layers}" for layers in sizes]
    parts[0], parts[-1] = f"E{parts[0]}", f"{parts[-1]}L"
    runs = ((text, len(list(equal))) for text, equal in groupby(parts))
    return "".join(f"({text}|)*{count}" if count > 1 else f"{text}|" for text, count in runs).removesuffix("|")
