"""The files of a folder that are a model's weights: those that its index names, or the one that is whole. No torch.

What else lies there does not count: shards of an earlier save, adapters, an optimizer's state, copies in other formats.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from conf.errors import ConfigError
from conf.nearest import listed
from train_core.checkpoints.checkpoint_folder import FACTS, KEY, checkpoints_in

SUFFIX, WHOLE, INDEX = ".safetensors", "model.safetensors", "model.safetensors.index.json"
"""What a folder's files are called. Source: transformers, utils/__init__.py."""
BELOW = ("*/model*.safetensors*", "snapshots/*/model*.safetensors*")
"""Where they lie in folders that people name instead: those of a trainer, and of the hub's cache."""

CONVERT = (
    'Convert it first: python -c "import sys, transformers as t; '
    't.AutoModelForCausalLM.from_pretrained(sys.argv[1]{how}).save_pretrained(sys.argv[2])" {folder} {out}'
)
TORCH = "Write its tensors, by transformers' names, into model.safetensors with safetensors.torch.save_file."
FOREIGN = {
    "pytorch_model*.bin": CONVERT,
    "*.gguf": CONVERT.replace("{how}", ", gguf_file='{name}'"),
    "*.h5": "Convert it first with transformers 4: from_pretrained(FOLDER, from_tf=True), save_pretrained().",
    "*.msgpack": "Convert it first with transformers 4: from_pretrained(FOLDER, from_flax=True), save_pretrained().",
    "consolidated*.pth": "Convert it first with convert_llama_weights_to_hf.py, which comes with transformers.",
    "iter_*": "Convert it to safetensors by the tools of the program that wrote it, such as Megatron-Bridge.",
    "global_step*": "Convert it first: python zero_to_fp32.py {folder} {out} --safe_serialization (it lies there).",
    **dict.fromkeys(("mp_rank_*", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.npz"), TORCH),
    "config.json": "Name the folder of its weights; where there are none: hf download NAME --local-dir {folder}",
}
"""What other programs write and is not read here, the surest first, and how it becomes what is."""


def is_weights(path: str | None) -> bool:
    """True if `checkpoint.load` names Hugging Face weights: a file of them or a folder with such files."""
    if path is None:
        return False
    found = Path(path).expanduser()
    if (found / FACTS).exists() or checkpoints_in(found):  # of this trainer, whatever lies beside its files
        return False
    return (found.suffix == SUFFIX and found.is_file()) or (found / INDEX).exists() or any(found.glob(f"*{SUFFIX}"))


def files_of(path: Path) -> tuple[list[Path], dict[str, Path] | None]:
    """The files of weights, and which holds each tensor; None in its place where no index says that.

    Raises:
        ConfigError: the index cannot be read or names what is not there; or none says which of several files count.
    """
    if not path.is_dir():
        beside = path.parent / INDEX
        if beside.exists() and path in (shards := {*_placed(beside).values()}) and len(shards) > 1:
            problem = f"is one of the {len(shards)} files of a model"
            raise ConfigError(KEY, str(path), problem, f"Name their folder: {KEY}={path.parent}.")
        return [path], None
    if (path / INDEX).exists():
        placed = _placed(path / INDEX)
        files = sorted({*placed.values()})
        if missing := [str(file.relative_to(path)) for file in files if not file.exists()]:
            problem = f"{INDEX} names {listed(missing, 1)}, which {'is' if len(missing) == 1 else 'are'} not there"
            remedy = "Copy what is missing too, or the index that belongs to these files."
            if (path / WHOLE).exists():
                remedy = f"Copy it too; if {WHOLE} is the whole model, use {KEY}={path / WHOLE}."
            raise ConfigError(KEY, str(path), problem, remedy)
        return files, placed
    if (path / WHOLE).exists():
        return [path / WHOLE], None
    files = sorted(path.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        problem = f"holds {len(files)} safetensors files and neither {INDEX} nor {WHOLE}"
        remedy = f"Copy the index of these files too, or name the one that holds the whole model, as {KEY}=FILE."
        raise ConfigError(KEY, str(path), problem, remedy)
    return files, None


def _placed(index: Path) -> dict[str, Path]:
    try:
        placed = json.loads(index.read_bytes())["weight_map"]
        if placed and all(isinstance(file, str) for file in placed.values()):
            return {name: index.parent / file for name, file in placed.items()}
    except OSError as error:
        raise ConfigError(KEY, str(index), f"cannot be read: {error.strerror}", "Make it readable.") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # whatever is wrong with it, the remedy is the same
    problem = "is not an index of weights: it has no weight_map from tensors to files"
    raise ConfigError(KEY, str(index), problem, "Copy it again, or name one file of weights, as checkpoint.load=FILE.")


def left_aside(path: Path) -> list[str]:
    """The safetensors files of a folder of weights that do not count."""
    used = files_of(path)[0]
    return [found.name for found in sorted(path.glob(f"*{SUFFIX}")) if found not in used]


def foreign_weights(path: Path) -> ConfigError | None:
    """The error for weights in a format that is not read here, or in a folder below; None where there are none."""
    if path.name.endswith(f"{SUFFIX}.index.json"):
        return ConfigError(KEY, str(path), "is the index of a folder of weights", f"Name {KEY}={path.parent}.")
    for pattern, remedy in FOREIGN.items():
        found = next(iter(sorted(path.glob(pattern))), path if path.is_file() and path.match(pattern) else None)
        if found is not None:
            folder = found.parent.absolute()
            names = {"folder": shlex.quote(str(folder)), "out": shlex.quote(f"{folder}-safetensors"), "how": ""}
            problem = f"holds {found.name}; of other programs, only weights in safetensors are read"
            return ConfigError(KEY, str(path), problem, remedy.format(**names, name=found.name))
    below = next((at for pattern in BELOW for at in sorted(path.glob(pattern))), None)
    if below is None:
        return None
    return ConfigError(
        KEY, str(path), "holds no weights itself, and a folder in it does", f"Name {KEY}={below.parent}."
    )
