"""Watching a training: where a step's time goes, who holds the others up, and what goes wrong in silence.

watchdog, hang   end a job that hangs, and say which rank the others wait for
step_terms       where a rank's step goes, and who straggles
recorded_step    when each pass of the pipeline ran, in one of the timed steps
agreement        replicas that no longer hold the same bits
nonfinite        where the first value that is not finite comes from
expert_load      how evenly routers share out tokens
energy           what energy the devices take, by counters
sampler          how busy the devices are, and what else the training takes, every few seconds
"""
