"""The findings of a sweep: its verdict, its best plan, which of its numbers may be compared, and the cells of its points."""
