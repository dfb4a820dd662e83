"""The trust that a prediction deserves: an interval learned from published rows, and what lies outside of them.

interval   the interval of one prediction, and where it lies outside of what was ever validated
"""

from sweeps.confidence.interval import Interval, interval_of

__all__ = ["Interval", "interval_of"]
