"""A whole step on paper: the pipeline around the layers, its communication, its update, and what every stage holds.

Read `step_time` first: it puts together what a stage does for one micro-batch, the pipeline around it, and what follows
after the last micro-batch. The other modules are its terms, in the order in which it needs them:

priced_stage      a stage of many plans while it is priced: its layers' sums, what a rank of it holds and owns
schedule          how long a pipeline takes for all micro-batches, from what each of its stages takes for one
replicas          which ranks hold the same weights, and among how many of them ZeRO shares out
sharded_seconds   what ZeRO-2 and ZeRO-3 do for every micro-batch, and their copies on the device

Then memory:

stage_memory      what one rank of each stage holds at the fullest moment, and what interleaving adds to it
sharded_memory    the same for this trainer's ZeRO-3, which torch carries out layer by layer
"""
