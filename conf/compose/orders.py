"""Pairs of keys of which one must not be above the other. A plan that breaks such an order is refused where it is made.

What records of earlier sweeps hold is read as it is, and what a sweep's file states may break an order that each of its
points keeps. Orders within one spec that no point sets apart, such as `top_k` and `num_experts`, are rules of the spec.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from conf.errors import InfeasiblePlan
from conf.folders import package_content


class Order(NamedTuple):
    """What comes of one key above another, and what to do.

    Attributes:
        key: it must not be above the other, nor reach it where the sign between them is `<`.
        problem: `{most}` stands for the other key and its value.
        remedy: `{fits}` stands for the highest value that fits.
        times: so many times the key's value are meant.
        of_own: in this package's own trainer alone.
    """

    key: str
    sign: str
    most: str
    problem: str
    remedy: str
    times: int = 1
    of_own: bool = False


ORDERS = tuple(Order(*order.split(), **words) for order, words in package_content("orders.yaml").items())


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
        is_below, reach = order.sign == "<", order.times * value
        if reach > most or (is_below and reach == most):
            fits = (most - is_below) // order.times if isinstance(most, int) else most
            problem, remedy = order.problem.format(most=f"{order.most} = {most}"), order.remedy.format(fits=fits)
            raise InfeasiblePlan(order.key, value, problem, remedy)


def _value(settings: Any, key: str) -> Any:
    """The number at a dotted key; None where a part on the way is null."""
    for name in key.split("."):
        settings = None if settings is None else getattr(settings, name)
    return settings
