"""Trainings: a rank's parts put together, the loop over steps, and what is measured of them.

train        `train(experiment, world, ...) -> Performance`, which every rank of a job calls
trainer      `Trainer`: one rank's model, optimizer, pipeline and batches, put together; `TrainerParts`, from which
meter        step times, the peak that they are held against, held-out losses, and the `Performance` that follows
"""
