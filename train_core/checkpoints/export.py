"""A checkpoint as Hugging Face weights: safetensors files with their index, and a config.json."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from conf.errors import UsageError
from conf.types.model_spec import ModelSpec
from conf.types.schema import Dtype
from train_core.checkpoints.checkpoint_folder import Facts, Unreadable, damage, last_whole, read_facts
from train_core.checkpoints.huggingface_config import hugging_face_config, require_layout
from train_core.checkpoints.huggingface_layout import from_rows, router_biases_of, source_of
from train_core.checkpoints.reader import Reader, read, read_metadata
from train_core.model.initialize import DTYPES
from train_core.model.transformer import Transformer

CONFIG = "config.json"
FILE_BYTES = 4 * 2**30
"""A file is written from memory in one piece, so that this is also about how much an export needs."""


def checkpoint_in(path: Path) -> Path:
    """The checkpoint itself, or the last whole one of a folder of them or of a trial.

    Raises:
        UsageError: there is none.
    """
    if damage(path) is None:
        return path
    for folder in (path, path / "checkpoints"):
        if (found := last_whole(folder)) is not None:
            return found
    raise UsageError(f"{path} holds no whole checkpoint", "Name a trial's folder, or one of its checkpoints.")


def export(checkpoint: Path, out: Path, dtype: Dtype) -> list[Path]:
    """Write the weights of a whole checkpoint into a new folder; returns the files.

    Raises:
        UsageError: the folder exists, or cannot be written; or the checkpoint turns out to be damaged.
        ConfigError: the model has no place in any layout.
    """
    facts = read_facts(checkpoint)
    spec = facts.model
    require_layout(spec)
    if out.exists():
        raise UsageError(f"{out} exists already", "Name a folder that does not exist.")
    # Renamed at the end, so that a kill never leaves half an export that looks like a whole one.
    draft = out.with_name(f".{out.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)  # an earlier export may have been killed
        draft.mkdir(parents=True)
        (draft / CONFIG).write_text(json.dumps(hugging_face_config(spec, dtype), indent=2) + "\n")
        _write_tokenizer(draft, checkpoint, spec)
        _write_files(draft, _tensors(checkpoint, facts, DTYPES[dtype]))
        draft.rename(out)
    except Unreadable as problem:
        shutil.rmtree(draft, ignore_errors=True)
        raise UsageError(f"{checkpoint} {problem}", "Name another checkpoint.") from None
    except (OSError, SafetensorError) as error:  # the library has an error of its own for a full disk
        shutil.rmtree(draft, ignore_errors=True)
        raise UsageError(
            f"{out} could not be written: {error}", "Choose a folder with room for the weights."
        ) from error
    return sorted(out.iterdir())


def _tensors(checkpoint: Path, facts: Facts, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors by name, one at a time, so that a model larger than memory can be written."""
    spec, reader = facts.model, Reader(checkpoint, read_metadata(checkpoint, facts))
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Transformer(spec).named_parameters()}
    for name, shape in shapes.items():
        parameter = torch.empty(shape)
        read({f"weights.{name}": parameter}, reader)
        source = source_of(name, spec)
        tensors = (tensor.to(dtype) for tensor in from_rows(parameter, source, spec))
        yield from zip(source.names, tensors, strict=True)
    for name in router_biases_of(spec):
        assert spec.experts is not None
        bias = torch.zeros(spec.experts.num_experts)
        if spec.experts.balance_bias:  # else no checkpoint has any
            read({name: bias}, reader)
        (tensor,) = source_of(name, spec).names
        yield tensor, bias  # in fp32, as `transformers` keeps it


def _write_tokenizer(folder: Path, checkpoint: Path, spec: ModelSpec) -> None:
    """The tokenizer that lies beside the checkpoints, if one does, with what `AutoTokenizer` asks for."""
    near = (each / "tokenizer.json" for each in (checkpoint, checkpoint.parent, checkpoint.parent.parent))
    found = next((path for path in near if path.is_file()), None)
    if found is None:
        return
    (folder / "tokenizer.json").write_bytes(found.read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": spec.seq_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _write_files(folder: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write files of at most about 4 GiB, and an index that says which holds what."""
    held: dict[str, Tensor] = {}
    index: dict[str, str] = {}
    total = count = 0

    def write() -> None:
        nonlocal count
        count += 1
        file = f"model-{count:05d}.safetensors"
        save_file(held, folder / file, metadata={"format": "pt"})
        # The library makes files that only the user reads, whatever the umask says.
        (folder / file).chmod(stat.S_IMODE((folder / CONFIG).stat().st_mode))
        index.update(dict.fromkeys(held, file))
        held.clear()

    for name, tensor in tensors:
        if held and sum(waiting.nbytes for waiting in held.values()) + tensor.nbytes > FILE_BYTES:
            write()
        held[name] = tensor
        total += tensor.nbytes
    write()
    written = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(written, indent=2) + "\n")
