"""What a sweep found: its verdict, its best plan, and which of its numbers may be compared."""
