"""Tables of configurations: a CSV file read row by row, priced, and written with predictions beside each row.

prices          the table on disk, every row with its prediction, or the reason why it has none; columns that nothing
                reads, and the ones that may be meant
cells           text as people write it, read as counts, flags and choices
columns         the columns that are read; refuses a row that changes its price in any other
configuration   one row as a `Setup` and a trainer; put together from `clusters`, `layout`, which reads the model too,
                and `trainer`, which reads the precision too
recompute_check whether the memory that a row held can be that of the recomputation that it says
"""
