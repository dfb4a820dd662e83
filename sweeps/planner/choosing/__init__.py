"""The choice among the priced plans, and the reasons for it.

promising    many spaces at once: bounds tell which families need not be priced
choice       among spaces: which cluster, how many devices, which plan; `objectives` are money, energy, device-hours
neighbours   plans that differ in one knob; `explain` says by them why a plan is as fast as it is
scaling      the best plan for every number of devices
"""
