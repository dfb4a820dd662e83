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
lessons      what they have shown about the prediction, in sentences
outlook      what is expected of every candidate
objective    what is made small
pruning      which running trials are clearly slower than the best
axis_search  the adaptive search of any other axes
draws        points drawn from axes, and which draws lead to a point
tpe          draws that follow what was measured
seen_points  the points that were tried, each with its seeds
more_seeds   which points deserve another seed
step_pruning which running trials have a worse loss than others after as many tokens
objectives   what each objective makes of a trial, and which trials may be compared by it
best_points  what it can say at its end
normal       the normal distribution
"""
