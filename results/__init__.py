"""What came of a sweep. This package reads the folders of jobs, and writes nothing but reports and MLflow's store.

collect            one row for each trial: what it is, how it ended, what was predicted and what measured
trial_rows         such a row as plain values; `repeats` adds how often a point was measured, and how sure its time is
documents          what commands answer with --json; `json_text` writes it, `csv_cells` guards cells of CSV files
comparison         two sweeps beside each other
published          figures that others have published, for display beside ours
footprint          energy, money and carbon of a training; `slurm_energy`: what Slurm's accounting says of its power
accuracy           errors of predictions; `score`: those of a table, whose measurements `measured` reads
terminal           tables for a terminal: `score_table`, `priced_table`, `rehearsal_table`; of layout names
                   `layout_cell` and `legend`
units              numbers as people read them

Rooms: `report` (page, Markdown, CSV), `mlflow` (runs and UI), `search` (answers of the planner), `scaling`
(efficiency on more devices), `knobs` (which knob mattered).
"""
