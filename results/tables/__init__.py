"""Trials and plans as rows, for files, programs and terminals: tables are readable at 80 columns, better at 100.

trial_rows       a trial as a row of plain values, with how often its point was measured, and how sure its time is
search_rows      plans that a search found, as plain values
documents        what commands answer with --json
prometheus       gauges for node_exporter
sweep_tables     the ranking of trials, what a search asked for, and the plan of a sweep
search_tables    plans that a search found, predicted scaling, a plan taken apart, and what to know beside them
estimate_tables  a table of configurations as it was priced, and predictions held against its measurements
rehearsal_table  what a rehearsal counted beside what was predicted
"""
