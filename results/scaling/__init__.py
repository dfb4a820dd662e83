"""Scaling: a trial against the baseline of its sweep, and the study of a layout over several numbers of devices.

relation   one trial against the baseline: strong, weak, or another layout
study      one layout on several numbers of devices, with the interval of each efficiency
laws       what Amdahl's and Gustafson's law make of it
"""

from results.scaling.relation import Scaling, scaling, scalings

__all__ = ["Scaling", "scaling", "scalings"]
