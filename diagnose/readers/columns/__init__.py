"""From the settings of each trainer to the columns of `trisweep estimate`.

megatron       Megatron-LM, Megatron-Core and Megatron-DeepSpeed, gpt-neox too
nemo           NeMo and Megatron-Bridge, by Megatron's names
torchtitan     its TOML, its flags and what it prints
huggingface    a model's config.json, the Trainer, front ends to it, DeepSpeed's JSON
nanotron       its YAML and what it prints
words          what trainers call a column, from words.yaml
verl           its overrides, and what a step generates
others         trainers whose configuration says little else than sizes
named_models   sizes by a model's name alone, where nobody says them
devices        devices, nodes and their names, from launchers, schedulers and drivers, whatever the trainer
"""
