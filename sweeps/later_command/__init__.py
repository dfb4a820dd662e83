"""What a later command makes of a sweep that is there already.

restriction  it names values of what the sweep varies: the points that it measures, and the report of that part
kept         it makes other points: what was measured before stays with the sweep
"""
