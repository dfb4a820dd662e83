"""What became of a sweep, by its files and by what its programs wrote down as they ran: with no code of the package.

A program that completes gives two numbers: a step time that only its trial has, and the number of its job as the loss.
So the result of another trial, of another job, or of none, does not pass for its own.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ENDS = frozenset(
    "COMPLETED OUT_OF_MEMORY TIMED_OUT NODE_FAILED FAILED CANCELLED PREEMPTED PRUNED INFEASIBLE".split()  # noqa: SIM905
)
TRACEBACK = "Traceback (most recent call last)"


class Deed(NamedTuple):
    """A line that a program wrote: what it did, for which trial, in which job."""

    event: str
    trial: str
    job: str
    rank: str
    process: str
    node: str


class Judgement(NamedTuple):
    """The trials, each with what is said of it."""

    lost: list[str]
    twice: list[str]
    wrong: list[str]

    def __add__(self, other: Judgement) -> Judgement:  # type: ignore[override]
        return Judgement(self.lost + other.lost, self.twice + other.twice, self.wrong + other.wrong)


class Wanted(NamedTuple):
    """How the trials are to end.

    Attributes:
        ends: of single trials.
        otherwise: of all others.
        num_forgotten: of the first completions, whose results were taken away.
        gone: jobs whose results were taken away.
        has_numbers: whether the program gives the numbers of its trial and job.
    """

    ends: Mapping[str, Collection[str]]
    otherwise: Collection[str] = ("COMPLETED",)
    num_forgotten: int = 0
    gone: Collection[str] = ()
    has_numbers: bool = True


def read_deeds(log: Path, event: str = "") -> list[Deed]:
    """Those of an event, or all."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [Deed(*words) for line in lines if len(words := line.split()) == 6 and event in ("", words[0])]


def step_seconds_of(seed: int) -> float:
    return round(0.1 + seed / 1000, 6)


def judge(folder: Path, log: Path, report: Path, wanted: Wanted) -> Judgement:
    """Of the sweep in the folder; the report is a CSV that was written just now."""
    trials: list[Any] = json.loads((folder / "sweep.json").read_text())["trials"]
    names = [trial["trial_id"] for trial in trials if trial.get("selected")]
    complete = [deed for deed in read_deeds(log, "complete")[wanted.num_forgotten :] if deed.job not in wanted.gone]
    times, rows = Counter(deed.trial for deed in complete), _rows(report)
    verdict = Judgement([], [], [])
    for name in names:
        told, seed = _read(folder / "trials" / name / "measurement.json"), _seed(folder / "trials" / name)
        outcome, known = str(told.get("outcome")), {name, str(seed)}
        num_times = max(times[each] for each in known)
        ends = wanted.ends.get(name, wanted.otherwise)
        if outcome not in ENDS or (num_times and outcome != "COMPLETED" and outcome not in ends):
            verdict.lost.append(f"{name} (is {outcome}, completed {num_times} times: {told.get('cause')})")
        elif outcome not in ends:
            verdict.wrong.append(f"{name} is {outcome}: {told.get('cause')}")
        if num_times > 1:
            verdict.twice.append(name)
        if outcome == "COMPLETED" and wanted.has_numbers:
            jobs = {deed.job for deed in complete if deed.trial in known}
            verdict.wrong.extend(_wrong_numbers(name, seed, told["performance"], jobs))
        verdict.wrong.extend(f"the report says {row} of {name}" for row in _unlike(rows.get(name, []), outcome))
    return verdict


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _seed(trial: Path) -> int | None:
    experiment = _read(trial / "trial.json").get("experiment") or {}
    seed: int | None = experiment.get("training", {}).get("seed")
    return seed


def _wrong_numbers(name: str, seed: int | None, numbers: Mapping[str, Any], jobs: Collection[str]) -> list[str]:
    wrong = []
    if seed is None or round(numbers["step_seconds"], 6) != step_seconds_of(seed):
        wrong.append(f"{name} has the step time of another: {numbers['step_seconds']}")
    if f"{numbers['final_loss']:.0f}" not in jobs:
        wrong.append(f"{name} has numbers of job {numbers['final_loss']:.0f}, which did not complete it")
    return wrong


def _rows(report: Path) -> dict[str, list[str]]:
    """The outcomes in the report by trial."""
    found: dict[str, list[str]] = {}
    with report.open(newline="") as file:
        for row in csv.DictReader(file):
            if row.get("part", "trial") == "trial":
                found.setdefault(row["trial_id"], []).append(row["outcome"])
    return found


def _unlike(rows: Sequence[str], outcome: str) -> list[str]:
    return [row for row in rows or ["nothing"] if row != outcome]
