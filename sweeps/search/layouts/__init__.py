"""The adaptive search of layouts, which corrects the cost model by what the trials have shown.

bayes        which plan comes next, and what the trials have shown about the prediction, in sentences
candidates   the plans among which it chooses; `priced` as the surrogate sees them, `observed` the trials so far
surrogate    how far each plan's step is from the prediction; `memory_fit` whether it fits
outlook      what is expected of every candidate, in what the objective counts
"""
