"""ZeRO-3 by torch's FSDP2: weights too are sharded over the replicas, and gathered layer by layer in every pass.

    forward     gather layer 0 | layer 0 | gather layer 1, let layer 0 go | layer 1 | ...
    backward    ... | gather layer 0, sum the gradients of layer 1 to shards | layer 0 | sum those of layer 0

A shard is this replica's rows of each parameter, in fp32 (arXiv 1910.02054, section 5.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from conf.plan.experiment import Experiment
from train_core.model.initialize import DTYPES, fill
from train_core.parallel.clock import Line
from train_core.parallel.collectives import Axis, gather_into, scatter_into
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage, treatment_of


def device_mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    """The replicas as FSDP2 wants them."""
    return DeviceMesh.from_group(group, "cuda" if dist.get_backend(group) == "nccl" else "cpu")


class FullySharded:
    """Replicas whose parts are rows of parameters, one part for each; see `data_parallel.Replicas`.

    Attributes:
        parameters: the shards by name; the model holds gathered weights in their place while it uses them.
    """

    is_sharded = True

    def __init__(
        self,
        stage: Stage,
        mesh: Mesh,
        experiment: Experiment,
        mesh_of: Callable[[dist.ProcessGroup], DeviceMesh] = device_mesh_of,
    ) -> None:
        self.stage, self.mesh = stage, mesh
        named = stage.named_parameters()  # still on the meta device, so that they take no memory
        self.treatments = [treatment_of(stage, name, parameter) for name, parameter in named]
        self.shapes = [parameter.shape for _, parameter in named]
        (model,) = stage.chunks  # there is no pipeline with ZeRO-3
        precision, group = experiment.precision, mesh.replicas.group
        assert group is not None
        # Weights travel in the first type, and gradients are summed in the second.
        policy = MixedPrecisionPolicy(DTYPES[precision.dtype], DTYPES[precision.gradient_dtype])
        over = mesh_of(group)
        # Layers come before the model, because FSDP2 puts into a module's unit what no unit inside it has taken.
        layers = {f"layers.{index}": layer for index, layer in model.layers.items()}
        for name, module in {**layers, "": model}.items():  # at no time is there more than one of them whole
            fill(module, lambda leaf: stage.first_value(leaf).float(), name)  # masters, rounded when they are gathered
            _watch(fully_shard(module, mesh=over, mp_policy=policy), mesh.replicas)
        self.model = model
        self.parameters = [
            (name, parameter) for name, parameter in stage.named_parameters() if isinstance(parameter, DTensor)
        ]

    def own_weights(self) -> list[Tensor]:
        # These shards are fp32, so that the optimizer's masters are the parameters themselves.
        return [parameter.to_local().detach().view(-1) for _, parameter in self.parameters]

    def shared_over(self, index: int) -> Axis:
        """As that of `FlatReplicas`."""
        return self.mesh.replicas

    def range_of(self, index: int, replica: int | None = None) -> range:
        """The elements of a parameter that a replica updates, or this rank: those of its rows."""
        shape, replica = self.shapes[index], self.mesh.replicas.rank if replica is None else replica
        # All replicas but the last ones, which may have fewer rows or none, have as many.
        most = -(-shape[0] // self.mesh.replicas.size) * (shape.numel() // shape[0])
        first, stop = (min(start, shape.numel()) for start in (replica * most, (replica + 1) * most))
        return range(first, stop)

    def members(self, index: int) -> list[tuple[str, torch.Size, int]]:
        """As those of `FlatReplicas`."""
        return [(self.parameters[index][0], self.shapes[index], 0)]

    def zero_gradients(self) -> None:
        for _, parameter in self.parameters:
            # None and not zeros, so that FSDP2 takes the first sum of a step as it is and adds only later ones.
            parameter.grad = None

    def reduced_gradients(self) -> list[Tensor]:
        """The gradients of this replica's rows; FSDP2 makes means over the replicas, turned into sums here."""
        gradients = list[Tensor]()
        for name, parameter in self.parameters:
            gradient = parameter.grad
            assert isinstance(gradient, DTensor), f"{name} got no gradient"
            gradients.append(gradient.to_local().view(-1).mul_(self.mesh.replicas.size))
        return gradients

    def share_weights(self) -> None:
        """There is nothing to do, because each pass gathers the weights."""

    def wait_for_weights(self) -> None:
        """There is nothing to wait for: no weights are on their way between steps."""

    def after_evaluation(self) -> None:
        """Let go what FSDP2 keeps for a backward pass: embedding, last norm and head."""
        assert isinstance(self.model, FSDPModule)
        self.model.reshard()


class _Watched:
    """A collective in the form in which FSDP2 calls it, which tells the clock of the axis.

    FSDP2 starts its collectives itself, inside hooks of the modules, so that no `Pending` could tell of them.
    """

    def __init__(self, collective: Callable[..., object], kind: str, line: Line) -> None:
        self.collective, self.kind, self.line = collective, kind, line

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The buffer of a collective, for which FSDP2 asks whoever runs it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **options: object
    ) -> None:
        """Start the collective. FSDP2's `options` name a reduction's operation, and ask for no handle to wait with."""
        start = partial(self.collective, output_tensor, input_tensor, group=group, **options)
        self.line.clock.follow(self.line.start(self.kind, output_tensor.nbytes), start)


def _watch(module: FSDPModule, axis: Axis) -> None:
    """Have the clock told of FSDP2's collectives, where this release of torch lets them be replaced."""
    if axis.line is not None and hasattr(module, "set_custom_all_gather"):
        module.set_custom_all_gather(_Watched(gather_into, "all_gather", axis.line))  # type: ignore[arg-type]
        module.set_custom_reduce_scatter(_Watched(scatter_into, "reduce_scatter", axis.line))  # type: ignore[arg-type]
