"""One rank of one trial, from its seat to its share of the measurement. Imports torch."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable

import torch

from conf.errors import TrainingError
from conf.plan.experiment import Experiment
from train_core.checkpoints.checkpoint_folder import require_start
from train_core.data.tokens import token_folder
from train_core.process.git_sha import git_sha, trainer_code
from train_core.process.gpu_settings import require_hardware_queues
from train_core.process.stop import StopAsked, Stopped, never
from train_core.process.world import Seat, World, choose_device, join, leave
from train_core.training.train import train
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Environment, Measurement, Outcome, StepMetrics
from train_core.watch.watchdog import watch_rank


def run_rank(
    trial: TrialFolder,
    seat: Seat,
    kind: str,
    device_index: int,
    on_step: Callable[[StepMetrics], None] | None = None,
    stop_asked: StopAsked = never,
) -> Measurement:
    """Join, train, leave. Every rank gets the measurement; rank 0 leaves metrics in the trial folder.

    Args:
        kind: `cpu` or `gpu`.
        stop_asked: whether a signal asked this rank to save and stop.

    Raises:
        Stopped: a signal asked for it.
    """
    started = time.time()
    experiment = trial.read_experiment()

    figures = dict[str, float]()

    def report(metrics: StepMetrics) -> None:
        figures.update(metrics.figures)
        trial.append_metrics(metrics)
        if on_step is not None:
            on_step(metrics)

    # Before the ranks meet: a rank that fails alone is named at once, and the others need not wait for it in vain.
    require_start(experiment.checkpoint.load, trial.checkpoints)
    if kind == "gpu" and torch.version.hip is not None:
        require_hardware_queues(experiment, os.environ)
    hang_seconds = experiment.watch.hang_seconds
    world = join(seat, choose_device(kind, device_index, may_be_bound=seat.may_be_bound), hang_seconds)
    with watch_rank(trial, world, hang_seconds):
        try:
            performance = train(experiment, world, token_folder(trial, experiment), report, stop_asked, trial)
        except Stopped:
            leave(world)
            raise
        except TrainingError as error:
            error.node = world.node_of(error.blamed)
            raise
    # After any other failure nobody leaves: taking groups apart waits for operations that will never end.
    leave(world)
    return Measurement(
        fingerprint=experiment.fingerprint,
        outcome=Outcome.COMPLETED,
        cause="",
        performance=performance,
        environment=environment(world),
        started=started,
        ended=time.time(),
        metrics=figures or _figures_of_before(trial, experiment),
    )


def _figures_of_before(trial: TrialFolder, experiment: Experiment) -> dict[str, float]:
    """The figures of the last step where an earlier attempt has done all of them."""
    if not (experiment.data.mixture or experiment.data.held_out):
        return {}
    return next((step.figures for step in reversed(trial.read_metrics())), {})


def environment(world: World) -> Environment:
    on_cpu = world.device.type == "cpu"
    return Environment(
        hostname=socket.gethostname(),
        device=platform.processor() or platform.machine() if on_cpu else torch.cuda.get_device_name(world.device),
        backend=world.backend,
        torch_version=str(torch.__version__),
        python_version=platform.python_version(),
        git_sha=git_sha(),
        trainer_code=trainer_code(),
        num_cores=os.cpu_count() or 1,
    )
