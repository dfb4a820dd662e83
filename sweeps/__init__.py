"""The points of a sweep that are to be run, and the state of each of them.

From the top down; every line imports only from those below it:

later_command  what a later command makes of a sweep that is there already
ranking        which point is best, what its runs say together, and which deserve a further run
log_choice     which trial is meant, and its log
table          tables of configurations to price
search         which point to try next, from what the trials have shown
points         from a composition to the points of a sweep, each of them a trial: `plan_sweep`
planner        the search for the best plan on paper
sweep          `Sweep`: folder and record together; trials and the stages that follow them; a glance at its files
reading        how a trial stands, read once from its folder
confidence     how far a prediction can be off
memory_odds    how likely a plan is to fit, by what predicted memory was off
practice       how well runs are tuned, and what runs of one's own say of all others
folder         what a sweep's folder holds beside its record: journal, submissions, earlier attempts, logs
trial          `Trial`, `SweepRecord`, and the folder that keeps them
labels         what a trial is called: by what sets it apart from the others of its sweep
"""
