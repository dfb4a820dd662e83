"""The choice among the priced plans, and the reasons for it.

pruned_search many spaces at once: bounds tell which families need not be priced
choice        among spaces: which cluster, how many devices, which plan; `objectives` are money, energy, device-hours
explain       why a plan is as fast as it is, by the plans that differ from it in one knob
scaling       the best plan for every number of devices
"""
