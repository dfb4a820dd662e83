"""Checkpoints that any layout writes and any layout reads: boxes of the model's parameters, by their global names.

Each rank writes what it updates: fp32 weights and the two moments of AdamW. The weights of the compute precision are
those in fp32, rounded. The file format is that of torch.distributed.checkpoint, which finds for every box that is read
the boxes that were written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from conf.errors import ConfigError, UsageError
from conf.experiment import Experiment
from train_core.checkpoints.checkpoint_folder import (
    KEY,
    Facts,
    damage,
    delete_drafts,
    delete_others,
    draft_of,
    last_whole,
    publish,
    read_facts,
)
from train_core.checkpoints.huggingface_config import is_weights
from train_core.checkpoints.same_model import require_same_shapes, require_same_spec
from train_core.optimizer.adam import AdamState
from train_core.optimizer.optimizer import Optimizer
from train_core.parallel.boxes import Box
from train_core.parallel.collectives import Axis, found_by_first
from train_core.parallel.replicas import Replicas
from train_core.process.world import use_device

WRITING = timedelta(days=1)
"""For how long a rank waits for others to write their share: however slow the disk is, it is no reason to give up. A
lost rank ends the job by other means."""


class Piece(Tensor):
    """Holds boxes of one tensor of the model, and speaks the protocol of torch.distributed.checkpoint.

    Attributes:
        boxes: views of the rank's own memory, by their offsets in the whole tensor.
        whole: the shape of the whole tensor.
    """

    boxes: dict[torch.Size, Tensor]
    whole: torch.Size

    @staticmethod
    def of(shape: tuple[int, ...], boxes: dict[torch.Size, Tensor]) -> Piece:
        """A piece of a tensor of the given shape."""
        # torch.distributed.checkpoint asks only tensors for their boxes. The data of this one are never read.
        piece: Piece = Tensor._make_subclass(Piece, next(iter(boxes.values())))
        piece.boxes, piece.whole = boxes, torch.Size(shape)
        return piece

    def size(self, dim: int | None = None) -> Any:
        """The size of the whole tensor, with which the sizes in a checkpoint are compared."""
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets, box.size()),
                    properties=TensorProperties.create_from_tensor(box),
                    size=self.whole,
                ),
            )
            for offsets, box in self.boxes.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, box.size()) for offsets, box in self.boxes.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.boxes[index.offset]


def _pieces(states: list[AdamState], boxes: list[list[Box]], *, copied: bool = False) -> dict[str, Any]:
    """What is read or written, by kind and the parameter's global name: views of `states`, or copies on the host."""
    found: dict[str, tuple[tuple[int, ...], dict[torch.Size, Tensor]]] = {}
    for state, held in zip(states, boxes, strict=True):
        for kind, flat in state.tensors().items():
            for box in held:
                _, views = found.setdefault(f"{kind}.{box.name}", (box.shape, {}))
                view = box.of(flat)
                views[torch.Size(box.offsets)] = view.to("cpu", copy=True) if copied else view
    return {key: Piece.of(shape, views) for key, (shape, views) in found.items()}


class Checkpoints:
    """Saves and restores one rank's share of a training; every rank calls every method.

    Used as a context: at its end the last checkpoint is on disk.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        replicas: Replicas,
        experiment: Experiment,
        world: Axis,
        folder: Path | None,
        require_current: Callable[[], None] = lambda: None,
    ) -> None:
        """`folder` gets the checkpoints; None saves none.

        Args:
            require_current: raises where this process may write nothing more; see `TrialFolder.require_current`.
        """
        self.optimizer, self.replicas = optimizer, replicas
        self.experiment, self.world, self.folder = experiment, world, folder
        self.plan, self.require_current = experiment.checkpoint, require_current
        # The writer has a group of its own, because its collectives run beside those of the training.
        shares = folder is not None and world.size > 1
        self.group = dist.new_group(backend="gloo", timeout=WRITING) if shares else None
        # CUDA's current device is a thread's own, and the writer copies from this rank's.
        self.writer = ThreadPoolExecutor(1, "checkpoint", use_device, (optimizer.device,))
        self.writing: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for the last checkpoint, unless this rank failed: the others may then never write their share."""
        if error is None or isinstance(error, SystemExit):
            self.wait()
        self.writer.shutdown(wait=False)

    def restore(self) -> int:
        """Go on from the folder's last whole checkpoint, else start from `checkpoint.load`; returns the last step done.

        Raises:
            ConfigError: `checkpoint.load` is no whole checkpoint of this model.
        """
        # One rank looks for all, or ranks might restore different steps where a folder is just being changed.
        own = found_by_first(self._last_of_folder, self.world)
        if own is not None:
            return self._read(own).step
        given = found_by_first(self._given, self.world)
        if given is not None:
            self._read(given)
        return 0  # a training that starts from another one's state still does all of its own steps

    def _last_of_folder(self) -> Path | None:
        if self.folder is None:
            return None
        delete_drafts(self.folder)
        return last_whole(self.folder)

    def _given(self) -> Path | None:
        """What to start from; None also where `checkpoint.load` names weights, which the model has already."""
        load = self.plan.load
        return None if load is None or is_weights(load) else _given(Path(load).expanduser())

    def _read(self, checkpoint: Path) -> Facts:
        model = self.experiment.model
        require_same_spec(checkpoint, read_facts(checkpoint).model, model)
        require_same_shapes(checkpoint, dict(_saved_shapes(checkpoint)), model)
        states, replicas = self.optimizer.states, self.replicas
        with _quiet():
            load(_pieces(states, replicas.boxes()), storage_reader=FileSystemReader(checkpoint))
        # The model computes with rounded copies of the masters, of which each replica has so far made its own part.
        for state, weights in zip(states, replicas.own_weights(), strict=True):
            state.write_to(weights)
        replicas.share_weights()
        facts = read_facts(checkpoint)
        self.optimizer.num_updates = facts.num_updates
        self.optimizer.loss_scale.restore(facts.loss_scale)
        return facts

    def is_due(self, step: int) -> bool:
        """Whether to save after this step: every so many steps, and after the last one."""
        if self.folder is None or self.plan.every_steps is None:
            return False
        return step % self.plan.every_steps == 0 or step == self.experiment.training.num_steps

    def save(self, step: int) -> None:
        """Write the state after `step`; returns when it may change again.

        Raises:
            UsageError: this checkpoint, or the one before it, could not be written.
        """
        assert self.folder is not None
        self.wait()  # for the checkpoint before, so that there is at most one copy of the state in memory
        # Copied on this thread: on the writer's, the model's next pass would change what is being copied.
        boxes = self.replicas.boxes_to_write()
        pieces = _pieces(self.optimizer.states, boxes, copied=self.plan.asynchronous)
        self.writing = self.writer.submit(self._write, pieces, self._facts(step))
        if not self.plan.asynchronous:
            self.wait()

    def wait(self) -> None:
        writing, self.writing = self.writing, None
        if writing is None:
            return
        try:
            writing.result()
        except (OSError, CheckpointException) as error:
            # torch collects the failures of all ranks; that of the first one stands for them.
            cause = error if isinstance(error, OSError) else next(iter(error.failures.values()))[0]
            problem = f"a checkpoint could not be written to {self.folder}: {cause}"
            raise UsageError(problem, "Make room there, or choose another output_dir.") from error

    def _facts(self, step: int) -> Facts:
        experiment, optimizer = self.experiment, self.optimizer
        scale = optimizer.loss_scale.state()
        return Facts(
            step=step,
            num_updates=optimizer.num_updates,
            label=experiment.label,
            model=experiment.model,
            loss_scale=scale,
            file_bytes={},
        )

    def _write(self, pieces: dict[str, Any], facts: Facts) -> None:
        assert self.folder is not None
        self.require_current()
        with _quiet():
            save(pieces, storage_writer=FileSystemWriter(draft_of(self.folder, facts.step)), process_group=self.group)
        if self.world.rank == 0:  # all have written: `save` gathers their word on rank 0
            self.require_current()  # a later attempt may have begun meanwhile
            publish(self.folder, facts)
            # Only now, so that a kill at any moment leaves a whole checkpoint.
            delete_others(self.folder, facts.step, self.plan.keep_last)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warning that a process is alone, which is how a job of one rank is meant to be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _given(path: Path) -> Path:
    """The checkpoint that was asked for: itself, or the last one of a folder of them."""
    if (problem := damage(path)) is None:
        return path
    if (last := last_whole(path)) is not None:
        return last
    if not path.is_dir():
        raise ConfigError(KEY, str(path), "is not a folder", "Name a checkpoint folder, or null.")
    instead = last_whole(path.parent)
    remedy = "Name another one, or null." if instead is None else f"The last whole one beside it is {instead}."
    raise ConfigError(KEY, str(path), f"is no whole checkpoint: it {problem}", remedy)


def _saved_shapes(checkpoint: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    prefix = "weights."
    for key, saved in FileSystemReader(checkpoint).read_metadata().state_dict_metadata.items():
        if key.startswith(prefix) and isinstance(saved, TensorStorageMetadata):
            yield key.removeprefix(prefix), tuple(saved.size)
