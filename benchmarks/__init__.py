"""Benchmarks: what the project promises in numbers, measured again by `make bench` or `python -m benchmarks`.

Every module here with a `main()` is one benchmark. It prints what it likes and returns its `Target`s; `__main__` runs
all and prints what was promised beside what was seen.
"""
