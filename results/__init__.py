"""The results of a sweep. This package reads the folders of jobs, and writes nothing but reports and MLflow's store.

render      how things look: tables, sections, charts and pages, units, JSON and cells of CSV files
analysis    what trials say: scaling, accuracy, scores, energy and money, knobs, and the findings of a sweep
tables      trials and plans as rows of plain values, as documents for `--json`, and as tables of the terminal
report      one HTML page, Markdown and CSV; two sweeps beside each other
mlflow      runs, the store and its page; event files of TensorBoard, runs of Weights & Biases
"""
