"""Numbers as people read them. Reports are the only place where TFLOPS, GiB and percentages appear."""

from __future__ import annotations

from conf.units import GIBIBYTE, TERA

ABSENT = "-"


def significant(value: float | None, digits: int = 3) -> str:
    """Write `value` with that many significant digits. There is no exponent notation above 1e-4."""
    if value is None:
        return ABSENT
    if value != value or abs(value) in (0.0, float("inf")):
        return f"{value:g}"
    # `#` keeps trailing zeros, which say how precise the number is; it may also leave a bare point behind.
    text = f"{value:#.{digits}g}"
    if "e" in text:
        return f"{value:,.0f}" if abs(value) >= 1 else text
    return text.removesuffix(".")


def tflops(flops_per_second: float | None) -> str:
    return significant(None if flops_per_second is None else flops_per_second / TERA)


def gib(num_bytes: float | None) -> str:
    """GiB with one decimal, two below one GiB, and two significant digits where those would be 0.00."""
    if num_bytes is None:
        return ABSENT
    value = num_bytes / GIBIBYTE
    if 0 < value < 0.005:
        return f"{value:.2g}"
    return f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def percent(fraction: float | None) -> str:
    return ABSENT if fraction is None else f"{100 * fraction:.1f}"


def share_of_peak(fraction: float | None) -> str:
    """A utilization; absent above 100 %, where the peak is wrong: something else ran while it was measured."""
    return ABSENT if fraction is None or fraction > 1.0 else percent(fraction)


def seconds(value: float | None) -> str:
    return significant(value)


def count(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def in_three_digits(value: float | None) -> str:
    """Three digits, of large numbers too: no cost of a whole training is known better."""
    return count(float(f"{value:.3g}")) if value is not None and value >= 1000 else significant(value)


def error_percent(predicted: float, measured: float) -> str:
    """The distance of the prediction above (+) or below (-) the measurement, in percent of the measurement."""
    return signed_percent((predicted - measured) / measured)


def signed_percent(share: float | None) -> str:
    """A share above or below nothing in percent, without a sign where it rounds to nothing."""
    shown = ABSENT if share is None else f"{100 * share:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown


def round_to_digits(value: float, digits: int = 5) -> float:
    """The number itself with so many significant digits, for the data inside a picture."""
    return float(f"{value:.{digits}g}")
