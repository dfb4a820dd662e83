"""Seconds of one kernel and of one collective: what everything larger is made of."""
