"""Pairs of keys whose order matters: defaults keep it, and a stated value that breaks it is refused by both keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from conf.compose.load import Composition
from conf.compose.orders import ORDERS
from conf.compose.tree import with_values
from conf.errors import InfeasiblePlan
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from sweeps.planner.request import search_request
from sweeps.points.plan import plan_sweep
from sweeps.trial import Trial, record_of, text_of
from tests.composed import compose_tree, load
from tests.messages import refused
from train_core.optimizers.learning_rate import learning_rate_at

TINY = ["model=tiny", "cluster=local", "data=synthetic", "batch.global_batch_size=4", "parallel.world_size=1"]
RATES = ["training.num_steps=8", "training.num_warmup_steps=1", "training.learning_rate_warmup_steps=0"]


def tiny(*texts: str) -> Experiment:
    return load([*TINY, *texts]).experiment()


def rates_of(experiment: Experiment) -> list[float]:
    plan = experiment.training
    return [learning_rate_at(step, plan) for step in range(1, plan.num_steps + 1)]


def trials_of(axes: str, *more: str, base: Sequence[str] = TINY) -> list[Trial]:
    points = "{name: lr, question: Which?, points: [], max_trials: 8, published: [], proxy: null,"
    sweep = f"+sweep={points} baseline: {{parallel.world_size: 1}}, axes: {axes}}}"
    texts = [*base, sweep, *more]
    record = plan_sweep(Composition(Overrides.parse(texts), compose_tree(texts)), proxy=False, git_sha="")
    return list(record_of(text_of(record)).trials)


@pytest.mark.parametrize("rate", [1e-6, 1e-5, 3e-4, 1e-3, 0.5])
def test_the_rate_comes_down_to_a_tenth_of_itself_whatever_it_is(rate: float) -> None:
    rates = rates_of(tiny(*RATES, f"training.learning_rate={rate}"))
    assert rates == sorted(rates, reverse=True)
    assert math.isclose(rates[-1], rate / 10)


def test_the_default_rate_ends_where_it_did_so_that_its_trials_stay_what_they_are() -> None:
    assert tiny().training.min_learning_rate == 3e-5
    stated = [
        "training.min_learning_rate=3.0e-5",
        "training.num_warmup_steps=3",
        "training.learning_rate_warmup_steps=2",
    ]
    assert tiny().fingerprint == tiny(*stated).fingerprint


@pytest.mark.parametrize(
    ("texts", "known"),
    [
        (["model=tiny", "cluster=local"], "c0380e34b471"),
        (["model=tiny", "cluster=local", "training.num_steps=3", "training.num_warmup_steps=1"], "2772a9a18144"),
        (["model=gpt-175b", "cluster=frontier", "training.num_steps=1000"], "86b2a38a841e"),
    ],
)
def test_trials_that_were_measured_before_keep_their_folders(texts: list[str], known: str) -> None:
    assert load(texts).experiment().fingerprint == known


def test_each_point_of_a_sweep_of_rates_has_a_minimum_of_its_own() -> None:
    trials = trials_of("{training.learning_rate: [0.000001, 0.00001, 0.0001]}", *RATES)
    axis = [trial.planned.training for trial in trials if "training.learning_rate" in trial.point]
    assert [plan.min_learning_rate for plan in axis] == [1e-7, 1e-6, 1e-5]


def test_a_stated_minimum_leaves_out_the_points_below_it() -> None:
    trials = trials_of("{training.learning_rate: [0.000001, 0.0001]}", *RATES, "training.min_learning_rate=3.0e-5")
    reasons = {trial.point.get("training.learning_rate"): trial.infeasible_reason for trial in trials}
    assert reasons[0.0001] is None
    assert "min_learning_rate = 3e-05: is above training.learning_rate = 1e-06" in str(reasons[0.000001])


def test_what_a_file_states_for_its_points_need_not_suit_a_training_of_ten_steps() -> None:
    axes = "{training.num_steps: [1000, 2000]}"
    more = [
        "training.learning_rate_warmup_steps=100",
        "training.num_warmup_steps=50",
        "sweep.baseline={training.num_steps: 1000}",
    ]
    assert [trial.infeasible_reason for trial in trials_of(axes, *more)] == [None, None]


def test_tokens_of_less_than_a_step_are_refused() -> None:
    one_step = ["search.tokens=64", "model.seq_length=16", "search.objective=throughput"]
    trials = trials_of("{batch.global_batch_size: [2, 4, 8]}", *one_step, base=TINY[:3])
    reasons = {trial.point.get("batch.global_batch_size"): trial.infeasible_reason for trial in trials}
    assert reasons[2] is reasons[4] is None
    assert "search.tokens = 64: is less than the 128 of one step" in str(reasons[8])


def test_an_expression_sees_what_a_null_stands_for() -> None:
    axes = "{training.learning_rate: [0.001], training.weight_decay: '=training.min_learning_rate * 100'}"
    decays = [trial.planned.training.weight_decay for trial in trials_of(axes, *RATES) if len(trial.point) > 1]
    assert decays == [pytest.approx(0.01)]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 100])
def test_defaults_suit_every_number_of_steps(steps: int) -> None:
    plan = tiny(f"training.num_steps={steps}").training
    assert plan.num_warmup_steps == min(3, steps - 1)
    assert plan.learning_rate_warmup_steps == min(2, steps - 1)


BROKEN = {
    "training.num_warmup_steps": (["training.num_warmup_steps=10"], "training.num_steps = 10"),
    "training.min_learning_rate": (["training.min_learning_rate=0.001"], "training.learning_rate = 0.0003"),
    "training.learning_rate_warmup_steps": (["training.learning_rate_warmup_steps=11"], "training.num_steps = 10"),
    "training.evaluate_every": (
        ["training.evaluate_every=11", "data.held_out_fraction=0.1"],
        "training.num_steps = 10",
    ),
    "watch.compare_replicas_every": (["watch.compare_replicas_every=11"], "training.num_steps = 10"),
    "model.attention_window.full_every": (
        ["++model.attention_window={size: 8, full_every: 5}", "model.num_layers=4"],
        "model.num_layers = 4",
    ),
    "model.experts.imbalance": (
        [
            "++model.experts={num_experts: 4, top_k: 2, ffn_hidden_size: 32, imbalance: 5.0}",
            "model.family=llama",
            "model.gated_mlp=true",
        ],
        "model.experts.num_experts = 4",
    ),
    "precision.wide_layers": (
        ["precision=fp8", "precision.emulate=true", "precision.wide_layers=2", "model.num_layers=4"],
        "model.num_layers = 4",
    ),
    "cluster.reserved_memory_bytes": (
        ["cluster.reserved_memory_bytes=1099511627776"],
        "cluster.device.memory_bytes = ",
    ),
}


@pytest.mark.parametrize("key", [order.key for order in ORDERS])
def test_what_breaks_an_order_is_refused_by_both_keys(key: str) -> None:
    texts, most = BROKEN[key]
    settings = load([*TINY, *texts])
    with refused(InfeasiblePlan, key) as caught:
        settings.experiment()
    assert most in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "fits"),
    [
        (["training.num_warmup_steps=9"], True),
        (["training.min_learning_rate=0.0003"], True),
        (["training.min_learning_rate=0"], True),
        (["training.learning_rate_warmup_steps=10"], True),
        (["training.evaluate_every=10"], True),
        (["watch.compare_replicas_every=10"], True),
        (["checkpoint.every_steps=100"], True),  # the last step is saved all the same
        (["trainer=hf-trainer", "training.evaluate_every=100"], True),  # whatever that program does with it
    ],
    ids=str,
)
def test_what_just_fits_is_taken(texts: list[str], fits: bool) -> None:
    assert (tiny(*texts) is not None) == fits


def test_the_printed_value_fits() -> None:
    for key, (texts, _) in BROKEN.items():
        with pytest.raises(InfeasiblePlan) as caught:
            load([*TINY, *texts]).experiment()
        words = caught.value.remedy.split()
        if "or less" in caught.value.remedy and words[words.index("or") - 1].replace(".", "").isdecimal():
            fits = words[words.index("or") - 1]
            tree = with_values(compose_tree([*TINY, *texts]), {key: float(fits) if "." in fits else int(fits)})
            Composition(Overrides(), tree).settings.experiment()


def test_a_search_of_plans_refuses_it_too() -> None:
    texts = ["model=tiny", "cluster=local", "training.learning_rate=1e-5", "training.min_learning_rate=3e-5"]
    with refused(InfeasiblePlan, "training.min_learning_rate"):
        search_request(Composition(Overrides.parse(texts), compose_tree(texts)))


def test_a_plan_on_paper_may_have_a_warm_up_of_its_whole_training() -> None:
    texts = ["model=tiny", "cluster=local", "training.learning_rate_warmup_steps=2000"]
    assert search_request(Composition(Overrides.parse(texts), compose_tree(texts))).spaces


def test_a_record_of_an_earlier_sweep_is_read_whatever_order_it_breaks() -> None:
    (trial, *_) = trials_of("{training.learning_rate: [0.00001]}", *RATES)
    turned = trial.planned.training.model_copy(update={"min_learning_rate": 3e-5, "learning_rate": 1e-5})
    old = trial.planned.model_copy(update={"training": turned})
    assert Experiment.model_validate_json(old.model_dump_json()).training.min_learning_rate == 3e-5
