"""The report of a sweep: one HTML page, Markdown and CSV, made of sections that never mix kinds of numbers.

report            writes it; `page` renders its sections as a page and as Markdown
last_report       knows what the last one said, and whether another would say it again
section           what a section is: a finding in one sentence, tables and plots; `charts`: shapes of plots
comparison_page   the page of two sweeps beside each other
pipeline_spans    a step of a pipeline over time, as predicted, and as a picture; `recorded_spans`: as ranks recorded it

`sections` holds the sections, `findings` what several of them say.
"""
