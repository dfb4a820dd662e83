"""The answer of the search of all plans: rows for JSON and CSV, tables for a terminal.

rows          what was found, as plain values; `mixed_rows`: of one job over several types of devices
table         the same as a table of 100 columns, and predicted scaling; `notes`: what to know beside it
explanation   a plan taken apart
"""
