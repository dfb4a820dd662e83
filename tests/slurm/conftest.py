"""A real Slurm cluster for the session, and small sweeps to submit to it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from launcher.slurm.reconcile import reconcile
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.composed import load
from tests.conftest import BuildRecord, RecordOf
from tests.launcher.points_alone import submit_points
from tests.waiting import wait_for

SCRIPT = Path(__file__).parent / "cluster.sh"
START_SECONDS = 280
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
PORTS = 40
"""More than a cluster needs."""
OWN_CLUSTER = {
    "SLURM_TEST_DIR": f"/tmp/trisweep_test_slurm_{WORKER}",
    "SLURM_TEST_PORT": str(18800 + PORTS * int(WORKER.removeprefix("gw"))),
}
Ending = tuple[SweepFolder, SweepRecord, list[str]]


class WaitUntil(Protocol):
    """Asks Slurm again and again, as a person would, until `reached(states)`."""

    def __call__(
        self,
        folder: SweepFolder,
        record: SweepRecord,
        reached: Callable[[list[TrialReading]], bool],
        seconds: float = 120,
    ) -> list[TrialReading]: ...


def has_ended(state: TrialReading) -> bool:
    return state.outcome is not None and state.outcome.is_final


class StateOf(Protocol):
    """The state of the trial that ends in the given way, once it has ended."""

    def __call__(self, end: str, seconds: float = 120) -> TrialReading: ...


ENDS = ["raises", "loses its peer", "is killed", "takes too much memory", "is cancelled", "runs too long", "exits"]
TWO_DEVICE_NODES = ("cluster.devices_per_node=2", "cluster.num_nodes=4")


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Path]:
    """The folder of this worker's cluster. SLURM_CONF points to it for the whole session.

    A cluster that is up already is used, and left up, when SLURM_TEST_DIR names its folder.
    """
    given = os.environ.get("SLURM_TEST_DIR")
    environment = dict(os.environ) if given else {**os.environ, **OWN_CLUSTER}
    try:
        subprocess.run(
            [SCRIPT, "up"], env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=True
        )
    except subprocess.SubprocessError as error:
        if not given:  # what has started would stay
            subprocess.run([SCRIPT, "down"], env=environment, capture_output=True, timeout=120, check=False)
        said = f"{getattr(error, 'stdout', '')} {getattr(error, 'stderr', '')}"
        _refuse(f"the Slurm test cluster could not be started: {said.strip()[-600:]}")
    folder = Path(environment["SLURM_TEST_DIR"])
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    yield folder
    os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)
    if not given:
        subprocess.run([SCRIPT, "down"], env=environment, capture_output=True, timeout=120, check=True)


def _refuse(words: str) -> None:
    """Where it must run, it is an error that it cannot; elsewhere the reason of the skip."""
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "runs" / "test-sweep")


@pytest.fixture(scope="session")
def slurm() -> SlurmSpec:
    """The default settings, for quick jobs."""
    settings = load(["slurm.time_limit_minutes=5", "slurm.array_parallelism=8"])
    return settings.slurm


@pytest.fixture(scope="session")
def record_of(build_record: BuildRecord) -> RecordOf:
    """All trials run on two-device CPU nodes."""
    return lambda points, *overrides: build_record(points, (*TWO_DEVICE_NODES, *overrides))


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    def wait(
        folder: SweepFolder, record: SweepRecord, reached: Callable[[list[TrialReading]], bool], seconds: float = 120
    ) -> list[TrialReading]:
        states: list[TrialReading] = []

        def is_reached() -> bool:
            states[:] = reconcile(Sweep(folder, record).read())
            return reached(states)

        try:
            wait_for(is_reached, seconds)
        except AssertionError as error:
            raise AssertionError(states) from error
        return states

    return wait


def make_job(ends: list[str]) -> Callable[[str], None]:
    """A job that ends as the trial's seed says. Defined here, so that it travels by value: nodes know no tests."""

    def job(folder: str) -> None:
        import json
        import os
        import signal
        import time
        from pathlib import Path

        from train_core.job.failures import failure_of
        from train_core.trial.folder import TrialFolder

        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        rank = int(os.environ["SLURM_PROCID"])
        seed = json.loads(Path(folder, "trial.json").read_text())["experiment"]["training"]["seed"]
        end = ends[seed]
        if rank == 1 and end in ("raises", "loses its peer"):
            if end == "loses its peer":
                time.sleep(0.5)
            try:
                raise ValueError("the data of rank 1 is bad")
            except ValueError as error:
                TrialFolder(folder).write_failure(failure_of(rank, error))
                raise
        if rank == 0 and end == "loses its peer":
            TrialFolder(folder).write_failure(failure_of(rank, RuntimeError("Connection closed by peer")))
        if rank == 1 and end == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and end == "exits":
            os._exit(7)
        if rank == 0 and end == "takes too much memory":
            hoard = [bytearray(os.urandom(1) * 50_000_000) for _ in range(20)]
            time.sleep(60 + len(hoard))
        for _ in range(300):
            if end == "runs too long":  # a heart that beats tells from a job of which PBS has not said yet how it ended
                Path(folder, "heartbeat").touch()
            time.sleep(1)

    return job


@pytest.fixture(scope="session")
def ending(
    tmp_path_factory: pytest.TempPathFactory, slurm_cluster: Path, slurm: SlurmSpec, record_of: RecordOf
) -> Ending:
    """One job array in which every trial ends in its own way; submitted once, so that the ends run side by side."""
    folder = SweepFolder(tmp_path_factory.mktemp("ends") / "sweep")
    size: dict[str, Value] = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}
    record = record_of([size | {"training.seed": seed} for seed in range(len(ENDS))])
    quick = slurm.model_copy(update={"time_limit_minutes": 1, "extra_sbatch": {"mem": "400M"}})
    submit_points(Sweep(folder, record), quick, job=make_job(ENDS))
    return folder, record, ENDS


@pytest.fixture
def state_of(ending: Ending, wait_until: WaitUntil) -> StateOf:
    folder, record, _ = ending

    def state(end: str, seconds: float = 120) -> TrialReading:
        index = ENDS.index(end)
        return wait_until(folder, record, lambda states: has_ended(states[index]), seconds)[index]

    return state
