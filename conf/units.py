"""The units of messages for people; values in the configuration are plain bytes, FLOP/s and seconds."""

GIBIBYTE = 2**30
TERA = 1e12
