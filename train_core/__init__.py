"""One training step, twice: computed on paper (`costs`, no torch) and run on devices (`training`).

Each floor imports only those below it, which contracts in pyproject.toml hold:

    __main__, rates                        python -m train_core; what a calibration measures
    job, rehearsal                         ranks as processes; the step at full size without devices
    training                               the trainer, its loop, what is measured of it
    checkpoints, data, watch               what a training saves, reads, and is watched by
    optimizers, expert_load                the update; how even the loads of experts are, and what evens them out
    process                                the rank's process: its place, device and signals
    parallel                               the parallel axes
    model                                  the plain model
    costs                                  the step on paper
    trial                                  a trial on disk
    shared_rules                           rules that the floors above share
    axes                                   the axes of parallelism, and which rank is where
"""
