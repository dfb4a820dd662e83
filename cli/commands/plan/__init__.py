"""`trisweep plan`: the points of a sweep on paper, or a search of all plans.

command         the command
answer          the last lines: what cannot exist, what is best, what to do next
search          a search carried out: `search_options` in, `search_output` out
as_program      a plan as the command of another program
"""
