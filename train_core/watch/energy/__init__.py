"""The energy that the devices of a training take, as counters beside them say.

counters  one counter of an NVIDIA GPU, a GCD of an AMD card or a processor, and how it is followed
meter     all counters of a rank over the timed steps, and the sum over all ranks
"""
