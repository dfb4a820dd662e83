"""`trisweep report`: the report of a sweep (`command`), of two (`comparison`), or of one that still runs (`live`)."""
