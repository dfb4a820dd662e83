"""The pre-flight of a trial's job: every rank looks at its node for some seconds, and an unfit one gets no training.

The look is taken by a process of its own, so that nothing of it stays on the device, and one that hangs can be ended.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from conf.errors import EXIT_FAILED
from conf.plan.experiment import Experiment
from conf.units import GIBIBYTE, GIGA, TERA
from rates.record import RankFacts
from train_core.job.failures import failure_of
from train_core.process.long_lived import importing_torch
from train_core.process.machine import this_node
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Fault, Outcome, RankFailure

MOST_SECONDS = 300.0
"""The first import of torch on a node may take minutes. Ranks that have not met by then never will."""

LEAST_FREE = 0.9
"""Of a device's memory: whatever holds more of it belongs to somebody who should be gone."""

LEAST_OF_MEDIAN = 0.7
"""Equal devices differ by a tenth; one that reaches less of what the job's others reach is broken or throttled."""

LEAST_OF_FILE = 0.5
"""Of the rate and the bandwidth in the cluster's file, which no rank of a healthy job stays so far below."""


class Complaint(NamedTuple):
    """What is wrong, and the rank to blame with its node; None and empty where it may be any node of the job."""

    says: str
    rank: int | None = None
    node: str = ""


def require_fit_nodes(trial: TrialFolder, measure: Callable[[str, Connection], None] | None = None) -> None:
    """Look at the nodes of this job together with its other ranks, and end the process where one is not fit.

    Tests give a way of their own to send the facts of all ranks, or why there are none.

    Raises:
        AttemptOver: a later attempt has begun.
    """
    rank, experiment, began = int(os.environ["SLURM_PROCID"]), trial.read_experiment(), time.monotonic()
    trial.require_current()
    # A failure of an earlier run of the job would be taken for one of this run.
    trial.failure_of(rank).unlink(missing_ok=True)
    facts = _facts(measure or _measure, experiment.cluster.device.kind)
    complaint = facts if isinstance(facts, Complaint) else first_complaint(facts, experiment)
    if complaint is None:
        if rank == 0:
            print(f"pre-flight: the nodes are fit ({time.monotonic() - began:.0f} s)", flush=True)
        return
    failure = _failure(rank, complaint)
    # Every rank writes the same, whose rank and node are those to blame: srun ends the others after the first exit.
    trial.write_failure(failure)
    print(failure.cause, file=sys.stderr, flush=True)
    sys.exit(EXIT_FAILED)


def _facts(measure: Callable[[str, Connection], None], kind: str) -> list[RankFacts] | Complaint:
    """The facts of all ranks, from a process that measures them."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(kind, sender), daemon=True)
    process.start()
    sender.close()  # only then is the end of the process seen here
    own = int(os.environ["SLURM_PROCID"]), this_node()
    try:
        if not receiver.poll(MOST_SECONDS):
            return Complaint(f"it had not ended after {MOST_SECONDS:.0f} s")
        facts: list[RankFacts] | str = receiver.recv()
    except EOFError:
        process.join()
        return Complaint(f"its process ended with code {process.exitcode}", *own)
    finally:
        process.kill()
    return Complaint(facts, *own) if isinstance(facts, str) else facts


def _measure(kind: str, sender: Connection) -> None:
    """Send the facts of all ranks, or the error that kept this rank from finding them."""
    try:
        with importing_torch():
            from rates.preflight import facts_of_ranks
        sender.send(facts_of_ranks("gpu" if kind == "gpu" else "cpu"))
    except Exception as error:  # whatever it is, a training would have met it too
        sender.send(failure_of(0, error).cause)


def _failure(rank: int, complaint: Complaint) -> RankFailure:
    where = "" if complaint.rank is None else f"rank {complaint.rank} on {complaint.node}: "
    cause = f"pre-flight: {where}{complaint.says}"
    return RankFailure(
        rank=rank,
        outcome=Outcome.NODE_FAILED,
        cause=cause,
        traceback=cause,
        time=time.time(),
        blamed=complaint.rank,
        fault=Fault.PREFLIGHT,
        node=complaint.node,
    )


def first_complaint(ranks: Sequence[RankFacts], experiment: Experiment) -> Complaint | None:
    """The first thing that is wrong with a node; all ranks come to the same, from the same facts.

    The speed of CPU ranks is not judged, as cores do other work too, nor that of devices of several types.
    """
    for each in ranks:
        if not each.product_is_right:
            return Complaint("its device computes wrong values", each.rank, each.node)
        if each.free_bytes < LEAST_FREE * each.total_bytes:
            free, total = each.free_bytes / GIBIBYTE, each.total_bytes / GIBIBYTE
            says = f"only {free:.1f} of its device's {total:.1f} GiB are free"
            return Complaint(says, each.rank, each.node)
    if not all(each.sum_is_right for each in ranks):
        return Complaint("an all-reduce of all ranks gave a wrong sum")
    if experiment.cluster.device.kind == "cpu" or experiment.mixed:
        return None
    return _slow_device(ranks, experiment) or _slow_link(ranks, experiment)


def _slow_device(ranks: Sequence[RankFacts], experiment: Experiment) -> Complaint | None:
    cluster = experiment.cluster
    median = statistics.median(each.product_flops_per_second for each in ranks)
    least = max(
        LEAST_OF_MEDIAN * median,
        LEAST_OF_FILE * cluster.efficiency.matmul * cluster.device.peak_flops_per_second.get("fp16", 0.0),
    )
    slowest = min(ranks, key=lambda each: each.product_flops_per_second)
    if slowest.product_flops_per_second < least:
        rate, clock = slowest.product_flops_per_second / TERA, slowest.clock_hertz
        at = f" at {clock / 1e6:.0f} MHz" if clock else ""
        says = f"a product reaches {rate:.3g} TFLOPS{at}, at least {least / TERA:.3g} is expected"
        return Complaint(says, slowest.rank, slowest.node)
    clocks = [each for each in ranks if each.clock_hertz]
    usual = statistics.median(each.clock_hertz or 0.0 for each in clocks) if clocks else 0.0
    for each in clocks:
        if (each.clock_hertz or 0.0) < LEAST_OF_MEDIAN * usual:
            says = f"its device runs at {(each.clock_hertz or 0.0) / 1e6:.0f} MHz, the others at {usual / 1e6:.0f}"
            return Complaint(says, each.rank, each.node)
    return None


def _slow_link(ranks: Sequence[RankFacts], experiment: Experiment) -> Complaint | None:
    """The all-reduce over all ranks against the file's link between nodes; nobody can tell which node slows it."""
    cluster = experiment.cluster
    link = cluster.link_between_nodes
    rates = [each.bus_bytes_per_second for each in ranks if each.bus_bytes_per_second]
    if link is None or not rates or len({each.node for each in ranks}) == 1:
        return None
    least = LEAST_OF_FILE * cluster.efficiency.link * link.bandwidth_bytes_per_second
    if min(rates) >= least:
        return None
    return Complaint(f"an all-reduce reaches {min(rates) / GIGA:.3g} GB/s a rank, {least / GIGA:.3g} is expected")
