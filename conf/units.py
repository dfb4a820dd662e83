"""The one unit that messages for people share; values in the configuration are plain bytes."""

GIBIBYTE = 2**30
