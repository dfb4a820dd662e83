"""Seconds of one kernel and of one collective: what everything larger is made of.

kernels        matrix products through a roofline with tiles, and memory-bound operations; `narrow`: in 8 or 4 bits
collectives    those and transfers, on the link tiers that a group of ranks crosses
"""
