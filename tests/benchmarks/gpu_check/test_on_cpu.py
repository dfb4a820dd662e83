"""The script itself on CPU ranks: real jobs, a real hang, and an end by Ctrl-C that keeps the report."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import faults, layouts, one_device, speed
from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.check import Runner, Verdict
from benchmarks.gpu_check.report import PAGE
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.units import GIBIBYTE
from train_core.process.git_sha import ROOT


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "out")]) == 0
    assert "no GPU here, so nothing was measured" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_one_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["--device", "cpu", "--out", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written (Not a directory). Choose another --out." in capsys.readouterr().err


@pytest.mark.slow
def test_a_layout_takes_the_steps_of_one_device(cpu_bench: CheckWorkbench) -> None:
    known: layouts.References = {}
    one = next(one_device.references(cpu_bench, known))
    sharded = next(check for check in layouts.layouts(cpu_bench, known, 2) if check.name.startswith("dp2 zero2"))
    runner = Runner(2, time.monotonic() + 100, lambda result: None)
    runner.run([sharded])  # before there is anything to compare with
    runner.run([one])
    runner.run([sharded])
    assert [result.verdict for result in runner.results] == [Verdict.LEFT_OUT, Verdict.PASSED, Verdict.PASSED]
    assert 0 < runner.results[-1].figures["norm_difference"] < 1e-5
    (stage,) = runner.results[-1].figures["stages_of_a_step"]
    assert sum(stage["seconds"].values()) == pytest.approx(stage["ended"], abs=1e-5)


@pytest.mark.thorough  # than the steps of one device above
@pytest.mark.slow
def test_speed_is_measured_beside_what_was_predicted(cpu_bench: CheckWorkbench) -> None:
    runner = Runner(2, time.monotonic() + 100, lambda result: None)
    runner.run([next(speed.speeds(cpu_bench))])
    (result,) = runner.results
    assert result.verdict is Verdict.PASSED
    assert result.figures["measured"]["step_seconds"] > 0
    assert len(result.figures["measured"]["terms"]) == len(result.figures["predicted"]["terms"])


def test_what_a_gpu_held_when_memory_ended_is_read_from_torchs_own_words() -> None:
    told = "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. Of the allocated memory 120.50 GiB is"
    assert faults._allocated_bytes(f"{told} allocated by PyTorch, and 1.00 GiB is reserved") == int(120.5 * GIBIBYTE)
    assert faults._allocated_bytes("DefaultCPUAllocator: can't allocate memory") is None


@pytest.mark.thorough  # than watch/test_watchdog
@pytest.mark.slow
def test_a_rank_that_stops_is_named_and_ctrl_c_keeps_the_report(tmp_path: Path) -> None:
    # Where a shell runs the tests in the background, it has their processes ignore Ctrl-C.
    python = ["env", "--default-signal=INT", sys.executable]
    command = [*python, "-m", "benchmarks.gpu_check", "--device", "cpu", "--ranks", "2", "--parts", "faults"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    ) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "a rank that stops is named" in line:
                process.send_signal(signal.SIGINT)
    text = " ".join("".join(printed).split())
    assert process.returncode == 130
    assert re.search(r"ok \d+ s a rank that stops is named rank 1 of dp2 zero1 was stopped. FAILED \(rank 1\):", text)
    assert "left out saved in one layout, loaded in another interrupted" in text
    assert "| a rank that stops is named | ok |" in (tmp_path / PAGE).read_text()
