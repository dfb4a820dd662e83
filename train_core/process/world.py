"""Joining the job: which rank this process is, on which device, and how it finds the others.

Once joined, ranks can let one find out for all, such as what lies on a file system.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from conf.errors import TrisweepError, UsageError
from conf.units import count_of
from train_core.parallel.clock import Clock, DeviceClock
from train_core.parallel.collectives import Axis
from train_core.process.gpu_settings import set_defaults
from train_core.process.machine import port_of_step, reachable_host, this_node

MEETING_SECONDS = 600.0
"""The seconds that ranks wait for the last one: on a busy cluster, importing torch can take minutes on some nodes."""


@dataclass(frozen=True)
class Seat:
    """A rank's place in the job, before it has met the others.

    Attributes:
        local_rank: the rank among those of its node.
        rendezvous: where the ranks meet: `tcp://host:port`, or `file:///path` on one machine.
        may_be_bound: the launcher may have given each rank of a node one GPU of its own, which it sees as number 0.
    """

    rank: int
    size: int
    local_rank: int
    rendezvous: str
    may_be_bound: bool = False


@dataclass(frozen=True)
class World:
    """A joined job.

    Attributes:
        clock: is told of every wait of this rank.
        timeout: after this time torch gives up waiting in a collective; None where nobody waits.
        nodes: on which each rank runs, in rank order.
    """

    rank: int
    size: int
    device: torch.device
    backend: str
    clock: Clock = field(default_factory=Clock)
    timeout: datetime.timedelta | None = None
    nodes: tuple[str, ...] = ()

    def node_of(self, rank: int | None) -> str:
        """The node of the rank that is blamed; empty where none is."""
        return "" if rank is None or rank >= len(self.nodes) else self.nodes[rank]


def seat_from_launcher(environment: Mapping[str, str]) -> Seat | None:
    """The seat that torchrun or srun gave this process; None when neither started it."""
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        address = f"tcp://{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        return Seat(rank, size, int(environment.get("LOCAL_RANK", rank)), address)
    # A batch script has the job's variables too. That srun started this process is said only by the step's id.
    if {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"} <= environment.keys():
        return _seat_from_srun(environment)
    return None


def require_seat() -> Seat:
    """The seat that this process was given; raises UsageError where no launcher gave one."""
    seat = seat_from_launcher(os.environ)
    if seat is None:
        raise UsageError("neither srun nor torchrun started this process", "Start it with one of them.")
    return seat


def _seat_from_srun(environment: Mapping[str, str]) -> Seat:
    # The node list of a heterogeneous job is sorted by name, and rank 0 is on the first node of the first component.
    first_component = environment.get("SLURM_JOB_NODELIST_HET_GROUP_0")
    nodes = first_component or environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
    host = reachable_host(nodes, environment.get("SLURM_LAUNCH_NODE_IPADDR"))
    port = port_of_step(environment)
    # A step may have fewer tasks than its job, so that the step's own variables come first.
    size = int(environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"])
    rank, local_rank = int(environment["SLURM_PROCID"]), int(environment["SLURM_LOCALID"])
    return Seat(rank, size, local_rank, f"tcp://{host}:{port}", may_be_bound=True)


def choose_device(kind: str, index: int, *, may_be_bound: bool = False) -> torch.device:
    """The device of a rank; on a CPU one rank is one core, so it computes with one thread.

    Args:
        may_be_bound: see `Seat`; a rank that then sees one GPU takes it, whatever `index` is.

    Raises:
        UsageError: a GPU was asked for and there is none with this number.
    """
    if kind == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    # With --gpus-per-task or --gpu-bind, Slurm shows each rank its own GPU alone, as number 0.
    if may_be_bound and visible == 1:
        index = 0
    if index >= visible:
        problem = f"rank needs GPU {index}, but this process sees {count_of(visible, 'GPU')}"
        raise UsageError(problem, "Ask for one GPU per rank, or choose a cluster whose device.kind is cpu.")
    # Before the driver is asked for a device: there torch's allocator reads its settings, once for all.
    set_defaults(os.environ, is_hip=torch.version.hip is not None)
    device = torch.device("cuda", index)
    use_device(device)
    return device


def use_device(device: torch.device) -> None:
    """Make a GPU the current one of the calling thread; a new thread begins with GPU 0."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def join(seat: Seat, device: torch.device, hang_seconds: float = 0.0) -> World:
    """Meet the other ranks. A world of one needs no meeting.

    Args:
        hang_seconds: for how long a watchdog lets a collective wait. It knows more than torch, whose timeout is longer.
    """
    timeout = datetime.timedelta(seconds=MEETING_SECONDS + hang_seconds)
    # RCCL goes by the name of NCCL in torch's builds for AMD.
    backend = "nccl" if device.type == "cuda" else "gloo"
    nodes: tuple[str, ...] = (this_node(),)
    if seat.size > 1:
        store, _, _ = next(rendezvous(seat.rendezvous, seat.rank, seat.size, timeout=timeout))
        store.set_timeout(timeout)
        # Without a device_id, with which NCCL would split all groups off the world's communicator. For each split every
        # rank of the world has to come, so that a hang would not be that of the group's own ranks.
        dist.init_process_group(backend, store=store, world_size=seat.size, rank=seat.rank, timeout=timeout)
        nodes = _nodes_of_all(store, seat)
    clock = DeviceClock() if device.type == "cuda" else Clock()
    return World(seat.rank, seat.size, device, backend, clock, timeout, nodes)


def _nodes_of_all(store: Any, seat: Seat) -> tuple[str, ...]:
    """The node of every rank, over the store at which they met: a hang or a bad value of one is to name its node.

    One rank asks for all names and hands them on, as the store would else answer the square of as many questions.
    """
    keys = [f"node-of-rank-{rank}" for rank in range(seat.size)]
    store.set(keys[seat.rank], this_node())
    if seat.rank == 0:
        store.set("nodes", "\n".join(name.decode() for name in store.multi_get(keys)))
    return tuple(store.get("nodes").decode().split("\n"))


def leave(world: World) -> None:
    if world.size > 1:
        dist.destroy_process_group()


def file_rendezvous(path: Path) -> str:
    """A meeting through a file on a local disk, which takes no port that another job of the machine might use."""
    return f"file://{path}"


def usable_cores() -> set[int]:
    return os.sched_getaffinity(0)


Found = TypeVar("Found")
SIGN_SECONDS = 60.0
"""The seconds between signs that the first rank searches: well within the time that torch lets a collective wait."""


def result_of_first(find: Callable[[], Found], axis: Axis) -> Found:
    """Return what the axis's first rank finds out; where it fails, all ranks do. All call it.

    Ranks that each looked for themselves could find different things: a shared file system shows a new file to one
    node earlier than to another. The clock is not told, because the search may take longer than a collective may.

    Raises:
        TrisweepError: on every rank, where the first one raised it.
        RuntimeError: on the others, where the first one raised another exception; it has the same words.
    """
    if axis.size == 1:
        return find()
    search = _begin_search(find) if axis.rank == 0 else None
    source = 0 if axis.group is None else dist.get_global_rank(axis.group, 0)
    told: list[tuple[Any, Exception | None] | None] = [None]
    # A search may take longer than torch lets a collective wait, so that the others hear of it now and then.
    while told[0] is None:
        told[0] = _told_of(search) if search is not None else None
        dist.broadcast_object_list(told, source, axis.group)
    found, refusal = told[0]
    if refusal is not None:
        # The first rank raises what it caught, whose traceback leads to the cause.
        raised = (search.exception() if search is not None else None) or refusal
        if isinstance(raised, TrisweepError):  # all raise it now, and it is no rank's own fault
            raised.blamed = getattr(raised, "blamed", None)
        raise raised
    return cast("Found", found)


def _begin_search(find: Callable[[], Any]) -> Future[Any]:
    """The first rank's search, in a thread of its own; the process may end before it has found anything."""
    search = Future[Any]()

    def run() -> None:
        try:
            search.set_result(find())
        except BaseException as error:  # whatever ends the thread, or the others would wait for ever
            search.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return search


def _told_of(search: Future[Any]) -> tuple[Any, Exception | None] | None:
    """The result and the error of the search; None if there is neither after `SIGN_SECONDS`."""
    wait([search], SIGN_SECONDS)
    if not search.done():
        return None
    if (error := search.exception()) is None:
        return search.result(), None
    words = f"rank 0 failed: {type(error).__name__}: {error}"
    # The error is pickled on its way to the others, which only our own are known to survive.
    return None, error if isinstance(error, TrisweepError) else RuntimeError(words)
