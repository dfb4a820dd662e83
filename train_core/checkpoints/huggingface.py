"""Weights in Hugging Face's files (safetensors), read and held against a model; the places: `huggingface_layout`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec
from train_core.checkpoints.checkpoint_folder import KEY
from train_core.checkpoints.huggingface_config import model_type_of, require_config, require_layout, warn_of_weights
from train_core.checkpoints.huggingface_layout import from_rows, router_biases_of, source_of, to_rows
from train_core.checkpoints.weight_files import INDEX, files_of, is_weights
from train_core.model.transformer import Transformer
from train_core.parallel.collectives import Axis
from train_core.parallel.parallelize import FirstValue
from train_core.process.world import result_of_first

UNUSED = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # masks and tables that older files hold
HEAD = "lm_head.weight"
WIDE = ("BF16", "F16", "F32", "F64")
"""Types of tensors that are values by themselves, as safetensors calls them."""

LAYERS_OF_OTHERS = {
    ".lora_A": (
        "holds an adapter, and not a whole model",
        "Merge it into its model first: of peft, merge_and_unload() and then save_pretrained().",
    ),
    ".attention.wq.weight": (
        "has tensors by the names of Meta's and Mistral's own programs",
        "Name the weights of the same model for transformers, which usually lie next to such a file.",
    ),
}
"""What is wrong with files whose tensors have such names, and what to do."""


class StoredTensor(NamedTuple):
    """The file that holds a tensor, and what the tensor is called there."""

    file: Path
    name: str


class Weights:
    """A file or a folder of Hugging Face weights, held against a model: every tensor is there, and of its shape.

    Rows of the vocabulary that the model has beyond the file's are the mean of the file's rows, so that a padding token
    is like an average one. Of learned positions the first `model.seq_length` are taken.
    """

    def __init__(self, path: str, spec: ModelSpec) -> None:
        """Raises ConfigError naming the first tensor that is missing, too much, or of another shape."""
        # All is checked here, so that a wrong file is refused at once, and not after minutes of reading it.
        require_layout(spec)
        self.path, self.spec = Path(path).expanduser(), spec
        self.places = self._places()
        require_config(self.path, spec)
        self._require_own_head()
        with torch.device("meta"):
            wanted = {name: tuple(p.shape) for name, p in Transformer(spec).named_parameters()}
        for name, shape in wanted.items():
            self._require_shape(name, shape)
        # Files of tied models may repeat the embedding as a head; `_require_own_head` has seen that it is the same.
        used = {name for parameter in wanted for name in source_of(parameter, spec).names} | {HEAD}
        used |= self._require_router_biases()
        for name in self.places:
            if name not in used and not name.endswith(UNUSED):
                if model_type_of(spec) == "deepseek_v3" and name.startswith(f"model.layers.{spec.num_layers}."):
                    problem = (
                        f"holds {name}, of num_nextn_predict_layers, and multi-token prediction is not trained here"
                    )
                    raise ConfigError(KEY, str(self.path), problem, "Name weights without those layers.")
                raise self._error(f"holds {name}, for which model={spec.name} has no place")

    def _require_router_biases(self) -> set[str]:
        """The tensors there of the biases of routers, which are there and are used, unless all are zero."""
        experts, names = self.spec.experts, router_biases_of(self.spec)
        tensors = [tensor for name in names for tensor in source_of(name, self.spec).names]
        if experts is not None and experts.balance_bias:
            for name in names:
                self._require_shape(name, (experts.num_experts,))
        elif used := next((name for name in tensors if name in self.places and self._tensor(name).any()), None):
            problem = f"would drop {used} of {self.path}, by which tokens choose experts"
            remedy = "Use model.experts.balance_bias=0.001, or 1.0e-9 to leave it as it is."
            raise ConfigError("model.experts.balance_bias", 0.0, problem, remedy)
        return set(tensors)

    def value(self, name: str, shape: torch.Size, part: int = 0, num_parts: int = 1) -> Tensor:
        """The parameter with a global name, in fp32 on the CPU.

        Args:
            part: of experts, which of so many equal parts is read; all else has one part.
        """
        source = source_of(name, self.spec)
        if source.rows in ("experts", "gated_experts"):
            assert self.spec.experts is not None
            each = self.spec.experts.num_experts // num_parts
            stacked = self._tensor(source.names[0], slice(part * each, (part + 1) * each))
            return to_rows([stacked.float()], source, self.spec)
        if num_parts > 1:
            each = len(source.names) // num_parts  # whole experts, as there are equally many in a part
            own = source.names[part * each : (part + 1) * each]
            return torch.cat([self._tensor(tensor).float() for tensor in own])
        whole = to_rows([self._tensor(tensor).float() for tensor in source.names], source, self.spec)
        if whole.size(0) >= shape[0]:
            # There are more rows only where they are learned positions, and sequences here are shorter.
            return whole[: shape[0]]
        return torch.cat((whole, whole.mean(0).expand(shape[0] - whole.size(0), -1)))

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(KEY, str(self.path), problem, "Name weights of this model, or change model.*.")

    def _places(self) -> dict[str, StoredTensor]:
        """The place of each tensor; a name without GPT-2's usual prefix gets it."""
        files, placed = files_of(self.path)
        held = {file: _names_in(file) for file in files}
        found = {name: file for file, names in held.items() for name in names} if placed is None else placed
        for name, file in list(found.items()):
            if name in held[file]:
                continue
            if name.endswith(UNUSED) or (name == HEAD and self.spec.tied_embeddings):
                del found[name]
                continue
            there = next((f"; {other.name} does" for other, names in held.items() if name in names), "")
            problem = f"places {name} in {file.name}, which does not hold it{there}"
            raise ConfigError(KEY, str(self.path / INDEX), problem, "Copy the index that belongs to these files.")
        prefix = "transformer." if self.spec.family == "gpt" and "wte.weight" in found else ""
        places = {f"{prefix}{name}": StoredTensor(file, name) for name, file in found.items()}
        if self.spec.tied_embeddings and HEAD in places:  # of tensors that share memory some files keep one name
            (embedding,) = source_of("embedding.tokens.weight", self.spec).names
            places.setdefault(embedding, places[HEAD])
        return places

    def _tensor(self, name: str, part: slice = slice(None)) -> Tensor:
        path, there = self.places[name]
        with safe_open(path, "pt") as file:
            tensor: Tensor = file.get_slice(there)[part]
        return tensor

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.places:
            raise self._error(f"lacks {name}")
        path, there = self.places[name]
        with safe_open(path, "pt") as file:
            found = file.get_slice(there)
            if (kind := found.get_dtype()) not in WIDE:
                problem = f"holds {name} in {kind}, a quantized type whose scales are not read"
                raise ConfigError(
                    KEY, str(path), problem, "Name weights that were not quantized, or convert these to bf16."
                )
            return tuple(found.get_shape())

    def _require_shape(self, name: str, shape: tuple[int, ...]) -> None:
        source = source_of(name, self.spec)
        there = from_rows(torch.empty(shape, device="meta"), source, self.spec)
        for tensor, whole in zip(source.names, there, strict=True):
            has, wants = self._shape(tensor), tuple(whole.shape)
            fits = has == wants
            # A vocabulary may be padded here so that it splits evenly, and a sequence may be shorter than the file's.
            if name in ("embedding.tokens.weight", "head.weight"):
                fits = has[1:] == wants[1:] and 0 < has[0] <= wants[0]
            if name == "embedding.positions.weight":
                fits = has[1:] == wants[1:] and has[0] >= wants[0]
            if not fits:
                raise self._error(
                    f"belongs to another model: {tensor} has shape {has}, and model={self.spec.name} needs {wants}"
                )

    def _require_own_head(self) -> None:
        """A tied model has no place for a head, unless it is the embedding once more."""
        head, (embedding,) = HEAD, source_of("embedding.tokens.weight", self.spec).names
        if not self.spec.tied_embeddings or head not in self.places or embedding not in self.places:
            return
        if not torch.equal(self._tensor(head), self._tensor(embedding)):
            problem = f"would drop {head} of {self.path}, which differs from {embedding}"
            raise ConfigError("model.tied_embeddings", True, problem, "Use model.tied_embeddings=false.")


def _names_in(file: Path) -> set[str]:
    """The tensors of a file, which has some of a model of transformers."""
    try:
        with safe_open(file, "pt") as opened:
            names = set(opened.keys())
    except (OSError, SafetensorError) as error:
        if file.is_file() and file.stat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs"):
            remedy = "Fetch the file itself, with `git lfs pull` there."
            raise ConfigError(KEY, str(file), "is a pointer of Git LFS, and not the weights", remedy) from None
        raise ConfigError(KEY, str(file), f"cannot be read: {error}", "Name whole safetensors files.") from None
    for part, (problem, remedy) in LAYERS_OF_OTHERS.items():
        if any(part in name for name in names):
            raise ConfigError(KEY, str(file), problem, remedy)
    return names


def loaded_weights(
    experiment: Experiment, world: Axis, device: torch.device, tokenizer: Callable[[], str | None] = lambda: None
) -> FirstValue | None:
    """The Hugging Face weights that `checkpoint.load` names; None where it names none. All ranks call it.

    A checkpoint of this trainer is not read here: it holds the optimizer's state too, and is restored later.

    Args:
        tokenizer: see `warn_of_weights`.

    Raises:
        ConfigError: they were to be resumed, or are of another model.
    """
    path = experiment.checkpoint.load
    if path is None or not result_of_first(partial(is_weights, path), world):
        return None
    if experiment.checkpoint.resume:
        problem = f"has no step to go on after: checkpoint.load = {path} holds weights alone"
        raise ConfigError("checkpoint.resume", True, problem, "Name a checkpoint, or use checkpoint.resume=false.")
    if world.rank == 0:  # once for the job, and not once for each rank
        warn_of_weights(experiment, tokenizer)
    weights = Weights(path, experiment.model)
    return lambda name, shape, experts: weights.value(name, shape, experts.rank, experts.size).to(device)
