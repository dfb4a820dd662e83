"""Scaling: a trial against the baseline of its sweep, and the study of a layout over several numbers of devices.

relation   one trial against the baseline: strong, weak, or another layout
"""

from results.scaling.relation import Scaling, scaling, scalings

__all__ = ["Scaling", "scaling", "scalings"]
