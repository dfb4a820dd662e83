"""Checkpoints that any layout writes and any layout reads: boxes of the model's parameters, by their global names.

Each rank writes what it updates: fp32 weights and the two moments of AdamW. The weights of the compute precision are
those in fp32, rounded. The file format is that of torch.distributed.checkpoint, which finds for every box that is read
the boxes that were written.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from conf.errors import TrainingError
from conf.plan.experiment import Experiment
from conf.units import GIBIBYTE
from costs.counts.parameters import num_parameters
from train_core.checkpoints.boxes import boxes_to_write, own_boxes
from train_core.checkpoints.checkpoint_folder import (
    Facts,
    Unreadable,
    delete_drafts,
    delete_others,
    draft_of,
    last_to_go_on_from,
    publish,
)
from train_core.checkpoints.host_copies import HostCopies, Wait, nothing_to_wait_for, pieces_of, pieces_of_whole
from train_core.checkpoints.reader import Reader, first_failure, read
from train_core.checkpoints.weight_files import is_weights
from train_core.checkpoints.what_to_read import (
    Refusal,
    descriptions_in,
    facts_of_training,
    how_it_goes_on,
    how_it_starts,
    require_own_data,
    require_same_states,
    require_same_training,
    whole_checkpoint,
)
from train_core.checkpoints.writer import Progress, Writer
from train_core.expert_load import RouterBiases
from train_core.optimizers.optimizer import Optimizer
from train_core.parallel.clock import Clock, Line
from train_core.parallel.collectives import Axis
from train_core.parallel.data_parallel import Replicas
from train_core.process.world import result_of_first, use_device

LOGGER = logging.getLogger(__name__)


class Checkpoints:
    """Saves and restores one rank's share of a training; every rank calls every method.

    Used as a context: at its end the last checkpoint is on disk.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        replicas: Replicas,
        router_biases: RouterBiases,
        experiment: Experiment,
        world: Axis,
        folder: Path | None,
        require_current: Callable[[], None] = lambda: None,
        tokens: str | None = None,
    ) -> None:
        """`folder` gets the checkpoints; None saves none.

        Args:
            tokens: the name of the token file; None where tokens are drawn at random.
            require_current: raises where this process may write nothing more; see `TrialFolder.require_current`.
        """
        self.optimizer, self.replicas, self.router_biases = optimizer, replicas, router_biases
        self.experiment, self.world, self.folder = experiment, world, folder
        self.plan, self.require_current = experiment.checkpoint, require_current
        self.training = facts_of_training(experiment, tokens)
        # The writer has a group of its own, because its collectives run beside those of the training.
        self.group = group_of_writers(world.size) if folder is not None and world.size > 1 else None
        self.progress = Progress(world.line or Line("world", (world.rank,), Clock()))
        self.copies = HostCopies(optimizer)
        # CUDA's current device is a thread's own, and the writer copies from this rank's.
        self.writer = ThreadPoolExecutor(1, "checkpoint", use_device, (optimizer.device,))
        self.writing: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for the last checkpoint, unless this rank failed alone: the others may then never write their share."""
        if error is None or isinstance(error, SystemExit):
            self.wait()
        elif isinstance(error, TrainingError):  # of all ranks together, as of a loss that is not finite
            try:
                self.wait()
            except Exception as problem:  # what ends the training stays what is told
                LOGGER.warning("%s", problem)
        self.writer.shutdown(wait=False)

    def restore(self) -> int:
        """Go on from the folder's last whole checkpoint, else start from `checkpoint.load`; returns the last step done.

        With `checkpoint.resume` a training goes on after the step of that checkpoint, too.

        Raises:
            ConfigError: `checkpoint.load` is no whole checkpoint of this model, or other data would follow than before.
            UsageError: the folder has checkpoints, and all of them are damaged.
        """
        # Its own checkpoints come first: a training that was interrupted goes on, whatever it once started from.
        own = self._read_last(self._last_of_folder, partial(require_own_data, wanted=self.training))
        if own is not None:
            return own[1].step
        given = result_of_first(self._path_to_load, self.world)
        if given is None:
            return 0
        resumes = self.plan.resume
        refuse = partial(require_same_training if resumes else require_same_states, wanted=self.training)
        loaded = self._read_last(partial(whole_checkpoint, given), refuse)
        assert loaded is not None  # `whole_checkpoint` finds one, or raises
        # Said only now: a damaged one is passed over for the one before it.
        said = (how_it_goes_on if resumes else how_it_starts)(*loaded, self.training)
        if said and self.world.rank == 0:
            LOGGER.warning(said)
        # Unless it resumes another one, a training that starts from its state still does all of its own steps.
        return loaded[1].step if resumes else 0

    def _read_last(
        self, find: Callable[[Mapping[Path, str]], Path | None], refuse: Refusal
    ) -> tuple[Path, Facts] | None:
        """Read what `find` finds; where that is damaged, what it finds when it is told so. None where it finds none."""
        unreadable: dict[Path, str] = {}
        # One rank looks for all, or ranks might restore different steps where a folder is just being changed.
        while (found := result_of_first(partial(find, unreadable), self.world)) is not None:
            try:
                return found, self._read(found, refuse)
            except Unreadable as problem:  # raised on all ranks alike
                unreadable[found] = str(problem)
        return None

    def _last_of_folder(self, unreadable: Mapping[Path, str]) -> Path | None:
        if self.folder is None:
            return None
        # This attempt has saved nothing yet, so that every draft is what a killed one left.
        delete_drafts(self.folder)
        return last_to_go_on_from(self.folder, unreadable)

    def _path_to_load(self) -> Path | None:
        """The checkpoint to start from; None also where `checkpoint.load` names weights, which the model has."""
        load = self.plan.load
        return None if load is None or is_weights(load) else Path(load).expanduser()

    def _read(self, checkpoint: Path, refuse: Refusal) -> Facts:
        descriptions = partial(descriptions_in, checkpoint, self.experiment.model, refuse)
        facts, metadata = result_of_first(descriptions, self.world)
        states, replicas = self.optimizer.states, self.replicas
        # Those that a training without them has not saved start at 0.
        known = {
            name: bias for name, bias in self.router_biases.tensors().items() if name in metadata.state_dict_metadata
        }
        biases = pieces_of_whole(known)
        read(pieces_of(states, own_boxes(replicas)) | biases, Reader(checkpoint, metadata))
        # The model computes with rounded copies of the masters, of which each replica has so far made its own part.
        for state, weights in zip(states, replicas.own_weights(), strict=True):
            state.write_to(weights)
        replicas.share_weights()
        self.optimizer.num_updates = facts.num_updates
        self.optimizer.loss_scale.restore(facts.loss_scale)
        return facts

    def is_due(self, step: int) -> bool:
        """True if a checkpoint follows this step: every so many steps, and after the last one."""
        if self.folder is None or self.plan.every_steps is None:
            return False
        return step % self.plan.every_steps == 0 or step == self.experiment.training.num_steps

    def save(self, step: int) -> None:
        """Write the state after `step`; returns when it may change again.

        Raises:
            TrainingError: this checkpoint, or the one before it, could not be written.
        """
        assert self.folder is not None
        self.wait()  # for the checkpoint before, so that there is at most one copy of the state in memory
        boxes = boxes_to_write(self.replicas)
        # Copied from this thread: on the writer's, the model's next pass would change what is being copied.
        if self.plan.asynchronous:
            pieces, wait = self.copies.of(boxes)
        else:
            pieces, wait = pieces_of(self.optimizer.states, boxes), nothing_to_wait_for
        if self.router_biases.are_told_here:
            # Few numbers, of which a copy is made at once.
            biases = self.router_biases.tensors().items()
            pieces |= pieces_of_whole({name: bias.to("cpu", copy=True) for name, bias in biases})
        self.progress.work("planning a checkpoint")
        self.writing = self.writer.submit(self._write, pieces, wait, self._facts(step))
        if not self.plan.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Return when the last save is on disk; raises TrainingError where it could not be written."""
        writing, self.writing = self.writing, None
        if writing is None:
            return
        self.progress.wait(writing)
        # Raises on the training thread what has failed on the writer's, where nobody would see it.
        writing.result()

    def _facts(self, step: int) -> Facts:
        experiment, optimizer = self.experiment, self.optimizer
        scale = optimizer.loss_scale.state()
        return Facts(
            step=step,
            num_updates=optimizer.num_updates,
            label=experiment.label,
            model=experiment.model,
            loss_scale=scale,
            training=self.training,
        )

    def _write(self, pieces: dict[str, Any], wait: Wait, facts: Facts) -> None:
        assert self.folder is not None
        self.require_current()
        # On a GPU the copies may still be on their way into the memory that is written from.
        wait()
        # Asked before the draft takes any of it, for the message where there is not enough.
        free = free_bytes(self.folder)
        draft = draft_of(self.folder, facts.step)
        try:
            self._write_files(pieces, draft)
            if self.world.rank == 0:  # all have written: `save` gathers their word on rank 0
                self._publish(facts)
        except (OSError, CheckpointException) as error:
            if self.world.rank == 0:
                self.require_current()  # or a later attempt has deleted this draft, and may be writing one of its own
                # A full disk would have no room for the words that say so, either.
                shutil.rmtree(draft, ignore_errors=True)
            raise write_error(error, self.world.rank, self.folder, facts, free) from error

    def _write_files(self, pieces: dict[str, Any], draft: Path) -> None:
        with warnings.catch_warnings():
            # A process that is alone is how a job of one rank is meant to be.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            save(pieces, storage_writer=Writer(draft, self.progress), process_group=self.group)

    def _publish(self, facts: Facts) -> None:
        assert self.folder is not None
        self.progress.work("publishing a checkpoint and deleting older ones")
        self.require_current()  # a later attempt may have begun meanwhile
        publish(self.folder, facts)
        # Only now, so that a kill at any moment leaves a whole checkpoint.
        delete_others(self.folder, facts.step, self.plan.keep_last)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BYTES_A_PARAMETER = 12
"""A weight and two moments in fp32."""


def free_bytes(folder: Path) -> int:
    """Room on the file system; a quota may leave less."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def write_error(
    error: OSError | CheckpointException, rank: int, folder: Path, facts: Facts, free: int
) -> BaseException:
    """The exception to raise: a TrainingError where a file could not be written, which blames the rank that tried.

    Args:
        free: room that there was before.
    """
    rank, cause = first_failure(error, OSError) if isinstance(error, CheckpointException) else (rank, error)
    if not isinstance(cause, OSError):
        return cause
    problem = f"rank {rank} could not write the checkpoint of step {facts.step} to {folder}: {cause}"
    if cause.errno not in FULL:
        return TrainingError(problem, "Mend that, or choose another output_dir.", rank)
    needed = BYTES_A_PARAMETER * num_parameters(facts.model)
    room = f"it takes about {needed / GIBIBYTE:.3g} GiB, and {free / GIBIBYTE:.3g} GiB were free"
    return TrainingError(
        f"{problem} ({room})",
        "Make room there, and the same command goes on from the checkpoint before; or choose another output_dir.",
        rank,
    )


LAZILY = "TORCH_GLOO_LAZY_INIT"
WRITING = timedelta(days=1)
"""The time that torch lets a rank wait for others to write their share: a disk, however slow, is no reason to
give up. The watchdog knows more; see `progress`."""

OTHER_FILES = 1024
"""So many files and sockets a rank may need besides."""


def group_of_writers(num_ranks: int) -> dist.ProcessGroup:
    """A group whose ranks connect when they first have something to say to each other.

    Gloo otherwise connects every rank to every other, which on a thousand of them is more sockets than a process may
    have. All writers talk with the first one, and else with a few.
    """
    allow_sockets(num_ranks)
    chosen = os.environ.get(LAZILY)
    os.environ.setdefault(LAZILY, "1")  # torch reads it when it makes a group, and knows no other way to be told
    try:
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=WRITING)
    finally:
        # The groups of the training connect before the first step, so that none of its time goes into that.
        if chosen is None:
            del os.environ[LAZILY]
    return group


def allow_sockets(num_ranks: int) -> None:
    """Raise this process's limit of open files, as far as the system lets it, to a socket for every rank."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_ranks + OTHER_FILES
    # The other half of the limit is for the training's own sockets and files.
    if num_ranks > limit // 2:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, min(needed, most)), most))
