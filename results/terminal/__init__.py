"""Tables for a terminal: readable at 80 columns, better at 100.

tables           the ranking of trials, what a search asked for, and the plan of a sweep
search_tables    plans that a search found, predicted scaling, a plan taken apart, and what to know beside them
estimate_tables  a table of configurations as it was priced, and predictions held against its measurements
rehearsal_table  what a rehearsal counted beside what was predicted
drawing          any table as rich draws it, with names of layouts that break between their parts, and their legend
"""
