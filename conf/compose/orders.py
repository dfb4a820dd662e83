"""Pairs of keys of which one must not be above the other. A plan that breaks such an order is refused where it is made.

What records of earlier sweeps hold is read as it is, and what a sweep's file states may break an order that each of its
points keeps. Orders within one spec that no point sets apart, such as `top_k` and `num_experts`, are rules of the spec.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from conf.errors import InfeasiblePlan


class Order(NamedTuple):
    """One key must not be above another.

    Attributes:
        most: the key of the highest value.
        problem: what comes of it otherwise; `{most}` stands for that key and its value.
        remedy: what to do; `{fits}` stands for the highest value that fits.
        below: it must not reach that value either.
        times: so many times the value are meant.
        of_own: in this package's own trainer alone.
    """

    key: str
    most: str
    problem: str
    remedy: str
    below: bool = False
    times: int = 1
    of_own: bool = False


FEWER = "Use {fits} or less, or null."
ORDERS = (
    Order(
        "training.num_warmup_steps",
        "training.num_steps",
        "leaves none of {most} to measure",
        "Use fewer warm-up steps or more steps.",
        below=True,
    ),
    Order(
        "training.min_learning_rate",
        "training.learning_rate",
        "is above {most}, so that the rate would climb from there to the last step",
        "Use null, which is a tenth of the rate, or {fits} or less.",
    ),
    Order(
        "training.learning_rate_warmup_steps",
        "training.num_steps",
        "is more than {most}, so that the rate would never reach training.learning_rate",
        "Use {fits} or less, or raise training.num_steps to that of the whole training.",
    ),
    Order(
        "training.evaluate_every",
        "training.num_steps",
        "is more than {most}, so that nothing would be evaluated",
        FEWER,
        of_own=True,
    ),
    Order(
        "watch.compare_replicas_every",
        "training.num_steps",
        "is more than {most}, so that nothing would be compared",
        FEWER,
        of_own=True,
    ),
    Order(
        "model.attention_window.full_every",
        "model.num_layers",
        "is more than {most}, so that no layer would attend to all tokens",
        "Use null where none does, or {fits} or less.",
    ),
    Order(
        "model.experts.imbalance",
        "model.experts.num_experts",
        "is more than {most}, which all tokens on one expert would come to",
        "Use {fits} or less; benchmarks force 1.",
    ),
    Order(
        "precision.wide_layers",
        "model.num_layers",
        "leaves none of {most} with narrow products, as so many stay wide at each end",
        "Use {fits} or less, or precision.matmul_recipe=null.",
        below=True,
        times=2,
    ),
    Order(
        "cluster.reserved_memory_bytes",
        "cluster.device.memory_bytes",
        "leaves nothing of {most}",
        "Use less; a framework takes one to three GiB.",
        below=True,
    ),
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
        is_open = open_key == order.most or (order.of_own and not settings.trainer.is_own)
        if value is None or most is None or is_open:
            continue
        if order.times * value > most or (order.below and order.times * value == most):
            fits = (most - order.below) // order.times if isinstance(most, int) else most
            remedy = order.remedy.format(fits=fits)
            raise InfeasiblePlan(order.key, value, order.problem.format(most=f"{order.most} = {most}"), remedy)


def _value(settings: Any, key: str) -> Any:
    """The number at a dotted key; None where a part on the way is null."""
    for name in key.split("."):
        settings = None if settings is None else getattr(settings, name)
    return settings
