"""One transformer layer, for one micro-batch on one rank: seconds and bytes.

Read `shard`, then `layer_costs`, which calls all others but `experts`, which calls it:

shard            the choices on which a layer's time and memory depend, and the sizes that follow from them
layer_costs      time and memory of one layer without experts: everything below but `experts`, put together

Seconds: `layer_time` adds up products, what lies between them and collectives, what runs beside
products, what fp8 costs there, and what recomputation repeats; `context` is the core of attention, over context ranks
too, `experts` a layer with experts.

Bytes: `layer_bytes` is what a layer keeps for backward, and in what each trainer differs from that.
"""
