"""Trainers: in what each differs when it carries out the same plan, and which plans it can run.

implementation     the type: every fact in which trainers differ
declared           all trainers by name, `IMPLEMENTATIONS`, with a module for each: `trisweep`, `megatron_core`,
                   `megatron_lm`, `megatron_deepspeed`, `deepspeed`, `fsdp`, `torchtitan`
capabilities       the type of what a trainer can run; `declared_limits` says it of each of them
"""
