"""The report of a sweep: Markdown, CSV and one HTML page, in three parts that never mix."""
