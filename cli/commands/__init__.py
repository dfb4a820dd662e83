"""A module for every `trisweep COMMAND`, by the command's name.

On paper: `plan`, `estimate`, `rehearse`, `calibrate`. Measuring: `sweep`, `train`, `advance`, `pause` (and `resume`),
`retry`, `rerun`, `cancel`. Looking: `status`, `logs`, `metrics`, `report`, `show`, `list`, `ui`, `reindex`, `export`.
The site: `init`, `doctor`. A command that needs more than a module is a room: it has its `command`, and what only that
needs.
"""
