"""`trisweep plan`: the points of a sweep on paper, or a search of all plans.

command         the command
options         its options about a search
answer          what is printed of a plan: its points, what cannot exist, what is best, what to do next
search          a search carried out: options in, an answer out
as_program      a plan as the command of another program, or a job of it
"""
