"""Tokens: from files to micro-batches.

tokens                   `prepare`: the tokens of an experiment, found or made once per job, and their order; no torch
blend                    which set of a mixture the next sample is of; no torch
text, indexed_dataset    from text, and from Megatron-LM's datasets; no torch
rows                     from Parquet, Arrow and JSON lines, by a tokenizer of Hugging Face's; no torch
text_files               which files a text is made of, and their content piece by piece; no torch
byte_pairs               an encoding learnt from the training part of a text; no torch
token_file               a memory-mapped file of ids, whoever wrote it; no torch
batches                  `Batches`: the same global batch in every layout
"""
