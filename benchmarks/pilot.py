"""The cost of a trial as a step of an allocation, beside the same trial as an element of a job array.

python -m benchmarks pilot

It needs the Slurm test cluster, which it starts where that is possible (root, Debian). The cluster is one machine that
also runs the trials, so that only the ratio means anything elsewhere.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.chaos.cluster import test_cluster, wait_for
from benchmarks.chaos.job_on_node import quick_job
from benchmarks.chaos.workbench import ChaosWorkbench
from benchmarks.target import Target, figure
from conf.compose.load import compose
from conf.compose.settings import LauncherSpec
from conf.overrides import Overrides
from launcher.allocation_sweep import submit_allocation
from launcher.provenance import snapshot_code
from launcher.sweep import submit

NUM_TRIALS, NUM_NODES, NUM_RUNS = 100, 4, 3
PATIENCE_SECONDS = 120.0
NODES = ["sweep=smoke", "cluster=local", "cluster.devices_per_node=8"]


def main() -> list[Target]:
    what = f"{NUM_TRIALS} trivial trials"
    if os.geteuid() != 0:
        return [Target(f"{what} as steps of one allocation", "", "left out: no Slurm test cluster here", None)]
    with tempfile.TemporaryDirectory(prefix="trisweep-pilot-") as folder, test_cluster() as cluster:
        benches = [ChaosWorkbench.new(Path(folder, str(run)), cluster, NUM_TRIALS) for run in range(2 * NUM_RUNS)]
        steps = median(seconds_for(bench, as_steps) for bench in benches[:NUM_RUNS])
        elements = median(seconds_for(bench, as_elements) for bench in benches[NUM_RUNS:])
    return [
        figure(f"{what} as steps of one allocation of {NUM_NODES} nodes", steps, " s"),
        figure(f"{what} as elements of job arrays", elements, " s"),
        figure("steps to elements", steps / elements, ""),
    ]


def seconds_for(bench: ChaosWorkbench, start: Callable[[ChaosWorkbench], object]) -> float:
    """From the submission to the last result."""
    bench.job = quick_job
    bench.order_quick_jobs()
    snapshot_code(bench.sweep.folder.code.absolute())  # made once for each state of the code
    begun = time.perf_counter()
    start(bench)
    complete = set(bench.names)
    wait_for(lambda: complete <= {words[1] for words in bench.executions("complete")}, PATIENCE_SECONDS)
    return time.perf_counter() - begun


def as_steps(bench: ChaosWorkbench) -> None:
    launcher = LauncherSpec(kind="allocation", num_nodes=NUM_NODES, time_limit_minutes=10)
    cluster = compose(Overrides.parse(NODES)).settings.cluster
    submit_allocation(bench.sweep, bench.slurm, launcher, cluster, job=bench.job)


def as_elements(bench: ChaosWorkbench) -> None:
    submit(bench.sweep, bench.slurm.model_copy(update={"array_parallelism": NUM_TRIALS}), job=bench.job)
