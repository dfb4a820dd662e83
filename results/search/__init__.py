"""The answer of the search of all plans: rows for JSON and CSV, tables for a terminal.

rows          what was found, as plain values, and of one job over several types of devices as a table too
table         the same as a table of 100 columns, predicted scaling, and a plan taken apart
notes         what to know beside a table
"""
