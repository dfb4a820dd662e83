"""A trial on disk: what a job writes into its folder, and what everybody else reads of it, without torch.

Read in this order:

    atomic         files written whole or not at all, and what to do on a full disk
    logs           files that grow: their last lines, read as they come
    measurement    what was measured of a trial: steps, memory, its outcome, a rank's failure
    timeline       when each stage was busy and when it waited, in one step
    folder         TrialFolder: every file of a trial, by name
"""
