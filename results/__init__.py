"""The results of a sweep. This package reads the folders of jobs, and writes nothing but reports and MLflow's store.

trial_rows         a trial as a row of plain values, with how often its point was measured, and how sure its time is
documents          what commands answer with --json; `machine_text` writes it, and guards cells of CSV files
comparison         two sweeps beside each other
footprint          energy, money and carbon of a training
accuracy           errors of predictions; `score`: those of a table, whose measurements it reads or refuses
scaling            efficiency on more devices, and of one layout on several numbers of them
search_rows        plans that a search found, as plain values
table              a table with its cells, for page, Markdown and terminal
sight              whether a sweep is as it was, so that it need not be read again
units              numbers as people read them
tensorboard        event files beside MLflow; `prometheus`: gauges for node_exporter

Rooms: `report` (page, Markdown, CSV), `mlflow` (runs and UI), `knobs` (which knob mattered), `terminal` (tables).
"""
