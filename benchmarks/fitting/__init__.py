"""The cost model's constants fitted to all published rows, and to all but one table: `python -m benchmarks.fitting`."""
