"""What a pre-flight finds unfit, whom it blames, and how its end is left for whoever goes on with the sweep."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from conf.plan.experiment import Experiment
from launcher.doctor.preflight import first_complaint, require_fit_nodes
from launcher.slurm.sbatch import sbatch_parameters
from rates.record import RankFacts
from sweeps.folder.submission import JobShape
from tests.composed import load
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Fault, Outcome

GIB = 2**30


def facts(rank: int = 0, **changed: object) -> RankFacts:
    """A fit rank of Frontier, two to a node."""
    sound = {
        "rank": rank,
        "node": f"node{1 + rank // 2}",
        "free_bytes": 63 * GIB,
        "total_bytes": 64 * GIB,
        "product_flops_per_second": 100e12,
        "product_is_right": True,
        "clock_hertz": 1.7e9,
        "bus_bytes_per_second": 12e9,
        "sum_is_right": True,
    }
    return RankFacts.model_validate(sound | changed)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load(["cluster=frontier", "parallel.world_size=16", "batch.global_batch_size=16"]).experiment()


def says_of(ranks: list[RankFacts], experiment: Experiment) -> tuple[str, int | None]:
    complaint = first_complaint(ranks, experiment)
    return ("", None) if complaint is None else (complaint.says, complaint.rank)


def test_fit_nodes_are_fit(experiment: Experiment) -> None:
    assert first_complaint([facts(rank) for rank in range(4)], experiment) is None
    assert first_complaint([facts(bus_bytes_per_second=None, clock_hertz=None)], experiment) is None


@pytest.mark.parametrize(
    ("changed", "words", "blamed"),
    [
        ({"product_is_right": False}, "wrong values", 2),
        ({"free_bytes": 40 * GIB}, "only 40.0 of its device's 64.0 GiB are free", 2),
        ({"sum_is_right": False}, "wrong sum", None),
        ({"product_flops_per_second": 60e12}, "a product reaches 60 TFLOPS at 1700 MHz, at least 70 is expected", 2),
        ({"clock_hertz": 0.3e9}, "runs at 300 MHz, the others at 1700", 2),
        ({"bus_bytes_per_second": 1e9}, "an all-reduce reaches 1 GB/s a rank", None),
    ],
)
def test_one_that_is_not_is_named(
    changed: dict[str, object], words: str, blamed: int | None, experiment: Experiment
) -> None:
    says, rank = says_of([facts(0), facts(1), facts(2, **changed), facts(3)], experiment)
    assert words in says
    assert rank == blamed


def test_all_equally_slow_are_compared_with_the_file(experiment: Experiment) -> None:
    says, _ = says_of([facts(rank, product_flops_per_second=20e12) for rank in range(4)], experiment)
    assert "a product reaches 20 TFLOPS" in says


def test_the_speed_of_cores_is_not_judged() -> None:
    local = load(["cluster=local"]).experiment()
    slow = facts(1, product_flops_per_second=1.0, bus_bytes_per_second=1.0, clock_hertz=None)
    assert first_complaint([facts(0), slow], local) is None


def unfit(kind: str, sender: Connection) -> None:
    sender.send([facts(0), facts(1, product_is_right=False)])


def raises(kind: str, sender: Connection) -> None:
    sender.send("ImportError: no torch here")


def dies(kind: str, sender: Connection) -> None:
    os._exit(7)


@pytest.mark.parametrize(
    ("measure", "cause", "node"),
    [
        (unfit, "pre-flight: rank 1 on node1: its device computes wrong values", "node1"),
        (raises, "pre-flight: rank 0 on node9: ImportError: no torch here", "node9"),
        (dies, "pre-flight: rank 0 on node9: its process ended with code 7", "node9"),
    ],
)
def test_the_end_names_the_node_to_blame(
    measure: Callable[[str, Connection], None],
    cause: str,
    node: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURMD_NODENAME", "node9")
    trial = TrialFolder(tmp_path)
    trial.write_trial({"experiment": load(["cluster=local"]).experiment().model_dump(mode="json")})
    with pytest.raises(SystemExit):
        require_fit_nodes(trial, measure)
    (failure,) = trial.read_failures()
    assert (failure.cause, failure.node) == (cause, node)
    assert (failure.outcome, failure.fault) == (Outcome.NODE_FAILED, Fault.PREFLIGHT)


def test_only_a_job_that_asks_for_it_looks() -> None:
    shape = JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False)
    for asked in (False, True):
        slurm = load([f"slurm.preflight={str(asked).lower()}"]).slurm
        setup = sbatch_parameters(slurm, shape, Path("/code"), "name")["setup"]
        assert ("export TRISWEEP_PREFLIGHT=1" in setup) == asked
