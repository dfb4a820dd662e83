"""In what trainers differ when they carry out the same plan; `conf.plan.trainer_limits` says which plans they run.

implementation     the type: every fact in which trainers differ
declared           all trainers by name, `IMPLEMENTATIONS`, with a module for each: `trisweep`, `megatron_core`,
                   `megatron_lm`, `megatron_deepspeed`, `deepspeed`, `fsdp`, `torchtitan`
"""
