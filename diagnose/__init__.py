"""What a user's own run tells: what it was, how fast, what it should take, why it does not, what to change.

Read in this order:

    runs           UserRun: the facts and steps of one run, each with the file and line that says so
    readers        the logs, scripts and configuration files of each trainer, as UserRuns
    measured       the middle of the steady steps, and what stands beside them: warm-up, slow steps, drift
    evidence       what the files say of one setting, and where
    trainer_flags  flags that no column says, and what a step costs without them
    understood     the run as a priced configuration: what is missing, taken, left out
    from_flops     the one size that is missing, by the FLOPs that the log counts
    doubts         whether the measurement can be true
    memory_risk    how likely a plan fits, after this one run
    suspects       what makes it slow by its configuration, each with its evidence and its price
    happenings     what slows it beside that: what its log and its environment show
    changes        the best single change, the best two, the best plan
    trainer_words  the difference of two plans in the trainer's own flags
    diagnosis      all of that of one run
    network_fit    the network that two runs fit which differ in their batch alone
    difference     what differs between two runs, and how much of it is priced
"""
