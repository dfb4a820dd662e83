"""Units and sizes that more than one part of the house spells out; values in the configuration are plain bytes."""

TERA = 1e12
GIGA = 1e9
MEBIBYTE = 2**20
GIBIBYTE = 2**30

FLOAT32_BYTES = 4
"""The width of what never shrinks with the precision: masters, optimizer states, softmax statistics."""
