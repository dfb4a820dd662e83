"""From the settings of each trainer to the columns of `trisweep estimate`.

megatron       Megatron-LM, Megatron-Core and Megatron-DeepSpeed, gpt-neox too
torchtitan     its TOML, its flags and what it prints
devices        devices, nodes and their names, from launchers, schedulers and drivers, whatever the trainer
"""
