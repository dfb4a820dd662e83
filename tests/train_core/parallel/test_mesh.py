"""Groups are made where a watchdog sees who is waited for."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

from costs.axes import Layout
from tests.train_core.conftest import Worlds
from train_core.parallel.clock import CHANNEL, GROUP, Clock, Line
from train_core.parallel.groups import build_mesh
from train_core.process.world import World


def waits_while_groups_are_made(world: World, layouts: list[Layout], folder: Path) -> list[str]:
    """What rank 0 is held up by for each layout, until rank 1 comes after it has been seen to be."""
    told: list[str] = []
    for number, layout in enumerate(layouts):
        clock, is_seen = Clock(), folder / f"seen-{number}"

        def look(clock: Clock = clock, is_seen: Path = is_seen) -> None:
            while (found := clock.current_wait()) is None:
                pass
            told.append(str(found[0]))
            is_seen.touch()

        looking = Thread(target=look)
        if world.rank == 0:
            looking.start()
        else:
            while not is_seen.exists():
                pass
        build_mesh(layout, world.rank, clock, world.timeout)
        if world.rank == 0:
            looking.join()
    return told


def test_a_rank_that_does_not_come_to_make_a_group_is_waited_for_by_name(worlds: Worlds, tmp_path: Path) -> None:
    layouts = [Layout({"tensor": 2}), Layout({"data": 2}), Layout({"pipeline": 2})]
    told, _ = worlds(2).run(waits_while_groups_are_made, layouts, tmp_path)
    axes = ["tensor", "data", "embedding"]
    assert told == [f"making the communicator of the {axis} axis with ranks 0, 1" for axis in axes]


def test_the_making_of_a_group_says_whose_it_is() -> None:
    clock = Clock()
    channel = Line("pipeline", (3,), clock).start(CHANNEL, 0)
    assert str(channel) == "making the communicator of the pipeline axis with rank 3"
    assert channel.is_transfer, "for the other end alone"
    group = Line("data", range(0, 512, 8), clock).start(GROUP, 0)
    assert str(group) == "making the communicator of the data axis with 64 ranks, 0 to 504"
