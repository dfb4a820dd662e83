"""`trisweep plan` shows families with intervals, pads vocabularies, and leaves memory free where it is told to."""

from __future__ import annotations

import json
import re

import pytest

from costs import estimate
from tests.cli.commands.plan.conftest import FEW, GPT_22B, ON_A_NODE, Plan
from tests.composed import load

AXES = ("tensor", "pipeline", "context")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_every_family_has_one_row_with_the_interval_of_its_best_plan(plan: Plan) -> None:
    document = json.loads(plan(*ON_A_NODE, "--json", "--top", "6"))
    families = document["families"]
    sizes = [tuple(one[f"{axis}_parallel_size"] for axis in AXES) for one in families]
    assert len(set(sizes)) == len(families) == 6 < document["num_families"]
    counted = [one["predicted_step_seconds"] * (1 + 0.01 * len(one["departures"])) for one in families]
    assert counted == sorted(counted)
    assert families[0] == document["best"][0]
    assert {name for one in document["best"] for name in one} == families[0].keys()
    for one in families:
        assert one["predicted_low_step_seconds"] < one["predicted_step_seconds"] < one["predicted_high_step_seconds"]
        experiment = load(one["overrides"] + [*ON_A_NODE[:3]]).experiment()
        assert estimate(experiment).step_seconds == one["predicted_step_seconds"]
        assert one["layout"] in experiment.label.replace("-gb64", "")


@pytest.mark.slow
def test_what_cannot_be_told_apart_is_said_with_the_trials_that_decide(plan: Plan) -> None:
    document = json.loads(plan(*ON_A_NODE, "--json"))
    rivals = document["not_told_apart"]
    assert len(document["trials_that_decide"]) == min(rivals, 10) > 1
    assert "The trials that would decide are #1 and #2." in words(plan(*ON_A_NODE, "--top", "2"))
    said = words(plan(*ON_A_NODE, "--top", "3"))
    assert f"{rivals} families cannot be told apart" in said
    assert "The trials that would decide are #1 to #3." in said
    assert re.search(r"--top \d+ shows all of them\.", said)


@pytest.mark.slow
def test_a_flat_list_holds_plans_and_no_families(plan: Plan) -> None:
    assert "families" not in json.loads(plan(*GPT_22B, "--json", "--flat"))
    families = json.loads(plan(*GPT_22B, "--json"))["families"]
    sizes = [tuple(row[f"{axis}_parallel_size"] for axis in AXES) for row in families]
    assert len(set(sizes)) == len(sizes) == 10


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_of_families_fits_the_terminal(columns: int, plan: Plan) -> None:
    assert max(map(len, plan(*GPT_22B, columns=columns).splitlines())) <= columns


@pytest.mark.slow
def test_a_vocabulary_as_it_comes_from_a_tokenizer_is_padded_and_said_so(plan: Plan) -> None:
    odd = (*GPT_22B, "model.vocab_size=50257")
    document = json.loads(plan(*odd, "--json", "--top", "3"))
    assert document["padded"] == {"model.vocab_size": 50304}
    for one in document["families"]:
        assert "model.vocab_size=50304" in one["overrides"]
        experiment = load([*odd, *one["overrides"]]).experiment()
        assert estimate(experiment).step_seconds == one["predicted_step_seconds"]
    assert max(one["tensor_parallel_size"] for one in document["families"]) > 1
    said = words(plan(*odd, "--explain", "parallel.tensor_parallel_size=2", "--top", "1"))
    assert "Vocabulary padded from 50,257 to 50,304 rows" in said
    assert "cannot exist" not in said
    assert json.loads(plan(*odd, "parallel.tensor_parallel_size=1", "--json"))["padded"] == {}


@pytest.mark.slow
def test_headroom_is_left_free_by_every_plan(plan: Plan) -> None:
    free = {"6GiB": 6.0, "10%": 8.0}
    for text, least in free.items():
        found = json.loads(plan(*GPT_22B, "--headroom", text, "--json"))
        for one in (*found["best"], *found["families"]):
            assert one["memory_capacity_bytes"] - one["predicted_peak_memory_bytes"] >= least * 10**9


@pytest.mark.slow
def test_every_plan_is_likely_to_fit_and_one_line_says_what_was_left_out(plan: Plan) -> None:
    job = ("175b", "--search", *FEW)
    document = json.loads(plan(*job, "--json"))
    assert all(one["predicted_fit_probability"] >= 0.9 for one in (*document["best"], *document["families"]))
    out = document["without_headroom"]
    assert out["predicted_fit_probability"] < 0.9
    said = words(plan(*job))
    assert "!" not in said.split("searched in")[0]
    gain = 100 - 100 * out["predicted_step_seconds"] / document["best"][0]["predicted_step_seconds"]
    odds = f"{gain:.1f}% faster on paper, {out['predicted_fit_probability']:.0%} likely to fit"
    assert f"Left out: {out['layout']}, {odds}" in said
    assert "--headroom 0 lets it in." in said


@pytest.mark.slow
def test_plans_that_somebody_lets_in_are_marked_with_how_likely_they_are_to_fit(plan: Plan) -> None:
    document = json.loads(plan(*GPT_22B, "--json", "--headroom", "0"))
    odds = [
        f"#{place} is {one['predicted_fit_probability']:.0%} likely to fit"
        for place, one in enumerate(document["families"], 1)
        if one["predicted_fit_probability"] < 0.9
    ]
    assert odds
    assert f"! {', '.join(odds)}, by what predicted memory was off" in words(plan(*GPT_22B, "--headroom", "0"))


def test_where_no_plan_is_likely_to_fit_those_that_fit_on_paper_are_shown_and_that_is_said(plan: Plan) -> None:
    sizes = ("parallel.tensor_parallel_size=4", "parallel.pipeline_parallel_size=2", "batch.micro_batch_size=8")
    others = ("parallel.recompute=none", "parallel.zero_stage=1", f"cluster.device.memory_bytes={74 * 2**30}")
    even = ("parallel.layers_per_stage=null", "parallel.sequence_parallel=true", "parallel.virtual_pipeline_size=1")
    said = words(plan(*GPT_22B, *sizes, *others, *even))
    assert "No plan is 90% likely to fit; what fits on paper is shown." in said
    assert re.search(r"! #1 is [1-8]\d% likely to fit", said)


@pytest.mark.parametrize("text", ["6", "6 gigs", "-1GiB", "80GiB", "100%", ""])
def test_headroom_that_is_no_amount_is_refused(text: str, refusal: Plan) -> None:
    assert "headroom = " in refusal(*GPT_22B, "--headroom", text)
