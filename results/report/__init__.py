"""The report of a sweep: one HTML page, Markdown and CSV, made of sections that never mix kinds of numbers.

report            writes it
last_report       knows what the last one said, and whether another would say it again
comparison_page   the page of two sweeps beside each other
pipeline_spans    a step of a pipeline over time, as predicted, and as a picture; `recorded_spans`: as ranks recorded it
sections          a module for each section
"""
