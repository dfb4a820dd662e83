"""The tokens of an experiment: found or made once per job, cut into what trains and what is held out, and the order in
which sequences are taken. No torch.

The order of an epoch: a balanced Feistel network permutes the smallest square of a power of two that holds n; an index
that it moves to n or above is moved on until it is below, which keeps it a permutation (cycle walking). Source: Luby
and Rackoff 1988 (the network); Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError, UsageError
from conf.plan.experiment import Experiment
from conf.plan.setup import PIECES
from conf.types.schema import DOCUMENTS, DataSpec
from conf.units import count_of
from train_core.data.blend import Blend, blend_of
from train_core.data.indexed_dataset import prepare_indexed, starts_in_index
from train_core.data.rows import prepare_rows, starts_of_rows
from train_core.data.text import prepare_text, starts_of_files
from train_core.data.token_file import DocumentNumbers, Ids, Split, TokenFile, split, with_documents
from train_core.trial.folder import TrialFolder

PREPARE = {"text": prepare_text, "huggingface": prepare_rows, "megatron": prepare_indexed}
FINEST = 1000
"""Parts of a whole in which a share is advised."""
MOST_OF_A_CHARACTER = 4
"""Bytes in UTF-8, of which a limit may have cut off the last."""
STARTS = {"text": starts_of_files, "huggingface": starts_of_rows, "megatron": starts_in_index}


ALONE = ""
"""The name of the one set that `data.path` names."""


class TokenSets(NamedTuple):
    """The token files of an experiment, by the names of their sets in order.

    Attributes:
        training: of `data.mixture`, or under ALONE that of `data.path`.
        held_out: of `data.held_out`.
    """

    training: Mapping[str, TokenFile]
    held_out: Mapping[str, TokenFile]

    @property
    def first(self) -> TokenFile:
        """The only file of what trains, or any of them: all have one tokenizer."""
        return next(iter(self.training.values()))

    @property
    def name(self) -> str:
        """The name of what trains, which tells its content."""
        return ", ".join(f"{name}: {file.name}" if name else file.name for name, file in self.training.items())


def prepare(experiment: Experiment, cache_dir: Path) -> TokenSets | None:
    """The tokens that the configuration names, made now or found; None where they are drawn at random.

    Raises:
        ConfigError: the data is missing, empty, damaged or too short, has ids that the model lacks, or cannot be kept.
        UsageError: it cannot be kept in `cache_dir`, which the configuration does not name.
    """
    if experiment.data.source == "synthetic":
        return None
    training, held_out = dict[str, TokenFile](), dict[str, TokenFile]()
    for name, part, key in _parts(experiment):
        with _named_by(key):
            training[name] = _prepare_file(part, cache_dir)
            split_of(part, training[name].num_tokens, _share(experiment, name))
    for name, each in sorted(experiment.data.held_out.items()):
        with _named_by(f"data.held_out.{name}.path"):
            part = _of_one_set(experiment, each.path, held_out_fraction=0.0)
            held_out[name] = _prepare_file(part, cache_dir)
            _require_evaluation(part, held_out[name].num_tokens)
    if experiment.data.separate_documents and not any(file.has_documents for file in training.values()):
        problem = (
            f"finds nothing to separate: {', '.join(str(file.path) for file in training.values())} is one document"
        )
        remedy = f"Set {DOCUMENTS}=false, or name a folder of several files or a dataset of several documents."
        raise ConfigError(DOCUMENTS, True, problem, remedy)
    return TokenSets(training, held_out)


def _parts(experiment: Experiment) -> Iterator[tuple[str, Experiment, str]]:
    """The name of each set that is trained on, the experiment on it alone, and the key of its path."""
    if not experiment.data.mixture:
        yield ALONE, experiment, "data.path"
    for name, each in sorted(experiment.data.mixture.items()):  # in an order of which resuming is sure
        yield name, _of_one_set(experiment, each.path), f"data.mixture.{name}.path"


def _of_one_set(experiment: Experiment, path: str, **values: float) -> Experiment:
    data = experiment.data.model_copy(update={"path": path, "mixture": {}, **values})
    return experiment.model_copy(update={"data": data})


@contextmanager
def _named_by(key: str) -> Iterator[None]:
    """Have a complaint about the path of a single set name the key of this one's."""
    try:
        yield
    except ConfigError as error:
        if error.key != "data.path" or key == error.key:
            raise
        raise ConfigError(key, error.value, error.problem, error.remedy.replace("data.path", key)) from None


def _share(experiment: Experiment, name: str) -> float:
    """The weight of a set over those of all."""
    mixture = experiment.data.mixture
    return mixture[name].weight / sum(each.weight for each in mixture.values()) if mixture else 1.0


def _require_evaluation(experiment: Experiment, num_tokens: int) -> None:
    """Raises ConfigError where a set that is held out as a whole is shorter than an evaluation of it."""
    num_sequences = split_of(experiment, num_tokens).num_training
    number, batch = experiment.training.num_evaluation_batches, experiment.batch.global_batch_size
    if num_sequences < number * batch:
        problem = f"has {count_of(num_sequences, 'sequence')}, and an evaluation takes {number * batch}"
        fewer = num_sequences // batch
        remedy = f"Use training.num_evaluation_batches={fewer}" if fewer else "Use a smaller batch.global_batch_size"
        raise ConfigError("data.path", experiment.data.path, problem, f"{remedy}, or give more data.")


def _prepare_file(experiment: Experiment, cache_dir: Path) -> TokenFile:
    data = experiment.data
    try:
        tokens = PREPARE[data.source](data, experiment.model, cache_dir)
        if data.separate_documents:
            tokens = with_documents(tokens, _document_starts(data, tokens), cache_dir)
    except OSError as error:  # not the data's fault: what is wrong with that raises ConfigError
        problem = f"{error.filename or cache_dir} cannot be written ({error.strerror})"
        if data.cache_dir is None:
            raise UsageError(f"output_dir: {problem}", "Choose another output_dir=FOLDER.") from None
        raise ConfigError("data.cache_dir", data.cache_dir, problem, "Name a folder that can be written.") from None
    return tokens


def _document_starts(data: DataSpec, tokens: TokenFile) -> NDArray[np.int64]:
    """The first token of every document that has any, in order."""
    starts = np.unique(STARTS[data.source](data, tokens))
    return starts[starts < tokens.num_tokens]


def token_folder(trial: TrialFolder, experiment: Experiment) -> Path:
    """The folder of token files: the configured one, else one beside the trials, so that those of a sweep share it."""
    configured = experiment.data.cache_dir
    return Path(configured).expanduser() if configured else trial.tokens


def split_of(experiment: Experiment, num_tokens: int, share: float = 1.0) -> Split:
    """The number of sequences that train, and of those held out.

    Args:
        share: of an evaluation's sequences, those that are of this data.

    Raises:
        ConfigError: a part is too short for what is asked of it.
    """
    data, plan, length = experiment.data, experiment.training, experiment.model.seq_length
    found = split(num_tokens, length, data.held_out_fraction)
    num_sequences = sum(found)
    if num_sequences < 1:
        problem = f"gives {count_of(num_tokens, 'token')}, and one sequence with its targets needs {length + 1}"
        raise ConfigError("data.path", data.path, problem, _remedy_for_few_tokens(experiment, num_tokens))
    if not found.num_training:
        problem = f"leaves none of {count_of(num_sequences, 'sequence')} to train on"
        most = math.floor((num_sequences - 1) / num_sequences * FINEST) / FINEST
        remedy = f"Use data.held_out_fraction={most:g} or less, or more data."
        raise ConfigError("data.held_out_fraction", data.held_out_fraction, problem, remedy)
    needed = math.ceil(share * plan.num_evaluation_batches * experiment.batch.global_batch_size)
    is_evaluated = plan.evaluate_every is not None and (data.held_out_fraction or not data.held_out)
    if is_evaluated and found.num_held_out < needed:
        problem = f"takes {needed} held-out sequences, and there are {found.num_held_out} of {num_sequences}"
        share = math.ceil(needed / num_sequences * FINEST) / FINEST
        remedy = "Give more data, or use a smaller batch.global_batch_size."
        if split(num_tokens, length, share).num_training > 0:
            remedy = f"Use data.held_out_fraction={share:g} or more, or give more data."
        elif fewer := found.num_held_out // experiment.batch.global_batch_size:
            remedy = f"Use training.num_evaluation_batches={fewer}, or give more data."
        raise ConfigError("training.num_evaluation_batches", plan.num_evaluation_batches, problem, remedy)
    return found


def _remedy_for_few_tokens(experiment: Experiment, num_tokens: int) -> str:
    """More text, as far as it may have been cut off, or sequences of which the tokens fill some to train on."""
    data, parallel = experiment.data, experiment.parallel
    remedies = ["Give more data"]
    if data.source == "text" and (data.tokenizer == "bpe" or num_tokens + MOST_OF_A_CHARACTER > (data.max_bytes or 0)):
        remedies.append("raise data.max_bytes if that has cut it off")
    ranks = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    pieces = ranks * (PIECES * parallel.context_parallel_size if parallel.context_parallel_size > 1 else 1)
    lengths = ((num_tokens - 1) // number // pieces * pieces for number in range(1, num_tokens))
    fits = (size for size in lengths if size and split(num_tokens, size, data.held_out_fraction).num_training)
    if (longest := next(fits, 0)) > 0:
        remedies.append(f"use model.seq_length={longest} or less")
    return f"{', or '.join(remedies)}."


Stream = TypeVar("Stream")
Window = Callable[[int], NDArray[np.int64]]
"""From the number of a sample, counted over all steps, to its seq_length + 1 token ids."""


TRAINING, HELD_OUT = "training:", "held out:"
"""Names of the parts of what trains, which no set can bear."""


def open_windows(
    experiment: Experiment,
    tokens: TokenSets | None,
    read: Callable[[TokenFile], Ids | DocumentNumbers] = TokenFile.read,
) -> dict[str, Window]:
    """The windows of the training and of the held-out part, of a mixture blended in either, and of held-out sets."""
    if tokens is None:
        return {name: synthetic_windows(experiment, part) for part, name in enumerate((TRAINING, HELD_OUT))}
    training, held_out = (
        {name: _read_here(experiment, partial(read, file)) for name, file in files.items()} for files in tokens
    )
    parts = list(zip(*(stream_windows(experiment, ids, name) for name, ids in training.items()), strict=True))
    if experiment.data.mixture:
        windows = [_blended(_blend(experiment), part) for part in parts]
    else:
        windows = [part[0] for part in parts]
    length = experiment.model.seq_length
    sets = {name: partial(_sequence, ids, length) for name, ids in held_out.items()}
    return {TRAINING: windows[0], HELD_OUT: windows[1], **sets}


def _blend(experiment: Experiment) -> Blend:
    return blend_of(tuple(each.weight for _, each in sorted(experiment.data.mixture.items())))


def _blended(blend: Blend, windows: Sequence[Window]) -> Window:
    def window(sample: int) -> NDArray[np.int64]:
        chosen, place = blend.place(sample)
        return windows[chosen](place)

    return window


def figures_of_mixture(experiment: Experiment, tokens: TokenSets | None, step: int) -> dict[str, float]:
    """How many tokens of each set the steps so far have seen, and in how many epochs; nothing where sets are not mixed.

    As `data/NAME/tokens` and `data/NAME/epochs`.
    """
    if tokens is None or not experiment.data.mixture:
        return {}
    counts = _blend(experiment).counts(step * experiment.batch.global_batch_size)
    figures, length = dict[str, float](), experiment.model.seq_length
    for (name, file), count in zip(tokens.training.items(), counts, strict=True):
        whole = split(file.num_tokens, length, experiment.data.held_out_fraction).num_training
        figures |= {f"data/{name}/tokens": float(count * length), f"data/{name}/epochs": count / whole}
    return figures


def _read_here(experiment: Experiment, read: Callable[[], Stream]) -> Stream:
    try:
        return read()
    except OSError as error:
        problem = f"{error.filename} cannot be read on this node ({error.strerror})"
        remedy = "Name a folder that all nodes share."
        raise ConfigError("data.cache_dir", experiment.data.cache_dir, problem, remedy) from None


def _sequence(ids: Ids | DocumentNumbers, length: int, number: int) -> NDArray[np.int64]:
    # One token more than the length: the last one is only a target, and the first input of the next sequence.
    return ids[number * length : (number + 1) * length + 1].astype(np.int64)


def stream_windows(experiment: Experiment, ids: Ids | DocumentNumbers, name: str = ALONE) -> tuple[Window, Window]:
    """The training sequences, shuffled anew in every epoch, and the held-out ones in order.

    Args:
        name: of the set in a mixture, whose order it keeps whatever else is mixed.
    """
    length, seed = experiment.model.seq_length, experiment.training.seed
    num_training, num_held_out = split(len(ids), length, experiment.data.held_out_fraction)
    own = int.from_bytes(sha256(name.encode()).digest()[:8]) if name else 0

    def training(sample: int) -> NDArray[np.int64]:
        epoch, index = divmod(sample, num_training)
        # The seed is hashed first: seed 0 would otherwise shuffle its epoch 1 as seed 1 shuffles its epoch 0.
        return _sequence(ids, length, place_in_permutation(index, num_training, hash_of(seed ^ own) ^ epoch))

    return training, lambda sample: _sequence(ids, length, num_training + sample % num_held_out)


def synthetic_windows(experiment: Experiment, part: int) -> Window:
    """Windows of tokens that are drawn evenly from the vocabulary; each part draws tokens of its own."""
    model, seed = experiment.model, experiment.training.seed

    def window(sample: int) -> NDArray[np.int64]:
        # Philox computes from a counter, so that any sample can be drawn without drawing those before it.
        generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, part, sample]))
        return generator.integers(model.vocab_size, size=model.seq_length + 1)

    return window


NUM_ROUNDS = 4  # with these, Luby and Rackoff's network is a strong pseudorandom permutation
WORD = 2**64 - 1


def place_in_permutation(index: int, size: int, seed: int) -> int:
    """The place to which the permutation of 0 .. size-1 that `seed` names moves `index`."""
    assert 0 <= index < size
    half_bits = ((size - 1).bit_length() + 1) // 2
    # The square is less than four times as large as `size`, so that a few rounds are enough on average.
    while True:
        # A place beyond the end is permuted again. No two indices can meet on the way, since each step can be undone.
        index = _network(index, half_bits, seed)
        if index < size:
            return index


def _network(index: int, half_bits: int, seed: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = index >> half_bits, index & mask
    # A round changes one half by a hash of the other, and can be undone from that: so the network is a permutation.
    for key in _round_keys(seed):
        left, right = right, left ^ (hash_of(right + key) & mask)
    return (left << half_bits) | right


@lru_cache(maxsize=128)
def _round_keys(seed: int) -> tuple[int, ...]:
    return tuple(hash_of(seed + number) for number in range(NUM_ROUNDS))


def hash_of(value: int) -> int:
    """A hash of 64 bits: each depends on every bit of `value`. Source: SplitMix64, Steele et al. 2014."""
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)
