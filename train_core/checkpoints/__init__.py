"""Saved states of a training, for any layout, and weights from and for elsewhere.

checkpoint           `Checkpoints`: saves and restores one rank's share
checkpoint_folder    which checkpoints a folder holds, and which are whole; no torch
same_model           refuses a checkpoint of another model
first_weights        Hugging Face weights in place of random ones, where `checkpoint.load` names some
huggingface          Hugging Face's files; `huggingface_config` the config.json beside them
export               a checkpoint as Hugging Face weights
"""
