"""What came of a sweep. This package reads the folders of jobs, and writes nothing but reports and MLflow's store.

collect            one row for each trial: what it is, how it ended, what was predicted and what measured
trial_rows         such a row as plain values, which `documents` puts into JSON
scaling            what is left of the baseline's throughput when more devices do the work
published          figures that others have published, for display beside ours
report             the report of a sweep, as Markdown, CSV and one HTML page
mlflow             the runs of a sweep in MLflow, and its UI
documents          what commands answer with --json; `json_text` writes it
search             what the search of all plans answers
score              how far predictions are from a table's measurements; `score_table` shows it
terminal           tables for a terminal; `rehearsal_table` is that of a rehearsal
units              numbers as people read them
"""
