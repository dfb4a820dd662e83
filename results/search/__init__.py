"""What the search of all plans answers: rows for JSON and CSV, tables for a terminal."""
