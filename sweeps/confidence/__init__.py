"""How far a prediction may be trusted: an interval from published rows that were left out, and what lies outside them.

interval   the interval of one prediction, and where it lies outside of what was ever validated
kinds      what kind of plan it is, as far as errors differ between kinds
validated  what was learned from the rows that were left out, read from validated.yaml
"""

from sweeps.confidence.interval import Interval, interval_of

__all__ = ["Interval", "interval_of"]
