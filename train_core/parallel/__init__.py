"""The parallel axes: the mesh, what is split over it, the schedules, ZeRO.

A reader's way through the folder, each module resting on those above it:

    clock              every wait for another rank, by operation and axis
    shared_memory      sums and gathers among CPU ranks of one node, through memory
    collectives        sums and gathers along one axis: `Axis`, `all_reduce(...) -> Pending`
    mesh               a rank's groups along the axes (`costs.axes`), and the channels to neighbouring stages
    groups             makes them, before the first step; values that ranks tell each other between steps
    context_parallel   attention to the tokens of all context ranks, block by block
    narrow             products whose operands are cast to fp8, sums into narrow numbers, fp16's loss scale
    main_gradient      weight gradients accumulated beside the weights, and who is told of them
    tensor_parallel    matrix products, embedding and loss, split over the tensor axis
    expert_parallel    experts that ranks share out, and the tokens that travel to theirs and back
    offload            what a layer keeps for backward, in the host's memory meanwhile
    layers             what a layer does not keep and makes again, and what torch's compiler fuses in it
    parallelize        one rank's `Stage` of the plain model, by a table of which modules a layout replaces
    schedules          what a stage does in a step, as a list of actions
    pipeline_parallel  runs any such list, and exchanges activations with the neighbours
    data_parallel      a stage's parameters in a few flat buckets; ZeRO-0 to 2: sums gradients over the replicas while
                       backward runs, shares out the update
    fully_sharded      ZeRO-3, by torch's FSDP2

Words that recur, from the model to the replicas:

    layer 3's weights   up.weight  up.bias  down.weight          parameters, each with a `Placement` in the whole model
    treatment           matrices decay, biases do not, ...       what parameters must share to be updated as one
    bucket              [up.weight down.weight ...] [up.bias]    a flat tensor of parameters with one treatment
    part                [  shard 0  |  shard 1  ]                what one replica updates of a bucket: a shard, or all
    box                 rows 0 to 63 of up.weight                what a part holds of one parameter, for checkpoints
    listener            counts the gradients of a bucket         hears of each, and starts the sum after the last
"""
