"""Watching a training: where a step's time goes, who holds the others up, and what goes wrong in silence.

watchdog, hang   end a job that hangs, and say which rank the others wait for
step_parts       where a rank's step goes, who straggles, and when each pass of one timed step ran
agreement        replicas that no longer hold the same bits
nonfinite        where the first value that is not finite comes from
energy_meter     what energy the devices take over the timed steps, by `energy_counters`, one of each device
sampler          how busy the devices are, and what else the training takes, every few seconds
"""
