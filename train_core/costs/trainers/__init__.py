"""Trainers: in what each differs when it carries out the same plan; which plans it runs says `conf.trainer_limits`.

implementation     the type: every fact in which trainers differ
declared           all trainers by name, `IMPLEMENTATIONS`, with a module for each: `trisweep`, `megatron_core`,
                   `megatron_lm`, `megatron_deepspeed`, `deepspeed`, `fsdp`, `torchtitan`
"""
