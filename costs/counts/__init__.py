"""The counts that are exact, with no constant of any device.

parameters    how many parameters the model has, in all and on one rank; which sizes 64 bits hold
flops         what a step needs (model FLOPs), and what the hardware does (with recomputation)
buckets       the flat buckets in which this trainer keeps a rank's parameters
muon          the products of Muon's update, and what ranks exchange for it
traffic       numbers and bytes of the collectives of a rank
"""
