"""The sensitivity to knobs: how much of the differences between a sweep's rates each knob explains.

table            trials as points: what each knob was set to, and the rate that came of it, measured or predicted
sensitivity      shares of the knobs by SHAP and fANOVA, what resampling says of their order, and all of it in one
                 sentence; the order that a published study found; how often each value of a knob ran out of memory
forest           the forest of regression trees that both are read from; the only module that imports them
"""
