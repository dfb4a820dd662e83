"""Trials share the nodes of an allocation, and never a device."""

from __future__ import annotations

from launcher.allocation.packing import Room, StepPlacement, WaitingTrial, choose_steps
from sweeps.folder.submission import JobShape

FOREVER = 1e9


def shape(num_nodes: int, tasks_per_node: int) -> JobShape:
    return JobShape(num_nodes=num_nodes, tasks_per_node=tasks_per_node, uses_gpus=True)


def candidate(name: str, num_nodes: int, tasks_per_node: int, seconds: float = FOREVER) -> WaitingTrial:
    return WaitingTrial(name, shape(num_nodes, tasks_per_node), seconds)


def room(num_nodes: int, devices: int = 8) -> Room:
    return Room({f"node{number}": devices for number in range(1, num_nodes + 1)})


def started(
    room: Room, *candidates: WaitingTrial, remaining_seconds: dict[str, float] | None = None
) -> dict[str, StepPlacement]:
    chosen = choose_steps(candidates, room, remaining_seconds or {})
    return {each.trial_id: placement for each, placement in chosen}


def test_small_trials_share_a_node_with_devices_of_their_own_and_leave_the_others_whole() -> None:
    placed = started(room(2), candidate("a", 1, 2), candidate("b", 1, 2), candidate("c", 1, 4), candidate("d", 1, 8))
    assert placed == {
        "a": StepPlacement(("node1",), (0, 1)),
        "b": StepPlacement(("node1",), (2, 3)),
        "c": StepPlacement(("node1",), (4, 5, 6, 7)),
        "d": StepPlacement(("node2",), tuple(range(8))),
    }


def test_a_trial_of_several_nodes_has_the_same_devices_on_each() -> None:
    both = room(2)
    both.take("first", StepPlacement(("node1",), (0, 1)))
    assert started(both, candidate("wide", 2, 6)) == {"wide": StepPlacement(("node1", "node2"), (2, 3, 4, 5, 6, 7))}


def test_a_trial_takes_emptier_nodes_where_the_fullest_have_no_devices_in_common() -> None:
    four = room(4, devices=4)
    four.take("a", StepPlacement(("node1",), (0, 1)))
    four.take("b", StepPlacement(("node2",), (2, 3)))
    assert four.place(shape(2, 2)) == StepPlacement(("node2", "node3"), (0, 1))
    assert four.place(shape(2, 4)) == StepPlacement(("node3", "node4"), (0, 1, 2, 3))
    assert four.place(shape(4, 2)) is None


def test_the_fullest_node_that_has_room_comes_first() -> None:
    three = room(3)
    three.take("a", StepPlacement(("node3",), (0, 1, 2, 3)))
    three.take("b", StepPlacement(("node2",), (0, 1, 2, 3, 4, 5)))
    assert three.place(shape(1, 2)) == StepPlacement(("node2",), (6, 7))
    assert three.place(shape(1, 4)) == StepPlacement(("node3",), (4, 5, 6, 7))


def test_what_was_given_back_is_used_again() -> None:
    one = room(1, devices=2)
    assert list(started(one, candidate("a", 1, 2), candidate("b", 1, 2))) == ["a"]
    one.give_back("a")
    assert list(started(one, candidate("b", 1, 2))) == ["b"]


def test_a_large_trial_that_waits_is_passed_only_by_those_that_end_before_it_can_begin() -> None:
    two = room(2)
    two.take("runs", StepPlacement(("node1",), (0, 1, 2, 3)))
    large, long, short = candidate("large", 2, 8), candidate("long", 1, 4, 500), candidate("short", 1, 4, 50)
    assert list(started(two, large, long, short, remaining_seconds={"runs": 100})) == ["short"]


def test_a_trial_passes_freely_on_nodes_that_the_waiting_one_does_not_need() -> None:
    three = room(3)
    for number in (1, 2, 3):
        three.take(f"runs-{number}", StepPlacement((f"node{number}",), (0,)))
    left = {"runs-1": 10.0, "runs-2": 20.0, "runs-3": 999.0}
    placed = started(three, candidate("large", 2, 8), candidate("long", 1, 4), remaining_seconds=left)
    assert placed == {"long": StepPlacement(("node3",), (1, 2, 3, 4))}


def test_a_trial_too_large_for_the_allocation_keeps_nobody_waiting() -> None:
    assert list(started(room(1), candidate("large", 2, 8), candidate("small", 1, 8))) == ["small"]
    assert not room(1).could_hold(shape(1, 9))


def test_nothing_is_placed_on_a_node_that_was_left_out() -> None:
    two = room(2)
    two.leave_out(["node1"])
    assert two.place(shape(1, 8)) == StepPlacement(("node2",), tuple(range(8)))
    assert not two.could_hold(shape(2, 1))


def test_no_two_trials_ever_hold_the_same_device() -> None:
    four = room(4)
    sizes = [(1, 1), (1, 3), (2, 8), (1, 2), (1, 5), (1, 8), (1, 4), (1, 1), (2, 4)]
    placed = started(four, *(candidate(str(number), *size) for number, size in enumerate(sizes)))
    held = [(node, device) for each in placed.values() for node in each.nodes for device in each.devices]
    assert len(held) == len(set(held))
    assert four.num_free == 32 - len(held)
