"""The effect of a later command on a sweep that is there already.

restriction  it names values of what the sweep varies: the points that it measures, and the report of that part
union        it makes other points: whatever was asked for before stays with the sweep
"""
