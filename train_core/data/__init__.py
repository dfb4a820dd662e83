"""Tokens: from files to micro-batches.

tokens                   `prepare`: the tokens of an experiment, found or made once per job; no torch
text, indexed_dataset    from text, and from Megatron-LM's datasets; no torch
token_file               a memory-mapped file of ids, whoever wrote it; no torch
batches                  `Batches`: the same global batch in every layout
permutation              the order of an epoch, computed index by index
"""
