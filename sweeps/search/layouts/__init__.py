"""The adaptive search of layouts, which corrects the cost model by what the trials have shown.

bayes        what is expected of every candidate, which comes next, and what the trials have shown, in sentences
candidates   the plans among which it chooses; `priced` as the surrogate sees them, `observed` the trials so far
surrogate    how far each plan's step is from the prediction; `memory_fit` whether it fits
"""
