"""The report of a sweep: one HTML page, Markdown and CSV, made of sections that never mix kinds of numbers."""
