"""A step of a pipeline drawn over time, as predicted and as the ranks recorded it.

pipeline_spans   what every stage does when, as predicted
recorded_spans   the same from a trial's recording, with the clocks of its ranks brought together; which trial is
                 shown, and how much of its step a stage works, communicates and waits
gantt            either as a picture with named rows
"""
