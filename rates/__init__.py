"""The real speed of a device and its links, measured by all ranks of a job at once: the input of a calibration.

plan, record           what is measured, what was found, and where it lies on disk; no torch
link_fit               a link's latency and bandwidth from measured times; no torch
device                 one rank of a calibration, and the kernels that it measures; imports torch
links                  the links that it measures, and the stopwatch that times both
preflight              seconds of the same before a training, which tell a bad node from a good one; imports torch
"""
