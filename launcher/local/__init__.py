"""This machine as the place where trials run.

machine       what it has and can hold at once; its jobs, which are started through submitit, found again, and ended
workplace     as many trials at once as do not disturb each other; how a job of this machine stands
"""
