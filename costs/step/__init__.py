"""A whole step on paper: the pipeline around the layers, its communication, its update, and what every stage holds.

Read `step_time` first: it puts together what a stage does for one micro-batch, the pipeline around it, and what follows
after the last micro-batch. Read `stage_memory` second. The others are what these two call:

priced_stage      a stage of many plans while it is priced: its layers' sums, what a rank of it holds and owns
schedule          how long a pipeline takes for all micro-batches, from what each of its stages takes for one
replicas          which ranks hold the same weights, and among how many of them ZeRO shares out
sharding          what ZeRO-2 and ZeRO-3 hold and do for every micro-batch, most of it as torch's FSDP2 does
muon              what the update costs where it makes matrices orthogonal
in_flight         how many forward passes wait for their backward pass, and which of uneven chunks they are
stage_memory      what one rank of each stage holds at the fullest moment
"""
