"""An abstract machine of devices with streams and hardware queues, and the executor's own launches for it to run.

Kernels of one stream run one after the other, and a kernel waits for events of other streams. A stream is served by a
hardware queue, which takes kernels in the order in which the host launched them; streams that share one so wait for
each other. A send and its receive are kernels that run until both have come to the head of their queues.

What has to be over before a kernel can be is therefore a graph, in which a send and its receive are one node. The
machine comes to its end exactly if that graph has no circle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from costs.axes import ENDS, Layout
from train_core.model.dropout import Randomness
from train_core.parallel.clock import Clock, Line
from train_core.parallel.collectives import Axis, Pending
from train_core.parallel.main_gradient import add_product, are_products_deferred, attach
from train_core.parallel.mesh import Channel, Mesh
from train_core.parallel.parallelize import Stage
from train_core.parallel.pipeline_parallel import MicroBatch, PipelineExecutor, Transfers
from train_core.parallel.schedules import Action

COMPUTE = "compute"
CHANNELS = ("activations_in", "activations_out", "gradients_in", "gradients_out")
SHAPE = (1, 1, 1)


class Launch(NamedTuple):
    """A kernel of one device.

    Attributes:
        after: earlier launches of this device that it waits for, by their place in the host's order.
        message: what it sends or receives, named alike at both ends; None for a kernel that computes or only waits.
        starts: the kind of action that this is the first kernel of; None for all other kernels.
    """

    stream: str
    after: tuple[int, ...]
    message: tuple[str, int] | None = None
    starts: str | None = None


Device = Sequence[Launch]
"""What a device's host launches, in order."""


class Recorder(Transfers):
    """Takes note of what an executor launches, in the place of transfers, chunks and the listeners of gradients."""

    def __init__(self, *, has_axes: bool) -> None:
        self.has_axes = has_axes
        self.launches: list[Launch] = []
        self.streams: dict[Line, str] = {}
        self.computed: int | None = None
        self.numbers = Counter[str]()
        self.summed: list[int] = []

    def launch(self, stream: str, *after: int, message: tuple[str, int] | None = None, starts: str = "") -> int:
        """Note a kernel; one of any stream waits for what has been launched to compute, as NCCL's do."""
        before = after if self.computed is None else (*after, self.computed)
        self.launches.append(Launch(stream, before, message, starts or None))
        return len(self.launches) - 1

    def compute(self, starts: str = "", *after: int) -> None:
        self.computed = self.launch(COMPUTE, *after, starts=starts)
        if starts and self.has_axes:  # a sum over the tensor ranks, which do all this alike and so come together
            self.compute("", self.launch("tensor"))

    def end_step(self) -> None:
        """The sums of gradients over the replicas, and of their norm over the world, at which all devices meet."""
        if self.has_axes:
            self.compute("", *self.summed)
            self.launch("world", message=("world", 1))

    def send(self, tensor: Tensor, channel: Channel) -> Pending:
        return self._transfer(tensor, channel)

    def receive(self, buffer: Tensor, channel: Channel) -> Pending:
        return self._transfer(buffer.zero_(), channel)

    def _transfer(self, tensor: Tensor, channel: Channel) -> Pending:
        name = channel.line.name
        self.numbers[name] += 1
        return Transfer(tensor, self, self.launch(self.streams[channel.line], message=(name, self.numbers[name])))

    def before_gradient(self) -> None:
        pass

    def after_gradient(self) -> None:
        self.compute("weight")
        if self.has_axes:
            self.summed.append(self.launch("data"))


class Transfer(Pending):
    """A transfer that never seems to be done, so that the executor waits for every one of them."""

    def __init__(self, tensor: Tensor, recorder: Recorder, place: int) -> None:
        super().__init__(tensor)
        self.recorder, self.place = recorder, place

    def wait(self) -> Tensor:
        self.recorder.compute("", self.place)
        return self.tensor

    def is_done(self) -> bool:
        return False


class Product(torch.autograd.Function):
    """A product with one weight, whose weight gradient a schedule may put off."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recorder: Recorder) -> Tensor:
        ctx.x, ctx.weight, ctx.recorder = x, weight, recorder
        recorder.compute("forward")
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.recorder.compute("backward")
        assert add_product(ctx.weight, gradients[0], ctx.x) is None
        # What is put off runs later, and what is not has just been noted.
        assert are_products_deferred() or any(launch.starts == "weight" for launch in ctx.recorder.launches)
        return gradients[0] @ ctx.weight, None, None


class Chunk(nn.Module):
    """A model chunk of one product; the last one of the model gives its output as the loss."""

    def __init__(self, recorder: Recorder, *, is_last: bool) -> None:
        super().__init__()
        self.recorder, self.is_last = recorder, is_last
        self.weight = nn.Parameter(torch.ones(1, 1))
        attach(self.weight, torch.zeros(1, 1), recorder)

    def forward(self, x: Tensor, targets: Tensor | None, documents: None = None) -> Tensor:
        out: Tensor = Product.apply(x, self.weight, self.recorder)  # type: ignore[no-untyped-call]
        return out.sum() if self.is_last else out


def recorded(stages: Sequence[Sequence[Action]], num_chunks: int, *, has_axes: bool = False) -> list[Device]:
    """What the executor launches on each device of a pipeline for these lists of actions.

    Args:
        has_axes: with the sums over tensor ranks, replicas and the world, as a step of ZeRO-2 starts them.
    """
    layout = Layout({"pipeline": len(stages)}, pipeline_is_ring=num_chunks > 1)
    return [
        _device(layout, rank, actions, num_chunks, Recorder(has_axes=has_axes)) for rank, actions in enumerate(stages)
    ]


def _device(layout: Layout, rank: int, actions: Sequence[Action], num_chunks: int, recorder: Recorder) -> Device:
    last = layout.size("pipeline") - 1
    mesh = _mesh(layout, rank, recorder)
    chunks: Any = [Chunk(recorder, is_last=(rank, chunk) == (last, num_chunks - 1)) for chunk in range(num_chunks)]
    stage = Stage(tuple(chunks), {}, Randomness(0, 0, 1), lambda name: torch.ones(1, 1))
    executor = PipelineExecutor(stage, mesh, SHAPE, torch.float32, recorder)
    executor.run(actions, lambda index: MicroBatch(torch.zeros(SHAPE), torch.zeros(SHAPE)))
    recorder.end_step()
    return recorder.launches


def _mesh(layout: Layout, rank: int, recorder: Recorder) -> Mesh:
    """The coordinates and channels of a rank, whose groups are None."""
    size, clock = layout.size("pipeline"), Clock()
    channels: dict[str, Any] = {}
    for name in CHANNELS:
        kind, direction = name.split("_")
        step = 1 if (kind == "activations") == (direction == "out") else -1
        if not layout.pipeline_is_ring and not 0 <= rank + step < size:
            continue
        peer = (rank + step) % size
        ends = (rank, peer) if direction == "out" else (peer, rank)
        line = Line(f"{kind} from {ends[0]} to {ends[1]}", (peer,), clock)
        recorder.streams[line] = name
        channels[name] = Channel(peer, None, line)
    axes: dict[tuple[str, ...], Axis] = {(name,): Axis() for name in ("tensor", "data", "context", ENDS)}
    axes["pipeline",] = Axis(size, rank)
    return Mesh(layout, clock, Axis(), axes, **channels)


class Node(NamedTuple):
    """Launches that are over together: one, or a send and its receive. Each is a device and a place in its order."""

    launches: list[tuple[int, int]]
    before: set[int]


def nodes_of(
    devices: Sequence[Device],
    queue_of: Mapping[str, object] | None = None,
    synchronized: Collection[tuple[int, int]] = (),
) -> list[Node]:
    """The graph of all kernels.

    Args:
        queue_of: the hardware queue of each stream, on every device; None gives each stream one of its own.
        synchronized: before these launches, each a device and a place, the host waits until its device is idle.
    """
    nodes: list[Node] = []
    of_message: dict[tuple[str, int], int] = {}
    for number, device in enumerate(devices):
        places: list[int] = []
        latest: dict[object, int] = {}
        for place, launch in enumerate(device):
            index = len(nodes) if launch.message is None else of_message.setdefault(launch.message, len(nodes))
            if index == len(nodes):
                nodes.append(Node([], set()))
            nodes[index].launches.append((number, place))
            nodes[index].before.update(places[earlier] for earlier in launch.after)
            for waits_behind in (launch.stream, ("queue", (queue_of or {}).get(launch.stream, launch.stream))):
                if waits_behind in latest:
                    nodes[index].before.add(latest[waits_behind])
                latest[waits_behind] = index
            if (number, place) in synchronized:
                nodes[index].before.update(places)
            places.append(index)
    return nodes


def nodes_in_one_queue_of_starts(devices: Sequence[Device]) -> list[Node]:
    """The graph of devices with one hardware queue each, which goes on to the next kernel once one has started.

    As CUDA's do. A kernel starts when what it waits for is over, and a send and its receive are over when both have
    started.
    """
    nodes: list[Node] = []
    over: dict[object, int] = {}

    def index_of(name: object) -> int:
        if name not in over:
            over[name] = len(nodes)
            nodes.append(Node([], set()))
        return over[name]

    for number, device in enumerate(devices):
        started: list[int] = []
        ended: list[int] = []
        of_stream: dict[str, int] = {}
        for place, launch in enumerate(device):
            start = index_of(("start", number, place))
            end = index_of(launch.message or (number, place))
            nodes[start].before.update(ended[earlier] for earlier in launch.after)
            nodes[start].before.update(started[-1:])
            if launch.stream in of_stream:
                nodes[start].before.add(of_stream[launch.stream])
            nodes[end].before.add(start)
            of_stream[launch.stream] = end
            started.append(start)
            ended.append(end)
    return nodes


def order_of(nodes: Sequence[Node]) -> list[int] | None:
    """An order in which everything is over after what comes before it; None where that is a circle."""
    following = defaultdict(list)
    missing = [len(node.before) for node in nodes]
    for index, node in enumerate(nodes):
        for earlier in node.before:
            following[earlier].append(index)
    order = [index for index, number in enumerate(missing) if number == 0]
    for done in order:
        for index in following[done]:
            missing[index] -= 1
            if missing[index] == 0:
                order.append(index)
    return order if len(order) == len(nodes) else None


def ends(devices: Sequence[Device], queue_of: Mapping[str, object] | None = None) -> bool:
    return order_of(nodes_of(devices, queue_of)) is not None


def hanging_synchronizations(devices: Sequence[Device]) -> list[tuple[int, int]]:
    """Where a device may not wait until it is idle: the device, and the place of the next launch in its order.

    Such a wait never ends if something that has been launched can only be over after something that has not.
    """
    nodes = nodes_of(devices)
    order = order_of(nodes)
    assert order is not None, "it does not even end without"
    # Of each node, the latest launch of every device that has to be over before it is, itself included.
    needed = [[-1] * len(devices) for _ in nodes]
    for index in order:
        for earlier in nodes[index].before:
            needed[index] = [max(pair) for pair in zip(needed[index], needed[earlier], strict=True)]
        for device, place in nodes[index].launches:
            needed[index][device] = max(needed[index][device], place)
    return [
        (device, next_place)
        for latest, node in zip(needed, nodes, strict=True)
        for device, place in node.launches
        for next_place in range(place + 1, latest[device] + 1)
    ]


def mappings(streams: Sequence[str], num_queues: int) -> Iterator[dict[str, int]]:
    """Every way to put streams on exactly so many queues, where queues are all alike."""
    if not streams:
        if num_queues == 0:
            yield {}
        return
    for queues in (num_queues - 1, num_queues):
        for mapping in mappings(streams[1:], queues):
            chosen = [queues] if queues < num_queues else range(queues)
            yield from ({streams[0]: queue, **mapping} for queue in chosen)
