"""A whole step on paper: the pipeline around the layers, its communication, its update, and what every stage holds.

Read `step_time` first: it puts together what a stage does for one micro-batch, the pipeline around it, and what follows
after the last micro-batch. The other modules are its terms, in the order in which it needs them:

priced_stage      a stage of many plans while it is priced: its layers' sums, what a rank of it holds and owns
schedule          how long a pipeline takes for all micro-batches, from what each of its stages takes for one
placement         how far apart in the order of devices those ranks are that talk to each other
replicas          which ranks hold the same weights; `sharing`: among how many of them ZeRO shares out
sharded_seconds   what ZeRO-2 and ZeRO-3 do for every micro-batch; `shard_copies`: their copies on the device
update_bytes      what the optimizer's update moves through memory

Then memory:

stage_memory      what one rank of each stage holds at the fullest moment; `uneven_chunks`: what interleaving adds to it
whole_under_zero  what a rank holds whole for a while although ZeRO shares it out
sharded_memory    the same for this trainer's ZeRO-3, which torch carries out layer by layer
"""
