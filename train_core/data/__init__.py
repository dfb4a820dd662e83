"""Tokens: from files to micro-batches."""
