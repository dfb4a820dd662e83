"""One value of a YAML text changes, and nothing else."""

from __future__ import annotations

import pytest
import yaml

from calibrate.cluster_file import with_value

TEXT = """\
# A cluster.
name: here
efficiency:
  matmul: 0.6 # a guess
  # People may write what they like.
  link: 1.0
  source: >-
    several
    lines
links: # per device
  - name: fast
    latency_seconds: 5.0e-6 # assumption
  - {name: slow, latency_seconds: 1.0e-5}
device: {watts: 5} # inline
"""


def test_a_value_is_replaced_and_every_other_line_stays() -> None:
    new = with_value(TEXT, ("efficiency", "link"), "0.5")
    assert new == TEXT.replace("link: 1.0", "link: 0.5")


def test_the_origin_stands_above_the_value_and_what_was_said_before_is_kept() -> None:
    new = with_value(TEXT, ("efficiency", "matmul"), "0.7", "measured: by me, today")
    assert (
        """\
efficiency:
  # matmul was 0.6: a guess
  # matmul measured: by me, today
  matmul: 0.7
  # People may"""
        in new
    )


def test_a_second_calibration_replaces_the_words_of_the_first_and_keeps_the_original() -> None:
    once = with_value(TEXT, ("efficiency", "link"), "0.7", "measured: on Monday")
    twice = with_value(once, ("efficiency", "link"), "0.8", "fitted: on Tuesday")
    assert twice == once.replace("link: 0.7", "link: 0.8").replace("measured: on Monday", "fitted: on Tuesday")
    assert "  # People may write what they like.\n  # link was 1.0\n  # link fitted: on Tuesday\n  link: 0.8" in twice


def test_entries_of_lists_are_found_by_position() -> None:
    new = with_value(TEXT, ("links", 0, "latency_seconds"), "4.0e-6", "measured: now")
    assert "  - name: fast\n    # latency_seconds was 5.0e-6: assumption\n" in new
    assert "    # latency_seconds measured: now\n    latency_seconds: 4.0e-6\n  - {name: slow" in new
    assert yaml.safe_load(with_value(TEXT, ("links", 1, "latency_seconds"), "3.0"))["links"][1] == {
        "name": "slow",
        "latency_seconds": 3.0,
    }


def test_a_text_over_several_lines_is_replaced_whole() -> None:
    new = with_value(TEXT, ("efficiency", "source"), '"one"')
    assert '  source: "one"\nlinks: # per device\n' in new


def test_a_key_that_is_missing_is_added_below_its_siblings() -> None:
    new = with_value(TEXT, ("efficiency", "slack"), "0.1", "fitted: now")
    assert "    lines\n  # slack fitted: now\n  slack: 0.1\nlinks:" in new
    deep = with_value(TEXT, ("cost", "of", "all"), "1.5")
    assert deep == TEXT + "cost:\n  of:\n    all: 1.5\n"
    again = with_value(deep, ("cost", "of", "one"), "2.5")
    assert yaml.safe_load(again)["cost"] == {"of": {"all": 1.5, "one": 2.5}}


def test_a_mapping_in_braces_takes_a_key_inside_them() -> None:
    new = with_value(TEXT, ("device", "peak", "fp32"), "1.0e12")
    assert new.endswith("device: {watts: 5, peak: {fp32: 1.0e12}} # inline\n")


@pytest.mark.parametrize("null", [" null", " ~", ""])
@pytest.mark.parametrize("after", ["", " # a remark", "\nlast: 1"])
def test_a_value_that_is_null_is_replaced_and_a_null_on_the_way_becomes_a_mapping(null: str, after: str) -> None:
    shown = with_value(f"shown:{null}{after}", ("shown",), "0.5")
    assert shown == f"shown: 0.5{after}"
    fitted = with_value(f"shown:{null}{after}", ("shown",), "0.5", "fitted: now")
    assert yaml.safe_load(fitted)["shown"] == 0.5
    runs = with_value(f"runs:{null}{after}", ("runs", "most"), "2")
    assert runs == f"runs: {{most: 2}}{after}"
    assert with_value(runs, ("runs", "least"), "1") == f"runs: {{most: 2, least: 1}}{after}"


def test_a_text_without_a_last_newline_is_no_obstacle() -> None:
    assert with_value("a: 1", ("b",), "2", "measured: now") == "a: 1\n# b measured: now\nb: 2\n"
    assert with_value("a: 1", ("a",), "2") == "a: 2"
