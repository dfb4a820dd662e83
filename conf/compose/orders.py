"""Pairs of keys of which one must not be above the other. A plan that breaks such an order is refused where it is made.

What records of earlier sweeps hold is read as it is, and what a sweep's file states may break an order that each of its
points keeps. Orders within one spec that no point sets apart, such as `top_k` and `num_experts`, are rules of the spec.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from conf.errors import InfeasiblePlan


class Order(NamedTuple):
    """What comes of one key above another, and what to do.

    Attributes:
        key: it must not be above the other, nor reach it where the sign between them is `<`.
        problem: `{most}` stands for the other key and its value.
        remedy: `{fits}` stands for the highest value that fits.
    """

    key: str
    sign: str
    most: str
    problem: str
    remedy: str


TIMES = {"precision.wide_layers": 2}
"""So many times their value are meant: of layers at each end."""
OF_OWN = ("training.evaluate_every", "watch.compare_replicas_every")
"""In this package's own trainer alone."""
FEWER = "Use {fits} or less, or null."
ORDERS = tuple(
    Order(key, sign, most, *words)
    for order, words in {
        "training.num_warmup_steps < training.num_steps": (
            "leaves none of {most} to measure",
            "Use fewer warm-up steps or more steps.",
        ),
        "training.min_learning_rate <= training.learning_rate": (
            "is above {most}, so that the rate would climb from there to the last step",
            "Use null, which is a tenth of the rate, or {fits} or less.",
        ),
        "training.learning_rate_warmup_steps <= training.num_steps": (
            "is more than {most}, so that the rate would never reach training.learning_rate",
            "Use {fits} or less, or raise training.num_steps to that of the whole training.",
        ),
        "training.evaluate_every <= training.num_steps": (
            "is more than {most}, so that nothing would be evaluated",
            FEWER,
        ),
        "watch.compare_replicas_every <= training.num_steps": (
            "is more than {most}, so that nothing would be compared",
            FEWER,
        ),
        "model.attention_window.full_every <= model.num_layers": (
            "is more than {most}, so that no layer would attend to all tokens",
            "Use null where none does, or {fits} or less.",
        ),
        "model.experts.imbalance <= model.experts.num_experts": (
            "is more than {most}, which all tokens on one expert would come to",
            "Use {fits} or less; benchmarks force 1.",
        ),
        "precision.wide_layers < model.num_layers": (
            "leaves none of {most} with low-precision matmuls, as so many layers keep full precision at each end",
            "Use {fits} or less, or precision.matmul_recipe=null.",
        ),
        "cluster.reserved_memory_bytes < cluster.device.memory_bytes": (
            "leaves nothing of {most}",
            "Use less; a framework takes one to three GiB.",
        ),
    }.items()
    for key, sign, most in [order.split()]
)


def require_order(settings: Any, open_key: str = "") -> None:
    """Refuse settings of which a key is above another that it must not be above.

    Args:
        open_key: whose value is not known yet, so that nothing is held against it.

    Raises:
        InfeasiblePlan: names both keys and their values, and what would fit.
    """
    for order in ORDERS:
        value, most = _value(settings, order.key), _value(settings, order.most)
        is_open = open_key == order.most or (order.key in OF_OWN and not settings.trainer.is_own)
        if value is None or most is None or is_open:
            continue
        times, is_below = TIMES.get(order.key, 1), order.sign == "<"
        if times * value > most or (is_below and times * value == most):
            fits = (most - is_below) // times if isinstance(most, int) else most
            problem, remedy = order.problem.format(most=f"{order.most} = {most}"), order.remedy.format(fits=fits)
            raise InfeasiblePlan(order.key, value, problem, remedy)


def _value(settings: Any, key: str) -> Any:
    """The number at a dotted key; None where a part on the way is null."""
    for name in key.split("."):
        settings = None if settings is None else getattr(settings, name)
    return settings
