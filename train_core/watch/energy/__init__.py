"""The energy that the devices of a training take, as counters beside them say.

counter   one counter, and how it is followed when it starts again from zero
nvml      an NVIDIA GPU
amd       a GCD of an AMD card, whose counter is the card's
meter     all counters of a rank over the timed steps, and the sum over all ranks
"""
