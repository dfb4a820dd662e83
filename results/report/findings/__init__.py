"""The findings of a sweep: its verdict, its best plan, which numbers may be compared, and the cells of its points."""
