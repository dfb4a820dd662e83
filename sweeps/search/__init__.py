"""Which point of a sweep to try next, from what all its trials have shown so far.

searcher     the interface: what is asked of a search, and what it answers
choice       which search a sweep has
listed       every point was listed beforehand
bayes        the adaptive search of layouts
candidates   the plans that it chooses among
priced       what the cost model says of them, and how that follows from its constants
observed     the trials as it sees them
surrogate    how far measured steps are from predicted ones, and what that lets expect of other plans
memory_fit   whether a plan fits, as far as the trials have shown
outlook      what is expected of every candidate
objective    what is made small
pruning      which running trials are clearly slower than the best
normal       the normal distribution
"""
