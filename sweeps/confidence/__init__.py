"""The trust that a prediction deserves: an interval learned from published rows, and what lies outside of them.

interval   the interval of one prediction, and where it lies outside of what was ever validated
traits     what a plan has or has not, beyond its sizes
validated  what was learned from the rows that were left out, read from validated.yaml
width      which plans have wider intervals: small layers, and what few sources have measured
"""

from sweeps.confidence.interval import Interval, interval_of

__all__ = ["Interval", "interval_of"]
