"""Tables and plots that the sections of a report are put together of.

charts          shapes of plots that several sections use, as Vega-Lite
circumstances   where and how trials were measured, beside the baseline
step_terms      where a step's time goes, predicted beside measured
losses          training losses; `knob_plots`: which knob mattered; `search_course`: what a search has learned
"""
