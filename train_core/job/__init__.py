"""Ranks as processes: joining, supervising, failing, stopping."""
