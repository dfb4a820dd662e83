"""How things look, whatever they say.

table         a table with its cells, for page, Markdown and terminal
legend        what the parts of layouts' names mean
section       what a section of a report is: a finding in one sentence, tables and plots; `charts`: shapes of plots
page          renders sections as a page and as Markdown
json_and_csv  writes what commands answer with --json, and guards cells of CSV files
units         numbers as people read them
sight         whether a sweep is as it was, so that it need not be read again
"""
