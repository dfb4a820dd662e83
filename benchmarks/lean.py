"""The cost of carrying out a sweep: submission, waiting, reading, the way of a trivial point to its result, and that of
a trial as a step of an allocation beside an element of a job array.

python -m benchmarks lean

It needs the Slurm test cluster, which it starts where that is possible (root, Debian); elsewhere it says what it leaves
out. The cluster is one machine that also runs the jobs, so that only ratios mean anything elsewhere.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil

from benchmarks.chaos.cluster import Cluster, command, test_cluster, wait_for
from benchmarks.chaos.job_on_node import quick_job
from benchmarks.chaos.workbench import PERFORMANCE, ChaosWorkbench
from benchmarks.target import Target, at_most, figure
from conf.compose.load import compose
from conf.compose.settings import LauncherSpec
from conf.overrides import Overrides
from launcher.allocation.sweep import submit_allocation
from launcher.job_payload import ByName
from launcher.provenance import snapshot_code
from launcher.slurm.executor import SlurmJob
from launcher.sweep import submit
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial

NUM_POINTS, NUM_READ, NUM_TRIVIAL, NUM_STEPS, NUM_RUNS = 1000, 10_000, 20, 100, 3
WATCHED_SECONDS, PATIENCE_SECONDS, POLL_SECONDS = 60.0, 300.0, 0.02
HYDRA_SECONDS, HYDRA_POINTS = 5.6, 4
"""Four points by hydra-submitit-launcher 1.2.0 on such a cluster, 2 s of work in each; recorded, not of this run."""

QUICK_JOB = ByName("benchmarks.chaos.job_on_node", "quick_job")
"""Named and not sent, as the jobs of real sweeps are; sbatch takes the path to this package along."""

ON_CLUSTER = (
    "1,000 points over 5 shapes: submission beyond raw sbatch",
    "a controller that waits, of a core",
    f"{NUM_TRIVIAL} trivial points end to end, to a raw sbatch array",
    f"{HYDRA_POINTS} trivial points end to end",
    f"{NUM_STEPS} trivial trials as steps of one allocation",
)


def main() -> list[Target]:
    with tempfile.TemporaryDirectory(prefix="trisweep-lean-") as folder:
        reading = at_most(f"states of {NUM_READ:,} trials read", 1.0, seconds_to_read(Path(folder, "many")), " s")
        if os.geteuid() != 0 or not Path("/usr/bin/apt-get").exists():
            left_out = [Target(what, "", "left out: no Slurm test cluster here", None) for what in ON_CLUSTER]
            return [*left_out, reading]
        with test_cluster() as cluster:
            return [*_on_cluster(Path(folder), cluster), reading]


def _on_cluster(folder: Path, cluster: Cluster) -> list[Target]:
    ours, raw = submission(ChaosWorkbench.new(folder / "points", cluster, NUM_POINTS, num_shapes=5))
    few_ours, few_raw = median_of(lambda run: trivial_points(folder / f"trivial-{run}", cluster, NUM_TRIVIAL))
    four, _ = median_of(lambda run: trivial_points(folder / f"four-{run}", cluster, HYDRA_POINTS))
    steps = median_seconds(folder / "steps", cluster, as_steps)
    elements = median_seconds(folder / "elements", cluster, as_elements)
    submitting, waiting, to_raw, to_hydra, as_allocation = ON_CLUSTER
    return [
        at_most(submitting, 3.0, ours - raw, " s", f"{ours:.2f} s and {raw:.2f} s"),
        at_most(waiting, 1.0, 100 * share_of_waiting(folder / "waiting", cluster), " %"),
        at_most(to_raw, 1.3, few_ours / few_raw, "", f"{few_ours:.2f} s and {few_raw:.2f} s"),
        figure(to_hydra, four, " s", f"hydra-submitit-launcher: {HYDRA_SECONDS} s, recorded, with 2 s of work a point"),
        figure("a trivial point in an array, each", few_ours / NUM_TRIVIAL, " s"),
        figure(as_allocation, steps, " s", f"{steps / elements:.2f} times {elements:.2f} s as elements of job arrays"),
    ]


def submission(bench: ChaosWorkbench) -> tuple[float, float]:
    """Seconds for all points, which are held in the queue, by us and by sbatch alone."""
    bench.order()
    bench.slurm = bench.slurm.model_copy(update={"extra_sbatch": {"hold": True}})
    snapshot_code(bench.sweep.folder.code.absolute())  # made once for each state of the code
    start = time.perf_counter()
    summary = submit(bench.command, bench.slurm, job=bench.job)
    ours = time.perf_counter() - start
    scripts = sorted(bench.sweep.folder.submitit.glob("*_submission.sh"))
    assert len(scripts) == len(summary.arrays)
    start = time.perf_counter()
    again = [command("sbatch", "--parsable", str(script)).strip() for script in scripts]
    raw = time.perf_counter() - start
    command("scancel", *again, *(array.job_id for array in summary.arrays))
    return ours, raw


def trivial_points(folder: Path, cluster: Cluster, count: int) -> tuple[float, float]:
    """Seconds from the submission of an array to the last result, by us and by sbatch alone."""
    bench = ChaosWorkbench.new(folder, cluster, count, num_shapes=1)
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    return seconds_for(bench, as_elements, QUICK_JOB), _raw_array(folder, count)


def seconds_for(bench: ChaosWorkbench, start: Callable[[ChaosWorkbench], object], job: SlurmJob) -> float:
    """From the submission to the last result."""
    bench.job = job
    bench.order_quick_jobs()
    snapshot_code(bench.sweep.folder.code.absolute())  # made once for each state of the code
    begun = time.perf_counter()
    start(bench)
    complete = set(bench.names)
    wait_for(lambda: complete <= {words[1] for words in bench.executions("complete")}, PATIENCE_SECONDS, POLL_SECONDS)
    return time.perf_counter() - begun


def median_seconds(folder: Path, cluster: Cluster, start: Callable[[ChaosWorkbench], object]) -> float:
    benches = [ChaosWorkbench.new(Path(f"{folder}-{run}"), cluster, NUM_STEPS) for run in range(NUM_RUNS)]
    return median(seconds_for(bench, start, quick_job) for bench in benches)


def as_steps(bench: ChaosWorkbench) -> None:
    launcher = LauncherSpec(kind="allocation", num_nodes=4, time_limit_minutes=10)
    cluster = compose(
        Overrides.parse(["sweep=smoke", "cluster=local", "cluster.num_nodes=4", "cluster.devices_per_node=8"])
    ).settings.cluster
    submit_allocation(bench.command, bench.slurm, launcher, cluster, job=bench.job)


def as_elements(bench: ChaosWorkbench) -> None:
    submit(bench.command, bench.slurm.model_copy(update={"array_parallelism": len(bench.names)}), job=bench.job)


def _raw_array(folder: Path, count: int) -> float:
    """An array in which each element starts Python by srun, as ours do, and leaves a file."""
    done = folder / "raw"
    done.mkdir()
    leave = f"open('{done}/%s' % __import__('os').environ['SLURM_ARRAY_TASK_ID'], 'w')"
    script = folder / "raw.sh"
    script.write_text(f'#!/bin/bash\n#SBATCH --output=/dev/null\nsrun {sys.executable} -c "{leave}"\n')
    start = time.perf_counter()
    command("sbatch", f"--array=0-{count - 1}", str(script))
    wait_for(lambda: len(list(done.iterdir())) == count, PATIENCE_SECONDS, POLL_SECONDS)
    return time.perf_counter() - start


def share_of_waiting(folder: Path, cluster: Cluster) -> float:
    """The share of a core that a controller and what it calls take while its trials wait in the queue."""
    bench = ChaosWorkbench.new(folder, cluster, 4)
    bench.order()
    submit(bench.command, bench.slurm.model_copy(update={"extra_sbatch": {"hold": True}}), job=bench.job)
    words = [sys.executable, "-m", "benchmarks.chaos.controller", str(folder), f"--poll={bench.poll_seconds}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as controller:
        try:
            assert controller.stdout is not None
            controller.stdout.readline()
            process = psutil.Process(controller.pid)
            time.sleep(2.0)  # its first step
            before = _cpu_seconds(process)
            time.sleep(WATCHED_SECONDS)
            return (_cpu_seconds(process) - before) / WATCHED_SECONDS
        finally:
            controller.kill()
            command("scancel", *{bench.job_of(name).split("_")[0] for name in bench.names})


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def seconds_to_read(folder: Path) -> float:
    """Every trial's outcome, from its folder, as a command reads it that has just started."""
    sweep = _finished_sweep(folder)
    gc.collect()
    gc.freeze()  # as `Sweep.stored_in` does with a record
    start = time.perf_counter()
    outcomes = [each.outcome for each in sweep.read()]
    assert len(outcomes) == NUM_READ
    return time.perf_counter() - start


def _finished_sweep(folder: Path) -> Sweep:
    """Many trials, all of which have ended. Each has an experiment of its own, though they all say the same."""
    bench = ChaosWorkbench.new(folder, Cluster(folder), 1)
    (trial,) = bench.sweep.record.trials
    told = {"fingerprint": trial.planned.fingerprint, "outcome": "COMPLETED", "cause": "", "started": 1.0}
    text = json.dumps(told | {"performance": PERFORMANCE, "ended": 2.0})
    written = trial.model_dump_json()
    trials = [
        Trial.model_validate_json(written).model_copy(update={"trial_id": f"trial-{number}"})
        for number in range(NUM_READ)
    ]
    for each in trials:
        path = bench.sweep.folder_of(each).path
        path.mkdir(parents=True)
        (path / "measurement.json").write_text(text)
    return Sweep(SweepFolder(folder), bench.sweep.record.model_copy(update={"trials": tuple(trials)}))


def median_of(run: Callable[[int], tuple[float, float]]) -> tuple[float, float]:
    ours, raw = zip(*(run(number) for number in range(NUM_RUNS)), strict=True)
    return median(ours), median(raw)
