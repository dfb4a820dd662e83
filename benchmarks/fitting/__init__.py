"""The cost model's constants fitted to all published rows, and to all but one table: `python -m benchmarks.fitting`.

constants           which are fitted, what was known of each before, and where its value is written
fit                 one fit of all, one without each table and its machines, and calibrations replayed
learned             what rows that were left out say of predictions: widths of intervals, and what lies outside
"""
