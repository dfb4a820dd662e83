"""The findings of a sweep: its verdict, its best plan, and which of its numbers may be compared."""
