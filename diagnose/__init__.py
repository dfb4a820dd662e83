"""What a user's own run tells: what it was, how fast, what it should take, why it does not, what to change.

Read in this order:

    runs           UserRun: the facts and steps of one run, each with the file and line that says so
    readers        the logs, scripts and configuration files of each trainer, as UserRuns
"""
