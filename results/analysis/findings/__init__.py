"""The findings of a sweep, which several sections, the page's head and the terminal say alike.

verdict       which layout is fastest, in words; `objective`: of a sweep that seeks something else;
              `axis_ends`: which of its axes may go on
comparable    parts of a prediction that may be held against parts of a measurement; a step of both as table and bars
circumstances where and how trials were measured, beside the baseline
ranking       the figures of points as cells, the order of predicted ones, and the plan that answers the question
"""
