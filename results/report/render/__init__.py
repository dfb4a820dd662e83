"""How a report is written: as a page, as Markdown and as CSV, none of which knows what a section is about."""
