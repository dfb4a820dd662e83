"""Which point of a sweep to try next, from what all its trials have shown so far.

searcher   the interface: what is asked of a search, and what it answers
"""
