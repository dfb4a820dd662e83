"""One transformer layer and the two ends of the model, for one micro-batch on one rank: seconds and bytes.

Read `shard`, then `layer_costs`, which calls all others:

shard            the choices on which a layer's time and memory depend, and the sizes that follow from them
layer_costs      time and memory of one layer: everything below, put together

Seconds: `layer_time` adds up products, what lies between them and collectives; `attention_time` is the core of
attention, `experts` a layer with experts, `context` what context parallelism adds, `head_time` the output projection
and its loss. `host_time` is what launching takes, `tensor_overlap` what runs beside products, `narrow_casts` what fp8
costs beside them, `selected_time` and `pointwise` what recomputation repeats.

Bytes: `layer_bytes` is what a layer keeps for backward, `trainer_bytes` in what each trainer differs from that, and
`end_bytes` what the last stage holds beside its layers.
"""
