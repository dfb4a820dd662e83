"""What came of a sweep: rows, scaling efficiency, published figures, MLflow and the report.

It reads the folders of jobs, and writes reports and MLflow's store alone. Others use:

- `collect`, `scaling`: one row for each trial, and what is left of the baseline's throughput;
- `published`: figures that others have published;
- `report.report`, `mlflow.sweep_import`, `mlflow.ui`: the report, the runs in MLflow, and its page;
- `search`: what the search of all plans answers; `score`, `score_table`: how far predictions are from measurements;
- `terminal`, `rehearsal_table`, `units`: tables and numbers as people read them.
"""
