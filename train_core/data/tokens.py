"""The tokens of an experiment: found or made once per job, and cut into what trains and what is held out. No torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError, UsageError
from conf.plan.experiment import Experiment
from conf.types.schema import DOCUMENTS, DataSpec
from conf.units import count_of
from train_core.data.indexed_dataset import prepare_indexed, starts_in_index
from train_core.data.text import prepare_text, starts_of_files
from train_core.data.token_file import Split, TokenFile, split, with_documents
from train_core.trial_folder import TrialFolder

PREPARE = {"text": prepare_text, "megatron": prepare_indexed}
FEWEST_DOCUMENTS = 2
STARTS = {"text": starts_of_files, "megatron": starts_in_index}


def prepare(experiment: Experiment, cache_dir: Path) -> TokenFile | None:
    """The tokens that the configuration names, made now or found; None where they are drawn at random.

    Raises:
        ConfigError: the data is missing, empty, damaged or too short, has ids that the model lacks, or cannot be kept.
        UsageError: it cannot be kept in `cache_dir`, which the configuration does not name.
    """
    data = experiment.data
    if data.source == "synthetic":
        return None
    try:
        tokens = PREPARE[data.source](data, experiment.model, cache_dir)
        if data.separate_documents:
            tokens = with_documents(tokens, _document_starts(data, tokens), cache_dir)
    except OSError as error:  # not the data's fault: what is wrong with that raises ConfigError
        problem = f"{error.filename or cache_dir} cannot be written ({error.strerror})"
        if data.cache_dir is None:
            raise UsageError(f"output_dir: {problem}", "Choose another output_dir=FOLDER.") from None
        raise ConfigError("data.cache_dir", data.cache_dir, problem, "Name a folder that can be written.") from None
    split_of(experiment, tokens.num_tokens)
    return tokens


def _document_starts(data: DataSpec, tokens: TokenFile) -> NDArray[np.int64]:
    """The first token of every document that has any, in order."""
    starts = np.unique(STARTS[data.source](data, tokens))
    starts = starts[starts < tokens.num_tokens]
    if len(starts) < FEWEST_DOCUMENTS:
        problem = f"finds nothing to separate: {tokens.path} is one document"
        remedy = f"Set {DOCUMENTS}=false, or name a folder of several files or a dataset of several documents."
        raise ConfigError(DOCUMENTS, True, problem, remedy)
    return starts


def token_folder(trial: TrialFolder, experiment: Experiment) -> Path:
    """The folder of token files: the configured one, else one beside the trials, so that those of a sweep share it."""
    configured = experiment.data.cache_dir
    return Path(configured).expanduser() if configured else trial.tokens


def split_of(experiment: Experiment, num_tokens: int) -> Split:
    """The number of sequences that train, and of those held out.

    Raises:
        ConfigError: a part is too short for what is asked of it.
    """
    data, plan, length = experiment.data, experiment.training, experiment.model.seq_length
    found = split(num_tokens, length, data.held_out_fraction)
    num_sequences = sum(found)
    if num_sequences < 1:
        problem = f"gives {count_of(num_tokens, 'token')}, and one sequence with its targets needs {length + 1}"
        raise ConfigError("data.path", data.path, problem, "Give more text or raise data.max_bytes.")
    if not found.num_training:
        problem = f"leaves none of {count_of(num_sequences, 'sequence')} to train on"
        raise ConfigError("data.held_out_fraction", data.held_out_fraction, problem, "Use less, or more data.")
    needed = plan.num_evaluation_batches * experiment.batch.global_batch_size
    if plan.evaluate_every is not None and found.num_held_out < needed:
        problem = f"takes {needed} held-out sequences, and there are {found.num_held_out} of {num_sequences}"
        remedy = "Raise data.held_out_fraction, or give more data."
        raise ConfigError("training.num_evaluation_batches", plan.num_evaluation_batches, problem, remedy)
    return found
