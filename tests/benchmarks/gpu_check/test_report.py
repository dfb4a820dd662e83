"""The page and the lines: what a stranger reads, from results that were made up here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu_check.check import Result, Verdict
from benchmarks.gpu_check.report import EVERYTHING, PAGE, Report, page_of, write_report
from benchmarks.gpu_check.session import line_of
from tests.benchmarks.gpu_check.conftest import H200, machine_of

NCCL_ERROR = "FAILED (rank 1): NCCL | error in /home/somebody/x.py"
TERMS = (0.5, 0.1, 0.0, None, 0.01, 0.02)


def result_of(name: str, part: str, verdict: Verdict = Verdict.PASSED, **values: object) -> Result:
    content = {"num_ranks": 2, "seen": "all is well", "seconds": 12.3, **values}
    return Result.model_validate({"name": name, "part": part, "verdict": verdict, **content})


def rates_of(share: float) -> dict[str, object]:
    return {"model_flops_utilization": share, "step_seconds": 1.0, "memory_bytes": 2**33, "terms": TERMS}


RESULTS = (
    result_of("tp2", "layouts", figures={"dtype": "fp32", "loss_difference": 2e-7, "norm_difference": 3e-6}),
    *(result_of(name, "layouts", Verdict.FAILED, seen=NCCL_ERROR) for name in ("dp2", "tp4")),
    result_of("8 layouts on 4 ranks", "layouts", Verdict.LEFT_OUT, num_ranks=4, seen="needs 4 ranks; there are 2"),
    result_of("a rank that stops is named", "faults", seen="rank 1 was stopped"),
    result_of(
        "GPT 1.3B",
        "speed",
        figures={
            "layers": 24,
            "layout": "tp1",
            "num_devices": 1,
            "measured": rates_of(0.555),
            "predicted": rates_of(0.6),
        },
    ),
)
REPORT = Report(machine_of(H200, 2), "", RESULTS, 300.0, True)


def test_the_page_says_what_passed_what_failed_and_which_figures_are_predicted() -> None:
    page = page_of(REPORT)
    assert "**6 checks: 3 passed, 2 failed, 1 left out**, in 5.0 minutes." in page
    assert "- devices: 2 x NVIDIA H200 (139.8 GiB, 132 multiprocessors, capability 9.0)" in page
    assert "| 2 ranks | 1 of 3 | fp32: 2e-07 in losses, 3e-06 in norms |" in page
    assert "| GPT 1.3B | 24 | 1 | tp1 | measured | 55.5 | 1.00 | 8.0 |" in page
    assert "| GPT 1.3B | 24 | 1 | tp1 | predicted | 60.0 | 1.00 | 8.0 |" in page
    assert "| GPT 1.3B | measured | 0.500 | 0.100 | 0 | - | 0.0100 | 0.0200 |" in page
    assert "- **dp2; tp4**: FAILED (rank 1): NCCL / error in .../x.py" in page
    assert "- **8 layouts on 4 ranks**: needs 4 ranks; there are 2" in page


def test_where_two_peaks_are_meant_the_page_says_so() -> None:
    said = "MFU as measured is of a matrix product timed in the same run"
    assert said not in page_of(REPORT)
    assert said in page_of(REPORT._replace(remark="No file describes this device."))


def test_both_files_are_written_and_the_page_says_when_it_is_not_whole(tmp_path: Path) -> None:
    write_report(tmp_path, REPORT._replace(is_whole=False))
    assert "It was interrupted, or is still running." in (tmp_path / PAGE).read_text()
    everything = json.loads((tmp_path / EVERYTHING).read_text())
    assert [result["name"] for result in everything["results"]] == [result.name for result in RESULTS]
    assert "somebody" not in (tmp_path / EVERYTHING).read_text()


@pytest.mark.parametrize("seen", ["short", "x" * 41, "word " * 200])
def test_lines_fit_a_terminal_of_100_columns(seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = line_of(result_of("dp2 zero1, Llama bf16", "layouts", seen=seen)).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 7
    assert lines[0].startswith("ok         12 s  dp2 zero1, Llama bf16")
