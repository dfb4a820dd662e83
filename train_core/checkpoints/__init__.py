"""Saved states of a training, for any layout, and weights from and for elsewhere.

checkpoint           `Checkpoints`: saves and restores one rank's share
checkpoint_folder    which checkpoints a folder holds, and which are whole; no torch
what_to_read         which of them `checkpoint.load` means; refuses one of another model, or that `checkpoint.resume`
                     cannot go on from
writer, reader       the files, with their checksums; how far a save is, for the clock; what lies where in them
boxes                which boxes of the model's parameters a rank holds, and which it writes
host_copies          what a rank writes: pieces of its tensors, copied to the host while the training goes on
huggingface          Hugging Face's files, from whose weights a training starts where `checkpoint.load` names some;
                     `huggingface_layout` says where each parameter lies there, and `huggingface_config` is the
                     config.json beside them, and which models have a layout there
weight_files         which files of a folder are weights, and which of other programs' formats it holds; no torch
export               a checkpoint as Hugging Face weights
"""
