"""Tables of configurations: a CSV file read row by row, priced, and written with predictions beside each row.

file            the table on disk, columns that nothing reads, and the ones that may be meant
cells           text as people write it, read as counts, flags and choices
prices          every row with its prediction, or the reason why it has none
configuration   one row as a `Setup` and a trainer; put together from `clusters`, `layout`, which reads the model too,
                and `trainer`, which reads the precision too
remarks         what a row and its source say in words, made into columns before anything else reads the row
                what changes a price and nothing reads: such a row gets no prediction
"""
