"""Tells a command of the user's when a sweep ends, fails often, or finds a new best: a line of JSON on its stdin.

If that does not work, it is a warning, and the sweep goes on.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import ValidationError

from conf.compose.settings import NotifySpec
from conf.credentials import HIDDEN, hide_credentials
from conf.types.schema import Frozen
from conf.types.sweep_spec import own_figure
from conf.units import TERA, count_of
from launcher.control.rules import SweepStep
from launcher.external_commands import ask
from sweeps.folder.journal import Finished
from sweeps.points.objectives import cost
from sweeps.ranking.points import best_measured
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord
from train_core.trial.atomic import write_atomically
from train_core.trial.measurement import Outcome

COMMAND_SECONDS = 10.0
"""A sweep waits no longer for a command that takes somebody's message."""

TOLD_FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NODE_FAILED)
NOTIFIED = "notified.json"
ADDRESS = re.compile(r"\S*://\S*")
LOG = logging.getLogger(__name__)


class LastNotice(Frozen):
    """The content of `notified.json`: what was told last, so that no later process tells it again."""

    best_cost: float | None = None
    """What the sweep seeks first, of the best so far; its sign turned where more is better. None: nothing was told."""
    failures: int = 0


@dataclass(frozen=True)
class Notice:
    """One message.

    Attributes:
        text: for people.
        facts: for programs, with units in their names.
    """

    event: Literal["finished", "failures", "best"]
    text: str
    facts: dict[str, Any]


def notifier(spec: NotifySpec) -> Callable[[Sweep, SweepStep], None]:
    """What is to be called with each step of a sweep, and tells what is worth telling; it raises nothing."""
    return partial(_tell, spec)


def _tell(spec: NotifySpec, sweep: Sweep, step: SweepStep) -> None:
    if (command := spec.command) is None:
        return
    try:
        path = sweep.folder.path / NOTIFIED
        try:
            before = LastNotice.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            before = LastNotice()
        now = _updated_notice(spec, sweep.record, before, step)
        notices = list(_notices(sweep.record, before, now, step))
        if not notices:
            return
        # It is written first: to tell something twice is worse than to miss it.
        write_atomically(path, now.model_dump_json(), durable=False)
        for notice in notices:
            line = json.dumps(_body(sweep, notice, step.readings)) + "\n"
            done = ask("sh", "-c", command, stdin=line, seconds=COMMAND_SECONDS)
            if not done.ok:
                why = ADDRESS.sub(HIDDEN, done.complaint)[:200] or f"exit code {done.exit_code}"
                LOG.warning("notify.command was not told of `%s`: %s", notice.event, why)
    except OSError as error:
        LOG.warning("the message on how the sweep stands was not sent: %s", error.strerror or type(error).__name__)


def _body(sweep: Sweep, notice: Notice, readings: Sequence[TrialReading]) -> dict[str, Any]:
    counts = Counter(reading.outcome.value for reading in readings if reading.outcome)
    standing = ", ".join(f"{number} {name}" for name, number in counts.most_common())
    return {
        "event": notice.event,
        "sweep": sweep.record.name,
        "folder": str(sweep.folder.path),
        "hostname": socket.gethostname(),
        "time_unix_seconds": time.time(),
        "text": hide_credentials(f"Sweep {sweep.record.name}: {notice.text} ({standing})"),
        "counts": dict(counts),
        **notice.facts,
    }


def _notices(record: SweepRecord, before: LastNotice, now: LastNotice, step: SweepStep) -> Iterator[Notice]:
    best = best_measured(record, step.readings)
    if now.best_cost != before.best_cost and best is not None:
        yield _best(record, best.reading, best.values)
    if now.failures > before.failures:
        failed = [each for each in step.readings if each.outcome in TOLD_FAILURES]
        last = max(failed, key=lambda reading: reading.end_time or 0.0)
        text = f"{count_of(len(failed), 'trial', 'has', 'have')} failed, the last of them {last.name}: {last.cause}"
        yield Notice("failures", text, {"num_failed": len(failed), "trial_id": last.name, "cause": last.cause})
    for entry in step.news:
        if isinstance(entry, Finished):
            text = f"it has ended: {entry.because or 'nothing is left to do'}"
            yield Notice("finished", text, _facts(record, best.reading) if best else {})


def _best(record: SweepRecord, best: TrialReading, values: Sequence[float]) -> Notice:
    facts = _facts(record, best)
    both = [each for each in zip(record.objective, values, strict=True) if each[0] != "throughput"]
    words = [f"{own_figure(objective) or objective.replace('_', ' ')} {value:.4g}" for objective, value in both]
    if (rate := facts["measured_model_flops_per_second_per_device"]) is not None:
        predicted = facts["predicted_model_flops_per_second_per_device"]
        beside = f", {predicted / TERA:.4g} predicted" if predicted else ""
        words += [f"{rate / TERA:.4g} TFLOPS measured{beside}", f"{facts['measured_step_seconds']:.4g} s a step"]
    return Notice("best", f"new best {best.title}: {', '.join(words)}", facts)


def _facts(record: SweepRecord, best: TrialReading) -> dict[str, Any]:
    """The best of the trials; of a program that knows nothing of the model the FLOPs are None."""
    estimate = best.trial.estimate if record.shows_rates else None
    return {
        "trial_id": best.name,
        "measured_step_seconds": best.step_seconds,
        "measured_model_flops_per_second_per_device": best.model_flops_per_second_per_device
        if record.shows_rates
        else None,
        "predicted_model_flops_per_second_per_device": estimate and estimate.model_flops_per_second_per_device,
    }


def _updated_notice(spec: NotifySpec, record: SweepRecord, before: LastNotice, step: SweepStep) -> LastNotice:
    """Return the record of what people have been told, as it will be once this step has been reported."""
    best, last = best_measured(record, step.readings), before.best_cost
    now = None if best is None else cost(record.objective[0], best.values[0])
    # Relative to the size, because a cost is below zero where more is better.
    is_better = now is not None and (last is None or now < last - spec.min_gain * abs(last))
    failures = sum(each.outcome in TOLD_FAILURES for each in step.readings)
    # At every doubling, so that a sweep in which all trials fail does not send a message for each.
    is_often = failures >= max(spec.after_failures, 2 * before.failures)
    return LastNotice(best_cost=now if is_better else last, failures=failures if is_often else before.failures)
