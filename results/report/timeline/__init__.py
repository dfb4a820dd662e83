"""A step of a pipeline drawn over time, as predicted and as the ranks recorded it.

pipeline_spans   what every stage does when, as predicted
recorded_spans   the same from a trial's recording; `clock_offsets` brings the clocks of its ranks together
recorded_trial   which trial is shown, and `recorded_steps` its step beside the prediction
stage_shares     how much of its step a stage works, communicates and waits, as predicted and as recorded
gantt            either as a picture; `stage_names` names its rows
"""
