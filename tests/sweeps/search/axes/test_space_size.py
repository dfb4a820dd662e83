"""The size of a space is said without going through it."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from sweeps.points.plan import part_of
from sweeps.search.axes.draws import space_size
from tests.composed import composed
from tests.messages import refused


def size_of(*overrides: str) -> str:
    asked = composed(["sweep=smoke", *overrides])
    assert asked.settings.sweep is not None
    return space_size(part_of(asked, asked.settings.sweep, proxy=False))


@pytest.mark.slow
def test_a_space_says_how_many_of_some_drawn_points_can_exist_and_fit() -> None:
    text = size_of("+sweep.axes={batch.micro_batch_size:[1,2,4],parallel.world_size:[1,2,3]}")
    assert text.startswith("The axes make 9 combinations. Of 200 that were drawn, ")
    assert text.endswith(" fit.")


@pytest.mark.slow
def test_a_huge_space_is_no_surprise() -> None:
    keys = ("training.seed", "training.num_steps", "batch.micro_batch_size")
    axes = ",".join(f"{key}:{{low:1,high:100000}}" for key in keys)
    assert "The axes make 1,000,000,000,000,000 combinations" in size_of(f"+sweep.axes={{{axes}}}")
    rates = "+sweep.axes={training.learning_rate:{low:1e-5,high:1e-3}}"
    text = size_of(rates, "+sweep.constraints=['training.seed < 0']")
    assert "a continuous space. Of 200 that were drawn, 0 keep the constraints, 0 can exist and 0 fit." in text


def test_a_space_in_which_no_value_can_be_computed_says_why() -> None:
    with refused(ConfigError, "sweep.axes.training.num_steps"):
        size_of("+sweep.axes={training.seed:{low:1,high:9},training.num_steps:'=1 / (training.seed * 0)'}")


def test_a_sweep_without_axes_has_no_space() -> None:
    assert size_of() == ""


def test_of_a_script_nothing_is_said_to_fit() -> None:
    script = ("trainer=command", "trainer.command=[python,fit.py,'{lr}']", "trainer.log.figures=true")
    assert size_of(*script, "sweep.axes={trainer.params.lr:[1,2]}") == "The axes make 2 combinations."
    assert size_of(*script, "sweep.axes={trainer.params.lr:[1]}") == "The axes make 1 combination."
