"""A module for every `trisweep COMMAND`, by the command's name.

On paper: `plan`, `estimate`, `diagnose`, `rehearse`, `calibrate`. Measuring: `sweep`, `train`, `rerun`, and
`control`, which has `advance`, `pause`, `resume`, `retry` and `cancel`. Looking: `status`, `logs`, `metrics`,
`report`, `show` (and `list`), `ui`, `reindex`, `export`. The site: `init`, `doctor`. A command that needs more than a
module is a room: it has its `command`, and what only that needs. What takes long to import is a module of its own
too, which the command loads when it runs, so that `--help` and completion do not wait for it.
"""
