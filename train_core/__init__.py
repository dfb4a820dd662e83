"""The compact trainer: one training step of a model laid out over tensor, pipeline, data, context and expert ranks.

The step on paper stands in `costs`, with the rules that both follow: `costs.axes` says which rank is where, and
`costs.shared_rules` how parameters share buckets.

Each floor imports only those below it, which contracts in pyproject.toml hold:

    __main__                               python -m train_core
    job, rehearsal                         ranks as processes; the step at full size without devices
    training                               the trainer, its loop, what is measured of it
    checkpoints, data, watch               what a training saves, reads, and is watched by
    optimizers, expert_load                the update; how even the loads of experts are, and what evens them out
    process                                the rank's process: its place, device and signals
    parallel                               the parallel axes
    model                                  the plain model
    trial                                  a trial on disk
"""
