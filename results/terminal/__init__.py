"""Tables for a terminal: readable at 80 columns, better at 100.

tables           the ranking of trials, what a search asked for, and the plan of a sweep
estimate_tables  a table of configurations as it was priced, and predictions held against its measurements
rehearsal_table  what a rehearsal counted beside what was predicted
drawing          any table as rich draws it, with names of layouts that break between their parts, and their legend
"""
