"""Tables of configurations: a CSV file read row by row, priced, and written with predictions beside each row."""
