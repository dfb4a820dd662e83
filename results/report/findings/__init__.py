"""The findings of a sweep, which several sections, the page's head and the terminal say alike.

verdict       which layout is fastest, in words; `sought`: of a sweep that seeks something else
best_plan     the plan that answers the question
comparable    parts of a prediction that may be held against parts of a measurement
ranking       the figures of a measured point as cells, those of a predicted one, and the order of such points
"""
