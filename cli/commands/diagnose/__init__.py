"""`trisweep diagnose`: a user's own run, from its files to what to change.

command    the command and its options
answer     the four sections of a diagnosis in a terminal
lines      how a section is set: labels, text, and the lines of files that say it
document   the same as JSON
page       the same as a page and as Markdown
written    what it writes: a row for `trisweep estimate`, a calibrated cluster, a sweep of the proposals
"""
