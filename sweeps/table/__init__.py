"""Tables of configurations: a CSV file read row by row, priced, and written with predictions beside each row.

prices          the table on disk, every row with its prediction, or the reason why it has none; columns that nothing
                reads, and the ones that may be meant
cells           text as people write it, read as counts, flags and choices
configuration   one row as a `Setup` and a trainer; put together from `clusters`, `layout`, which reads the model too,
                and `trainer`, which reads the precision too
remarks         what a row and its source say in words, made into columns before anything else reads the row; refuses
                what changes a price and nothing reads
"""
