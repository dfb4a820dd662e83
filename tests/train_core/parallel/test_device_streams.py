"""No schedule hangs on a GPU: whatever shares a hardware queue, and wherever a device has to become idle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from conf.plan.knobs import SCHEDULES
from conf.types.schema import Schedule
from tests.train_core.parallel.device_streams import (
    CHANNELS,
    COMPUTE,
    Device,
    Launch,
    ends,
    hanging_synchronizations,
    mappings,
    nodes_in_one_queue_of_starts,
    nodes_of,
    order_of,
    recorded,
)
from tests.train_core.parallel.test_schedules import pipeline_of
from train_core.process.gpu_settings import least_queues

STREAMS = (COMPUTE, *CHANNELS)
AXES = ("tensor", "data", "world")
OF_COMMUNICATORS = {"channels": CHANNELS, "channels and axes": (*CHANNELS, *AXES)}
Case = tuple[str, int, int, int]
"""Schedule, stages, micro-batches and chunks."""


def cases(schedule: str, most_stages: int = 8) -> list[Case]:
    """Fewer micro-batches than stages, as many, one more, and several rounds."""
    found: list[Case] = []
    for p in range(2, most_stages + 1):
        if schedule == "interleaved":
            found += [(schedule, p, m, v) for m in (p, 2 * p) for v in (2, 3) if v == 2 or p <= 4]
        else:
            found += [(schedule, p, m, 1) for m in sorted({1, 2, p - 1, p, p + 1, 2 * p + 1})]
    return found


@cache
def devices_of(case: Case, has_axes: bool = False) -> list[Device]:
    schedule, p, m, v = case
    return recorded(pipeline_of(schedule, p, m, v), v, has_axes=has_axes)


def hanging(cases: Sequence[Case], num_queues: int, streams: Sequence[str] = STREAMS) -> set[frozenset[frozenset[str]]]:
    """The ways to put streams on so many queues that hang in any of the cases: which streams share a queue.

    Streams of the devices that are not among `streams` have queues of their own.
    """
    found, has_axes = set(), not set(AXES).isdisjoint(streams)
    for mapping in mappings(streams, num_queues):
        if not all(ends(devices_of(case, has_axes), mapping) for case in cases):
            queues = [frozenset(s for s in streams if mapping[s] == queue) for queue in range(num_queues)]
            found.add(frozenset(queue for queue in queues if len(queue) > 1))
    return found


def test_the_streams_have_as_many_ways_to_share_queues_as_there_are_partitions() -> None:
    """Stirling numbers of the second kind."""
    assert [len(list(mappings(STREAMS, number))) for number in range(1, 6)] == [1, 15, 25, 10, 1]


def test_the_recorded_launches_are_those_of_the_schedule() -> None:
    first, last = devices_of(("1f1b", 2, 2, 1))
    assert [launch.starts for launch in first if launch.starts] == ["forward", "forward"] + ["backward", "weight"] * 2
    assert [launch.message for launch in last if launch.message] == [
        ("activations from 0 to 1", 1),
        ("activations from 0 to 1", 2),
        ("gradients from 1 to 0", 1),
        ("gradients from 1 to 0", 2),
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_wait_for_an_idle_device_hangs(schedule: str) -> None:
    """Such as freeing memory, loading a kernel or making a communicator, between any two launches of any device."""
    assert [case for case in cases(schedule) if hanging_synchronizations(devices_of(case))] == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_kernels_may_be_loaded_by_all_devices_when_they_first_need_them(schedule: str) -> None:
    for case in cases(schedule):
        devices = devices_of(case)
        firsts = {
            (number, next(place for place, launch in enumerate(device) if launch.starts == kind))
            for number, device in enumerate(devices)
            for kind in ("forward", "backward", "weight")
        }
        assert order_of(nodes_of(devices, synchronized=firsts)), case


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_five_streams_may_share_four_queues_in_any_way(schedule: str) -> None:
    """As on an MI250X, where HIP uses four unless it is told otherwise."""
    assert hanging(cases(schedule, most_stages=6), 4) == set()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_streams_may_share_one_queue_that_goes_on_once_a_kernel_has_started(schedule: str) -> None:
    """As on NVIDIA's devices under CUDA_DEVICE_MAX_CONNECTIONS=1."""
    for case in cases(schedule):
        assert order_of(nodes_in_one_queue_of_starts(devices_of(case))), case


def test_an_interleaved_schedule_may_share_no_queue() -> None:
    """The ring of stages closes: all would send before they receive, or receive before they send."""
    pairs = {("activations_in", "activations_out"), ("gradients_in", "gradients_out")}
    pairs |= {(COMPUTE, "activations_in"), (COMPUTE, "gradients_in")}
    assert hanging(cases("interleaved", 4), 4) == {frozenset([frozenset(pair)]) for pair in pairs}
    assert hanging(cases("interleaved", 4), 5) == set()


FEW_CASES: dict[Schedule, list[Case]] = {
    "gpipe": [("gpipe", 2, 3, 1), ("gpipe", 4, 5, 1)],
    "1f1b": [("1f1b", 2, 3, 1), ("1f1b", 3, 6, 1), ("1f1b", 4, 5, 1)],
    "zero-bubble": [("zero-bubble", 2, 3, 1), ("zero-bubble", 3, 6, 1), ("zero-bubble", 4, 5, 1)],
    "interleaved": [("interleaved", 2, 4, 2), ("interleaved", 3, 6, 2)],
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("with_compute", [False, True], ids=["communicators", "and computation"])
@pytest.mark.parametrize("name", OF_COMMUNICATORS)
def test_as_many_queues_are_demanded_as_never_hang_and_no_more(
    schedule: Schedule, with_compute: bool, name: str
) -> None:
    streams = (*OF_COMMUNICATORS[name], COMPUTE) if with_compute else OF_COMMUNICATORS[name]
    least = least_queues(schedule, len(streams))
    assert not hanging(FEW_CASES[schedule], least, streams)
    assert least == 1 or hanging(FEW_CASES[schedule], least - 1, streams)


def too_early(device: Device) -> list[Launch]:
    """The launches of a first stage whose first gradient is asked for at its first action."""
    gradient = next(place for place, launch in enumerate(device) if launch.stream == "gradients_in")
    order = [gradient, *(place for place in range(len(device)) if place != gradient)]
    new = {old: place for place, old in enumerate(order)}
    moved = [device[old]._replace(after=tuple(new[earlier] for earlier in device[old].after)) for old in order]
    moved[0] = moved[0]._replace(after=())
    return moved


def test_the_machine_finds_what_hangs_where_a_gradient_is_asked_for_too_early() -> None:
    first, *others = devices_of(("1f1b", 4, 8, 1))
    devices = [too_early(first), *others]
    assert {device for device, _ in hanging_synchronizations(devices)} == {0}
    assert [mapping for mapping in mappings(STREAMS, 4) if not ends(devices, mapping)]
