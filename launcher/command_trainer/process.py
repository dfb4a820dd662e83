"""The processes of a program on this machine: their seats in the job, and where they meet; their words; their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from conf.credentials import revealed
from conf.own_files import at_hand
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import Call, call_of, torchrun_words
from launcher.job_payload import PBS_JOB
from train_core.process.git_sha import ROOT
from train_core.process.machine import port_of_step, reachable_host
from train_core.trial.atomic import stored_values, write_atomically
from train_core.trial.folder import TrialFolder

THIS_MACHINE = "127.0.0.1"
OF_A_SEAT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_JOB_NAME", "SLURM_JOB_ID", PBS_JOB)
"""The variables that tell a rank of a PBS job its seat, and are wrong for other processes that it starts."""


@dataclass(frozen=True, slots=True)
class ProgramSeat:
    """The place of one started process: of one device with `start: srun`, else of all devices of a node.

    Of a whole node the first rank is that of its first device, and the local rank is 0.
    """

    node_rank: int
    num_nodes: int
    first_rank: int
    size: int
    local_rank: int
    ranks_per_node: int
    master_addr: str
    master_port: int

    @property
    def is_first(self) -> bool:
        return self.first_rank == 0


def seats_here(experiment: Experiment) -> list[ProgramSeat]:
    """The seats on this one machine, which holds the whole job, whatever nodes the plan is for."""
    size, port = experiment.parallel.world_size, free_port()
    ranks = range(size) if experiment.trainer.start == "srun" else range(1)
    return [ProgramSeat(0, 1, rank, size, rank, size, THIS_MACHINE, port) for rank in ranks]


def seat_in_slurm(experiment: Experiment, environment: Mapping[str, str] = os.environ) -> ProgramSeat:
    """The seat that srun, or the mpiexec of a PBS job, gave this task."""
    of_a_rank, task = experiment.trainer.start == "srun", int(environment["SLURM_PROCID"])
    if PBS_JOB in environment:
        # With -ppn mpiexec fills one node after the other. It says nothing of nodes, and the script where to meet.
        node = task // experiment.tasks_per_node if of_a_rank else task
        local_rank, address = environment["LOCAL_RANK"], environment["MASTER_ADDR"]
        port = int(environment["MASTER_PORT"])
    else:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
        node, local_rank = int(environment["SLURM_NODEID"]), environment["SLURM_LOCALID"]
        address = reachable_host(nodes, environment.get("SLURM_LAUNCH_NODE_IPADDR"))
        port = port_of_step(environment)
    return ProgramSeat(
        node_rank=node,
        num_nodes=experiment.num_nodes,
        first_rank=task if of_a_rank else node * experiment.tasks_per_node,
        size=experiment.parallel.world_size,
        local_rank=int(local_rank) if of_a_rank else 0,
        ranks_per_node=experiment.tasks_per_node,
        master_addr=address,
        master_port=port,
    )


def without_seat(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that a rank of a PBS job starts; that of any other process as it is."""
    is_rank = PBS_JOB in environment
    return {name: value for name, value in environment.items() if not (is_rank and name in OF_A_SEAT)}


def ranks_to_read(experiment: Experiment, seats: Sequence[ProgramSeat]) -> list[int]:
    """The first ranks of the processes whose logs the process of these seats reads.

    Steps are printed by the first rank, or by the last one, where the loss is.
    """
    first, of_a_rank = seats[0], experiment.trainer.start == "srun"
    if not first.is_first:
        return [first.first_rank]
    alone = experiment.trainer.start == "once" or (first.num_nodes == 1 and not of_a_rank)
    last = 0 if alone else first.size - (1 if of_a_rank else first.ranks_per_node)
    return sorted({0, last})


def free_port() -> int:
    """A port of this machine that nobody uses just now."""
    with socket.socket() as probe:
        # Port 0 has the system choose one that is free.
        probe.bind((THIS_MACHINE, 0))
        return int(probe.getsockname()[1])


VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
OF_OUR_OWN_CODE = ("PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
"""What a job sets so that it runs the snapshot, and the snapshot alone."""

HUGGINGFACE_STARTER = "launcher/command_trainer/huggingface.py"
"""Run by a program's own Python, and never imported here: it needs transformers."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from Linux' <sys/prctl.h>, which Python does not pass on
END_SECONDS = 5.0
"""So long a program may take to end its own workers before they are killed."""

MOST_GENERATIONS = 5
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork


@dataclass(frozen=True, slots=True)
class Start:
    """The command line and environment of one process, and its output; `named_by` is the key that gives its program."""

    words: tuple[str, ...]
    named_by: str
    environment: dict[str, str]
    working_dir: str | None
    log: Path


def start_of(trial: TrialFolder, experiment: Experiment, seat: ProgramSeat, devices: tuple[int, ...]) -> Start:
    """Return how a seat's process is started on these GPUs, if any, after writing the files that the program wants."""
    trainer = experiment.trainer
    call, words = _command_line(experiment, seat, _job_names(trial, experiment, seat))
    kept = stored_values(trial.private)
    tell = partial(revealed, values=kept, kept_in=trial.private)
    for name, content in call.files.items():  # every process writes the same, as none knows when another has
        write_atomically(trial.path / name, tell(content), durable=False)
    call = replace(call, environment={name: tell(value) for name, value in call.environment.items()})
    return Start(
        words=tuple(map(tell, words)),
        named_by="trainer.prefix" if trainer.prefix else "trainer.command",
        environment=_environment(os.environ, call, experiment, seat, devices),
        working_dir=trainer.working_dir and str(Path(trainer.working_dir).expanduser()),
        log=trial.rank_log(seat.first_rank),
    )


def shown_command(trial: TrialFolder, experiment: Experiment) -> str:
    """The command line of the first process of a job, for people: what only the job knows has its name there."""
    size, ranks = experiment.parallel.world_size, experiment.tasks_per_node
    seat = ProgramSeat(0, experiment.num_nodes, 0, size, 0, ranks, "MASTER_ADDR", 0)
    _, words = _command_line(experiment, seat, _job_names(trial, experiment, seat) | {"master_port": "MASTER_PORT"})
    folder = experiment.trainer.working_dir
    return (f"cd {shlex.quote(folder)} && " if folder else "") + shlex.join(words)


def _command_line(
    experiment: Experiment, seat: ProgramSeat, job: Mapping[str, str | int]
) -> tuple[Call, tuple[str, ...]]:
    """The call of the program, and all words of the process, with those that start it."""
    trainer = experiment.trainer
    call = call_of(trainer, experiment, job)
    words = call.words
    if trainer.start == "torchrun":
        address = (f"--master-addr={job['master_addr']}", f"--master-port={job['master_port']}")
        meeting = (f"--node-rank={job['node_rank']}", *address)
        python = str(job["python"])
        words = (*torchrun_words(python, seat.num_nodes, seat.ranks_per_node, call.words[0], meeting), *words)
    return call, (*trainer.prefix, *words)


def _job_names(trial: TrialFolder, experiment: Experiment, seat: ProgramSeat) -> dict[str, str | int]:
    stage = experiment.stage
    # The folders of the stages before this one lie beside its own, wherever the sweep was moved.
    earlier = zip(stage.folder_names, map(str, stage.folders_beside(trial.path)), strict=True) if stage else ()
    return dict[str, str | int](earlier) | {
        "node_rank": seat.node_rank,
        "master_addr": seat.master_addr,
        "master_port": seat.master_port,
        "trial_folder": str(trial.path.absolute()),
        "python": experiment.trainer.python or sys.executable,
        "rank": seat.first_rank,
        "local_rank": seat.local_rank,
        "huggingface_starter": str(at_hand(HUGGINGFACE_STARTER)),
    }


def _environment(
    inherited: Mapping[str, str], call: Call, experiment: Experiment, seat: ProgramSeat, devices: tuple[int, ...]
) -> dict[str, str]:
    """The job's environment without what is there for our own code, and with what torch reads of a rank."""
    environment = without_own_code(without_seat(inherited))
    environment["PYTHONUNBUFFERED"] = "1"  # else steps would appear in the log long after they were made
    environment |= {"MASTER_ADDR": seat.master_addr, "MASTER_PORT": str(seat.master_port)}
    if experiment.trainer.start == "srun":
        environment |= {
            "RANK": str(seat.first_rank),
            "WORLD_SIZE": str(seat.size),
            "LOCAL_RANK": str(seat.local_rank),
            "LOCAL_WORLD_SIZE": str(seat.ranks_per_node),
            "GROUP_RANK": str(seat.node_rank),
        }
    for name in VISIBLE_DEVICES if devices else ():
        # Numbers count among the devices that this process sees, whose names may be others, such as UUIDs.
        visible = [entry for entry in inherited.get(name, "").split(",") if entry.strip()]
        environment[name] = ",".join(visible[device] if visible else str(device) for device in devices)
    # What a person sets for the program comes last, and so replaces ours.
    return environment | call.environment


def without_own_code(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment without what is there for our own packages, whose names a program may have, such as `conf`."""
    environment = {name: value for name, value in inherited.items() if name not in OF_OUR_OWN_CODE}
    ours = str(ROOT)
    theirs = [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and path != ours]
    return environment | ({"PYTHONPATH": os.pathsep.join(theirs)} if theirs else {})


class CannotStart(Exception):
    """The program or its folder is not there, or may not be used."""


class Programs:
    """The processes that were started. Whatever they leave behind is ended with them."""

    def __init__(self, starts: Sequence[Start], *, ends_its_workers: bool, inherited: tuple[int, ...] = ()) -> None:
        """Prepare to run the program, once for each start; torchrun ends its workers itself when it is asked to end."""
        self.starts, self._inherited = starts, inherited
        self._death_signal = signal.SIGTERM if ends_its_workers else signal.SIGKILL
        self._processes: list[subprocess.Popen[bytes]] = []
        self._others: list[psutil.Process] = []

    def start(self) -> None:
        self._others = psutil.Process().children()
        if LIBC is not None:  # workers whose parent dies become ours, so that they can be found and ended
            LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for start in self.starts:
            start.log.parent.mkdir(parents=True, exist_ok=True)
            with start.log.open("wb") as log:
                self._processes.append(self._start_program(start, log.fileno()))

    def _start_program(self, start: Start, log: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                start.words,
                env=start.environment,
                cwd=start.working_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that a Ctrl-C reaches the program only through us
                pass_fds=self._inherited,
                preexec_fn=self._prepare_process,  # noqa: PLW1509 (no thread runs beside us)
            )
        except (OSError, ValueError) as error:
            raise CannotStart(_refusal(start, error)) from None

    def _prepare_process(self) -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # a Slurm task ignores it, which a program would inherit
        if LIBC is not None:
            LIBC.prctl(PR_SET_PDEATHSIG, self._death_signal, 0, 0, 0)

    def exit_codes(self) -> list[int | None]:
        """The exit code of every process; negative for a signal, None while it runs."""
        return [process.poll() for process in self._processes]

    def end(self) -> None:
        """End what still runs: asked first, as torchrun ends its workers itself, and killed after a while."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for _ in range(MOST_GENERATIONS):  # one that is killed may have started another meanwhile
            remaining = self._remaining_processes()
            for survivor in remaining:
                with contextlib.suppress(psutil.NoSuchProcess):
                    survivor.kill()
            psutil.wait_procs(remaining, timeout=END_SECONDS)

    def _remaining_processes(self) -> list[psutil.Process]:
        """Return the program's processes that still run, and their workers, which this process has adopted."""
        ours = [child for child in psutil.Process().children() if child not in self._others]
        trees: list[psutil.Process] = []
        for child in ours:
            with contextlib.suppress(psutil.NoSuchProcess):
                trees += [child, *child.children(recursive=True)]
        return trees


def _refusal(start: Start, error: OSError | ValueError) -> str:
    """One sentence about why a program did not start."""
    if start.working_dir is not None and not Path(start.working_dir).is_dir():
        return f"trainer.working_dir = {start.working_dir!r} is not a folder on {os.uname().nodename}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    word = start.words[0]
    # A bare name is looked for on the PATH alone, and a script without its mode or first line is no program.
    is_script = word.endswith(".py") and (Path(start.working_dir or ".") / word).is_file()
    remedy = ": a script is started by {python} in front of it" if is_script else ""
    return f"{start.named_by}: {word!r} cannot be started on {os.uname().nodename} ({reason}){remedy}"
