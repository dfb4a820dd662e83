"""Checks share devices, keep to the time, and none of them stops the others."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from benchmarks.gpu_check.check import Check, CheckFinding, CheckLeftOut, Result, Runner, Verdict
from conf.errors import UsageError


def passing(devices: tuple[int, ...]) -> CheckFinding:
    return CheckFinding(passed=True, seen=f"on {devices}")


def check_of(name: str, num_ranks: int = 1, seconds: float = 0.0, run: object = passing) -> Check:
    return Check(name, "part", num_ranks, seconds, run)  # type: ignore[arg-type]


def run_all(checks: list[Check], num_ranks: int = 2, seconds: float = 60.0) -> dict[str, Result]:
    runner = Runner(num_ranks, time.monotonic() + seconds, lambda result: None)
    runner.run(checks)
    return {result.name: result for result in runner.results}


def test_checks_run_beside_each_other_on_devices_of_their_own() -> None:
    both = threading.Barrier(2, timeout=60)

    def meeting(devices: tuple[int, ...]) -> CheckFinding:
        both.wait()
        return passing(devices)

    results = run_all([check_of("a", run=meeting), check_of("b", run=meeting), check_of("wide", num_ranks=2)])
    assert {results["a"].seen, results["b"].seen} == {"on (0,)", "on (1,)"}
    assert results["wide"].seen == "on (0, 1)"


def test_a_check_that_fails_or_breaks_does_not_stop_the_others() -> None:
    def failing(devices: tuple[int, ...]) -> CheckFinding:
        return CheckFinding(passed=False, seen="wrong")

    def breaking(devices: tuple[int, ...]) -> CheckFinding:
        raise ZeroDivisionError("a mistake of the check")

    def refusing(devices: tuple[int, ...]) -> CheckFinding:
        raise UsageError("the disk is full", "Make room")

    runs = {"failing": failing, "breaking": breaking, "refusing": refusing, "passing": passing}
    results = run_all([check_of(name, run=run) for name, run in runs.items()])
    assert [name for name in runs if results[name].verdict is Verdict.FAILED] == ["failing", "breaking", "refusing"]
    assert results["passing"].verdict is Verdict.PASSED
    assert results["breaking"].seen == "ZeroDivisionError: a mistake of the check"
    assert results["refusing"].seen == "the disk is full. Make room"


def test_what_is_left_out_says_why() -> None:
    def impossible(devices: tuple[int, ...]) -> CheckFinding:
        raise CheckLeftOut("nothing to compare with")

    results = run_all(
        [check_of("large", num_ranks=4), check_of("long", seconds=99), check_of("lonely", run=impossible)]
    )
    assert {result.verdict for result in results.values()} == {Verdict.LEFT_OUT}
    assert results["large"].seen == "needs 4 ranks; there are 2"
    assert results["long"].seen == "takes about 99 s, and less was left of the time"
    assert results["lonely"].seen == "nothing to compare with"


def test_the_check_itself_needs_no_torch_so_that_a_broken_one_is_told_by_the_probe() -> None:
    code = "import sys; sys.modules['torch'] = None; import benchmarks.gpu_check.__main__"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
