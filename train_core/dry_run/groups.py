"""Which axis of the mesh a process group is."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from train_core.parallel.mesh import Layout


class GroupNames:
    """Names the groups of one rank by the ranks that are in them, however the trainer made and keeps them."""

    def __init__(self, layout: Layout, rank: int) -> None:
        stages = layout.pipeline_group(rank)
        self.by_ranks = {
            (stages[0], stages[-1]): "embedding",
            tuple(layout.data_group(rank)): "data",
            tuple(layout.tensor_group(rank)): "tensor",
        }
        self._names: dict[str, str] = {dist.group.WORLD.group_name: "world"} if dist.group.WORLD else {}

    def name_of(self, args: Any) -> str:
        """Of the group among the arguments of a collective: tensor, data, world, or embedding for its two copies."""
        group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch._C.ScriptObject))
        name: str = group.group_name
        if name not in self._names:
            ranks = tuple(dist.get_process_group_ranks(group))
            self._names[name] = self.by_ranks.get(ranks, "other")
        return self._names[name]
