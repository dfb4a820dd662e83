"""Trainers: in what each differs when it carries out the same plan; which plans it runs says `conf.trainer_limits`.

implementation     the type: every fact in which trainers differ
declared           all trainers by name, `IMPLEMENTATIONS`, from a module for each family: `trisweep`,
                   `megatron_lm` (Megatron-Core and -DeepSpeed too), `fsdp` (torchtitan and DeepSpeed too)
"""
