"""`make gpu-check`, or `python -m benchmarks.gpu_check`: ten minutes on one node with GPUs, and a page to send back."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.machine import machine_of, node_of
from benchmarks.gpu_check.probe import Probe, probe_gpus
from benchmarks.gpu_check.session import PARTS, CheckSession
from conf.errors import EXIT_FAILED, EXIT_USAGE
from conf.private_files import keep_private
from launcher.local.machine import count_devices
from train_core.process.gpu_settings import ENOUGH_QUEUES, HARDWARE_QUEUES


def main(arguments: Sequence[str] | None = None) -> int:
    """Check this machine and write the report; the exit code."""
    given = _parser().parse_args(arguments)
    keep_private()
    on_cpu = given.device == "cpu"
    probe = Probe() if on_cpu else probe_gpus()
    if not on_cpu and not probe.devices:
        return _without_gpus(probe)
    if probe.runtime.startswith("HIP"):
        os.environ.setdefault(HARDWARE_QUEUES, str(ENOUGH_QUEUES))  # pipelines need them; slurm=frontier sets them too
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        # A new one, so that nothing old is read: beside the report, because /tmp is in memory on some nodes.
        jobs = Path(tempfile.mkdtemp(prefix="jobs-", dir=given.out))
    except OSError as error:
        print(f"gpu-check: {given.out} cannot be written ({error.strerror}). Choose another --out.", file=sys.stderr)
        return EXIT_USAGE
    machine = machine_of(probe, given.ranks)
    session = CheckSession(machine, node_of(machine), given.out, jobs, time.monotonic() + 60 * given.minutes)
    return session.run(given.parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu tries the script itself out")
    ranks = "1 to 16 (default: one for each GPU; 4 with --device cpu). More than there are GPUs share them, which says"
    ranks += " whether layouts compute the same, but not how fast"
    parser.add_argument("--ranks", type=int, choices=range(1, 17), metavar="N", help=ranks)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="for all checks (default: 10)")
    parts = f"some of {', '.join(PARTS)} (default: all)"
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=parts)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"), metavar="FOLDER", help="of the report")
    return parser


def _without_gpus(probe: Probe) -> int:
    """Say why nothing is measured. It is no failure, except where there are GPUs that torch cannot use."""
    present = count_devices(os.environ)
    if probe.problem:
        print(f"gpu-check: {probe.problem}.", file=sys.stderr)
        return EXIT_FAILED
    if present:
        problem = f"this machine has {present} GPUs, and torch {probe.torch} sees none of them"
        print(f"gpu-check: {problem}. Install a torch built for this driver (TORCH=site).", file=sys.stderr)
        return EXIT_FAILED
    print("gpu-check: no GPU here, so nothing was measured. --device cpu tries the script out on CPU ranks.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
