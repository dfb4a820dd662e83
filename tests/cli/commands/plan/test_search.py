"""`trisweep plan` as a search: what a person types, and what comes out."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from cli.output.console import console
from conf.compose.model_from import expand_model_from
from costs import IMPLEMENTATIONS, estimate
from costs.setting import Setting
from results.render.units import significant
from sweeps.memory_odds import LIKELY, MemoryOdds
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.whole_space import search_space
from sweeps.points.plan import plan_sweep
from tests.cli.commands.plan.conftest import FEW, GPT_22B, JOB, ON_A_NODE, Plan
from tests.composed import composed, load

UNPRICED = (*ON_A_NODE, "cluster.device.price_per_hour=null")


@pytest.mark.slow
def test_json_is_the_whole_search_and_nothing_else(plan: Plan) -> None:
    document = json.loads(plan(*ON_A_NODE, "--json"))
    settings = load(ON_A_NODE)
    setting = Setting(settings.model, settings.cluster, "bf16", IMPLEMENTATIONS["trisweep"])
    memory = settings.cluster.device.memory_bytes
    free = memory - MemoryOdds.of("trisweep", 8).room_bytes(memory)
    pinned = {"context_parallel_size": 1, "recompute_every": 1}
    space = Space(setting, 8, 64, pinned=pinned, headroom_bytes=free, asks_likely=True)
    found = search_space(space, top=10)
    assert document["strategies"] == found.num_strategies
    assert document["feasible"] == found.num_feasible
    assert 0 < document["seconds"] < 60
    assert [one["predicted_step_seconds"] for one in document["best"]] == found.step_seconds.tolist()
    assert found.fastest is not None
    assert document["fastest"]["predicted_step_seconds"] == found.fastest.step_seconds[0]
    assert document["fastest"]["predicted_step_seconds"] <= document["best"][0]["predicted_step_seconds"]
    assert len(document["fastest"]["departures"]) >= len(document["best"][0]["departures"])
    assert (document["without_headroom"] is None) == (found.crowded is None)


def test_a_list_of_clusters_that_is_empty_is_as_if_none_was_given(plan: Plan) -> None:
    assert plan("smoke", "--clusters", "") == plan("smoke")


@pytest.mark.slow
def test_the_commands_to_go_on_name_the_model_s_file_as_it_was_named(plan: Plan, tmp_path: Path) -> None:
    """In place of the twenty values that it comes to; what corrects one of them is printed after it."""
    named = f"model_from={tmp_path}/config.json"
    shape = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    shape |= {"num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    words = [named, "cluster=selene", "model.seq_length=2048"]
    for asked in (["175b", *words], [*words, "--mixed", "selene:8,dgx-h100:8"]):
        (command, *_) = re.findall("trisweep (?:plan|train) .*", plan(*asked))
        assert command.count("model") == 2
        kept = [word for word in shlex.split(command)[2:] if "=" in word]
        assert kept[0] == named
        assert composed(expand_model_from(kept).texts).settings.model.seq_length == 2048


def test_the_parts_of_a_plan_break_below_their_own_beginning(plan: Plan) -> None:
    lines = plan(*GPT_22B, "--explain", "best", "--top", "1", columns=80).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  time    compute"))
    assert lines[start + 1].startswith(10 * " ")
    assert lines[start + 1].strip()


@pytest.mark.slow
def test_the_overrides_of_a_plan_compose_to_the_experiment_that_was_predicted(plan: Plan) -> None:
    best = json.loads(plan(*GPT_22B, "--json", "--top", "3"))["best"]
    assert len(best) == 3
    for one in best:
        predicted = estimate(load([*GPT_22B, *one["overrides"]]).experiment())
        assert predicted.step_seconds == one["predicted_step_seconds"]
        assert predicted.peak_memory_bytes == one["predicted_peak_memory_bytes"]


@pytest.mark.slow
def test_the_table_fits_100_columns_and_says_once_that_it_is_predicted(plan: Plan) -> None:
    shown = plan(*GPT_22B, "--devices", "16,32", "--tokens", "1e9", "--explain", "best")
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert shown.count("Predicted, not measured") == 1
    assert "What binds: compute" in shown
    assert "plans," in shown


def test_in_80_columns_neither_the_layout_nor_the_money_that_ranks_it_is_cut(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_width", 80)
    choice = ("--devices", "8,16", "--objective", "cost", "--tokens", "1T", "--top", "3")
    words = plan(*GPT_22B, "cluster.name=of-a-long-name-20-chars", *choice).splitlines()
    head = next(number for number, line in enumerate(words) if " # " in line)
    assert words[head].split()[:2] == ["#", "layout"]
    assert words[head].split()[-1] == "$"
    assert re.fullmatch(r" *1 +tp\S{8,} .* [\d,]+ *", words[head + 2])
    assert "…" not in "".join(words)


@pytest.mark.slow
def test_the_table_shows_the_money_and_the_energy_of_the_rows(plan: Plan) -> None:
    training = ("--tokens", "1e9", "--top", "1")
    (best,) = json.loads(plan(*GPT_22B, *training, "--json"))["best"]
    of_a_token = [significant(best[f"predicted_{name}"]) for name in ("dollars_per_million_tokens", "joules_per_token")]
    assert {*of_a_token} <= {*plan(*GPT_22B, "--top", "1").split()}
    of_all = [significant(best["predicted_hours"]), f"{best['predicted_dollars']:,.0f}"]
    assert {*of_all} <= {*plan(*GPT_22B, *training).split()}


@pytest.mark.slow
def test_a_sweep_is_searched_with_its_model_cluster_and_batch(plan: Plan) -> None:
    (best,) = json.loads(plan("175b", "--search", *FEW, "--json", "--top", "1"))["best"]
    assert (best["model"], best["cluster"], best["world_size"]) == ("gpt-175b", "frontier", 1024)
    assert best["global_batch_size"] == 5120


def test_a_sweep_whose_points_are_searched_shows_those_that_it_will_run_and_why(plan: Plan) -> None:
    shown = " ".join(plan("smoke", "search=planner").split())
    assert "points at full size" in shown
    record = plan_sweep(composed(["sweep=smoke", "search=planner"]), proxy=False, git_sha="")
    chosen = [f"{record.plan_label_of(point)}: {point.chosen_because}" for point in record.plan if point.chosen_because]
    assert len(chosen) > 5
    assert all(line in shown for line in chosen)
    assert ": tests " in shown


def test_a_search_that_was_asked_for_is_of_all_plans_whatever_the_sweep_runs(plan: Plan) -> None:
    assert "plans," in plan("smoke", "search=planner", "--search")


def test_a_plan_without_search_options_is_the_sweeps_points(plan: Plan) -> None:
    assert "points at full size" in plan("smoke")


def test_pinned_knobs_stay(plan: Plan) -> None:
    pinned = ("parallel.recompute=full", "parallel.tensor_parallel_size=2")
    best = json.loads(plan(*GPT_22B, *pinned, "--json"))["best"]
    assert {(one["recompute"], one["tensor_parallel_size"]) for one in best} == {("full", 2)}


@pytest.mark.slow
def test_every_knob_of_an_explanation_stands_whole_in_80_columns(plan: Plan) -> None:
    knobs = plan(*GPT_22B, "--explain", "parallel.zero_stage=1", columns=80).split("why not")[1].splitlines()
    names = [line.split()[0] for line in knobs if line.startswith(" ") and len(line.split()) > 1 and line[1] != " "]
    assert "pipeline_parallel_size" in names


def test_a_named_plan_is_explained_with_its_neighbours(plan: Plan) -> None:
    named = "parallel.tensor_parallel_size=8 parallel.sequence_parallel=true parallel.zero_stage=1"
    (explained,) = json.loads(plan(*GPT_22B, "--explain", named, "--json"))["explanations"]
    assert explained["layout"] == "tp8-pp1-dp2-mb1-gb64-sp-zero1"
    assert {one["knob"] for one in explained["alternatives"]} >= {"tensor_parallel_size", "recompute", "zero_stage"}
    assert explained["predicted_compute_seconds"] > 0


@pytest.mark.slow
def test_a_named_plan_that_does_not_fit_says_by_how_much(plan: Plan) -> None:
    (explained,) = json.loads(plan(*GPT_22B, "--explain", "parallel.zero_stage=0", "--json"))["explanations"]
    assert "GiB short" in explained["infeasible_reason"]


@pytest.mark.slow
def test_a_named_plan_is_explained_where_the_search_took_place(plan: Plan) -> None:
    named = "parallel.tensor_parallel_size=8 parallel.sequence_parallel=true parallel.zero_stage=1"

    def explained(cluster: str, *arguments: str) -> object:
        found = json.loads(plan(*GPT_22B, *arguments, "--json"))["explanations"]
        alone = json.loads(plan(*GPT_22B, f"cluster={cluster}", "--explain", named, "--json"))["explanations"]
        return found == alone

    assert explained("dgx-h100", "--clusters", "dgx-h100", "--explain", named)
    assert explained("dgx-h100", "--clusters", "dgx-h100", "--explain", f"cluster.device.price_per_hour=1 {named}")
    assert explained("dgx-h200", "--clusters", "dgx-h100", "--explain", f"cluster=dgx-h200 {named}")


@pytest.mark.slow
def test_a_named_plan_is_explained_on_as_many_devices_as_were_searched(plan: Plan) -> None:
    (explained,) = json.loads(
        plan(*GPT_22B, "--devices", "32", "--explain", "parallel.tensor_parallel_size=8", "--json")
    )["explanations"]
    assert explained["layout"].startswith("tp8-pp1-dp4-")


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("output", [(), ("--json",)])
def test_a_named_plan_is_explained_where_no_plan_fits(
    output: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--explain", "best", "--explain", "parallel.tensor_parallel_size=8 parallel.pipeline_parallel_size=1")
    arguments = ("model=gpt-175b", "cluster=selene", "precision=bf16", "--devices", "8", *named)
    monkeypatch.setattr(sys, "argv", ["trisweep", "plan", *arguments, *output])
    with pytest.raises(SystemExit) as ended:
        main()
    shown, refused = capsys.readouterr()
    assert ended.value.code == 2
    assert "the one that needs least takes" in " ".join(refused.split())
    if output:
        (explained,) = json.loads(shown)["explanations"]
        assert "GiB short" in explained["infeasible_reason"]
    else:
        assert "GiB short" in " ".join(shown.split())


@pytest.mark.slow
def test_time_against_money_over_clusters(plan: Plan) -> None:
    offered = ("--clusters", "selene,dgx-h100", "--devices", "16,32", "--pareto", "--json")
    front = json.loads(plan(*GPT_22B, *offered))["pareto"]
    seconds = [one["predicted_step_seconds"] for one in front]
    dollars = [one["predicted_dollars_per_million_tokens"] for one in front]
    assert seconds == pytest.approx(sorted(seconds), rel=0.03)  # what plainness weighs
    assert dollars == sorted(dollars, reverse=True)
    assert len(front) > 1


@pytest.mark.slow
def test_plans_of_the_front_that_may_not_fit_are_marked_as_in_the_other_table(plan: Plan) -> None:
    sizes = ("parallel.tensor_parallel_size=4", "parallel.pipeline_parallel_size=2", "batch.micro_batch_size=8")
    others = ("parallel.recompute=none", "parallel.zero_stage=1", f"cluster.device.memory_bytes={74 * 2**30}")
    even = ("parallel.layers_per_stage=null", "parallel.sequence_parallel=true", "parallel.virtual_pipeline_size=1")
    printed = plan(*GPT_22B, *sizes, *others, *even, "--pareto", "--devices", "16")
    shown = printed.partition("nothing beats these in time and money")[2]
    assert len(re.findall(r"\d!", shown)) == 1
    assert re.search(r"! #1 is \d+% likely to fit, by what predicted memory was off", " ".join(shown.split()))


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("unfit", "reason", "overrides", "number"),
    [
        ("dgx1-v100", "precision.dtype = 'bf16': has no peak on", (), "16"),
        (
            "local",
            "devices = 64: is not a number of devices that a job can have on cluster local",
            ("precision=fp32",),
            "64",
        ),
    ],
)
def test_a_cluster_that_cannot_run_the_job_is_left_out_and_said_so(
    unfit: str, reason: str, overrides: tuple[str, ...], number: str, plan: Plan
) -> None:
    asked = (*GPT_22B, *overrides, "--devices", number, "--clusters", f"{unfit},selene")
    document = json.loads(plan(*asked, "--json"))
    (left_out,) = document["left_out"]
    assert left_out["cluster"] == unfit
    assert reason in left_out["reason"]
    assert {one["cluster"] for one in document["best"]} == {"selene"}
    shown = " ".join(plan(*asked).split())
    assert f"searched in {shown.split('searched in ')[1].split()[0]} s. Left out: {unfit}: {reason}" in shown


@pytest.mark.slow
def test_scaling_doubles_up_to_the_devices(plan: Plan) -> None:
    curve = json.loads(plan(*GPT_22B, "--scaling", "strong", "--json"))["scaling"]
    assert [point["world_size"] for point in curve["points"]] == [8, 16]
    assert "weak scaling" in plan(*GPT_22B, "--scaling", "weak")


@pytest.mark.thorough  # than the doubling below
@pytest.mark.slow
def test_scaling_is_of_the_cluster_that_was_searched(plan: Plan) -> None:
    on_dgx_h100 = ("--devices", "16", "--scaling", "strong", "--json")
    curve = json.loads(plan(*GPT_22B, "--clusters", "dgx-h100", *on_dgx_h100))["scaling"]
    assert curve == json.loads(plan(*GPT_22B, "cluster=dgx-h100", *on_dgx_h100))["scaling"]
    assert curve != json.loads(plan(*GPT_22B, *on_dgx_h100))["scaling"]


@pytest.mark.slow
def test_one_job_over_two_types(plan: Plan) -> None:
    document = json.loads(plan(*JOB, "--mixed", "selene:16,dgx-h100:16", "--json"))
    best = document["best"][0]
    assert [block["num_devices"] for block in best["blocks"]] == [16, 16]
    assert sum(sum(block["layers_per_stage"]) for block in best["blocks"]) == 48
    shown = plan(*JOB, "--mixed", "selene:16,dgx-h100:16")
    assert "One job over all of them" in shown
    command = shlex.split(shown[shown.index("trisweep train") :])
    assert estimate(load(command[2:]).experiment()).step_seconds == best["predicted_step_seconds"]
    assert set(best["overrides"]) <= set(command)


def test_assignments_to_two_types_are_likely_to_fit_and_one_line_says_what_was_left_out(plan: Plan) -> None:
    words = ["model=llama-2-13b", "precision=fp16", "batch.global_batch_size=32", "--mixed", "selene:4,dgx-h100:4"]
    shown, everything = (" ".join(plan(*words, *more).split()) for more in ([], ["--headroom", "0"]))
    assert re.search(r"Left out: \S+, 0\.\d% faster on paper, \d\d% likely to fit. --headroom 0 lets it in", shown)
    assert "!" not in shown
    assert "! #1 is 7" in everything
    assert "Left out" not in everything
    document = json.loads(plan(*words, "--json"))
    assert min(each["predicted_fit_probability"] for each in document["best"]) >= LIKELY
    assert document["without_headroom"]["predicted_fit_probability"] < LIKELY


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Nothing to plan was named"),
        (["175"], "Did you mean 175b?"),
        (["model=gpt-176b"], "model = 'gpt-176b'"),
        (
            [*GPT_22B, "--objective", "speed"],
            "--objective = 'speed': is not known. Use one of time, cost, energy, device-hours",
        ),
        ([*GPT_22B, "--scaling", "up"], "--scaling = 'up': is not known. Use one of weak, strong"),
        ([*GPT_22B, "--budget", "100"], "nothing says how long that is"),
        ([*GPT_22B, "--budget", "100", "--tokens", "1e12"], "the cheapest plan costs $"),
        ([*GPT_22B, "--budget", "-1", "--tokens", "1e12"], "budget = -1.0: is not above zero"),
        ([*GPT_22B, "--deadline", "0.1", "--steps", "1000000"], "the fastest plan takes"),
        ([*GPT_22B, "--steps", "10", "--tokens", "100"], "--tokens and --steps both say"),
        ([*GPT_22B, "--devices", "13"], "devices = 13"),
        ([*GPT_22B, "--devices", "9" * 4401], "is not a list of numbers"),
        ([*GPT_22B, "--devices", f"8-{'9' * 4401}"], "is not a list of numbers"),
        ([*GPT_22B, "--mixed", f"selene:16,dgx-h100:{'9' * 4401}"], "is not a list of clusters and devices"),
        ([*GPT_22B, "--tokens", "300"], "--tokens = 300: is less than the 131,072 of one step"),
        ([*GPT_22B, "--tokens", "9" * 400], "must be a number from 1 to 1e+18"),
        ([*GPT_22B, "--tokens", "300X"], "--tokens = '300X': must be a number from 1 to 1e+18"),
        ([*GPT_22B, "--explain", "worst"], "--explain = 'worst': names no plan"),
        ([*GPT_22B, "cluster.links=[]"], "cluster.links = []: must have 1 or more entries"),
        ([*GPT_22B, "--steps", "9" * 400], "must be a whole number from 1 to 1e+18"),
        ([*GPT_22B, "--steps", "0"], "--steps = 0: must be a whole number from 1 to 1e+18. Count optimizer steps."),
        ([*GPT_22B, "--clusters", "selen"], "--clusters = 'selen': is not a known cluster. Did you mean selene?"),
        ([*GPT_22B, "--mixed", "selen:8,selene:8"], "--mixed = 'selen': is not a known cluster. Did you mean selene?"),
        ([*GPT_22B, "--mixed", "selene:8,dgx-h100:11"], "--mixed = 11: is not a number of devices that a job can have"),
        ([*GPT_22B, "--mixed", "selene:8"], "--mixed = 'selene:8': names fewer than two clusters"),
        ([*GPT_22B, "--mixed", "selene"], "--mixed = 'selene': is not a list of clusters and devices"),
        (
            [*GPT_22B, "--clusters", "selene,dgx-h100", "cluster.num_nodes=4"],
            "does not say which of --clusters it is for",
        ),
        ([*GPT_22B, "--implementation", "mine"], "Known: trisweep"),
        ([*GPT_22B, "--mixed", "selene:16"], "names fewer than two clusters"),
        (
            [*GPT_22B, "--mixed", "selene:16,dgx-h100:16", "--flat", "--objective", "time"],
            "one job takes, and finds the fastest plan. Leave out --flat.",
        ),
        ([*GPT_22B, "--mixed", "selene:16,dgx-h100:16", "--pareto"], "--mixed says which devices"),
        ([*GPT_22B, "--explain", "parallel.tensor_size=3"], "is not a key"),
        ([*UNPRICED, "--objective", "cost"], "cluster.device.price_per_hour = None"),
        ([*UNPRICED, "--pareto"], "cluster.device.price_per_hour = None"),
        (["model=gpt-1t", "cluster=selene", "precision=bf16", "--devices", "8"], "the one that needs least takes"),
        (
            [*GPT_22B, "--devices", "4096", "--clusters", "selene,dgx-h100"],
            "devices = 4096: is not a number of devices",
        ),
        ([*GPT_22B, "--devices", "x", "--clusters", "selene,dgx-h100"], "devices = 'x': is not a list of numbers"),
        (["model=gpt-22b", "cluster=dgx1-v100", "precision=bf16"], "has no peak"),
    ],
)
def test_bad_input_is_one_message_on_stderr(arguments: list[str], message: str, refusal: Plan) -> None:
    assert message in refusal(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--devices", "13"),
            "parallel.world_size=16 is passed over, as --devices says how many devices are searched.",
        ),
        (("--mixed", "selene:9,dgx-h100:9"), "parallel.world_size=16 is passed over, as --mixed says"),
        (("--devices", "16", "--budget", "-1", "--tokens", "1e9"), None),
        (("--budget", "-1", "--tokens", "1e9"), None),
    ],
)
def test_a_number_of_devices_beside_an_option_that_names_another_is_passed_over_with_a_word(
    options: tuple[str, ...], said: str | None, refusal: Plan
) -> None:
    complained = refusal(*GPT_22B, *options)
    assert ("is passed over" in complained) == (said is not None)
    assert said is None or said in complained


@pytest.mark.slow
def test_the_search_imports_neither_torch_nor_mlflow_nor_pandas(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['trisweep', 'plan', *sys.argv[1:]]\n"
        "from cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([name for name in ('torch', 'mlflow', 'pandas', 'submitit') if name in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *GPT_22B, "--json", "--explain", "best"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["strategies"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("compiled", "is_told"), [("false", True), ("true", False)])
def test_where_narrow_products_make_a_plan_slower_its_explanation_says_so(
    plan: Plan, compiled: str, is_told: bool
) -> None:
    asked = ("precision=fp8", f"training.compile_layers={compiled}", "--devices", "16", "--explain", "best")
    shown = " ".join(plan("model=gpt-22b", "cluster=dgx-h100", *asked).split())
    lost = "Casting operands takes longer than low-precision matmuls save: the same plan is predicted to take"
    assert (lost in shown) == is_told
    assert ("s with precision.matmul_recipe=null, and with training.compile_layers=true" in shown) == is_told
