"""The choice of the point of a sweep to try next, from what all its trials have shown so far.

searcher  the interface: what is asked of a search, and what it answers
registry  which search a sweep has
layouts   the adaptive search of layouts (a room of its own)
axes      the adaptive search of any other axes (likewise)
"""
