"""Tells a webhook when a sweep ends, fails often, or finds a new best. If it cannot, that is a warning and no end."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ValidationError

from conf.compose.settings import NotifySpec
from conf.credentials import hide_credentials
from conf.types.schema import Frozen
from conf.types.sweep_spec import own_figure
from conf.units import TERA, count_of
from launcher.control.rules import SweepStep
from sweeps.folder.journal import Finished
from sweeps.points.objectives import cost
from sweeps.ranking.points import best_measured
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord
from train_core.trial.atomic import write_atomically
from train_core.trial.measurement import Outcome

ANSWER_SECONDS = 5.0
"""A sweep waits no longer for a server that somebody's message goes to."""

TOLD_FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NODE_FAILED)
NOTIFIED = "notified.json"
WEB_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*")
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


def tell_webhook(spec: NotifySpec, sweep: Sweep, step: SweepStep) -> None:
    """Look at a step of the sweep, and tell what is worth telling; nothing is raised."""
    if spec.url_file is None:
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
        if url := _address(spec.url_file):
            for notice in notices:
                # What goes wrong is logged, without the address, which is a secret.
                if problem := _post(url, _body(spec, sweep, notice, step.readings)):
                    LOG.warning("%s was not told of `%s`: %s", urlsplit(url).hostname, notice.event, problem)
    except OSError as error:
        LOG.warning("the message on how the sweep stands was not sent: %s", error.strerror or type(error).__name__)


def _address(url_file: str) -> str | None:
    """The address; None, with a warning, where the file does not hold one."""
    path = Path(url_file).expanduser()
    try:
        line = path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        LOG.warning("no message was sent: notify.url_file = %s cannot be read (%s)", path, why)
        return None
    if not WEB_ADDRESS.fullmatch(line):
        LOG.warning("no message was sent: the first line of notify.url_file = %s is not https://HOST/PATH", path)
        return None
    return line


def _post(url: str, body: dict[str, Any]) -> str:
    """Send the message, and return why it did not arrive; empty if it did."""
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "trisweep"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        # The error is also the answer, whose connection would stay open.
        error.close()
        return f"it answered {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The words of some errors repeat the address; those of the operating system do not.
        reason = getattr(error, "reason", error)
        return reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__


def _body(spec: NotifySpec, sweep: Sweep, notice: Notice, readings: Sequence[TrialReading]) -> dict[str, Any]:
    counts = Counter(reading.outcome.value for reading in readings if reading.outcome)
    standing = ", ".join(f"{number} {name}" for name, number in counts.most_common())
    text = hide_credentials(f"Sweep {sweep.record.name}: {notice.text} ({standing})")
    if spec.style == "slack":
        # Slack takes these three for the beginnings of links and mentions.
        return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    return {
        "event": notice.event,
        "sweep": sweep.record.name,
        "folder": str(sweep.folder.path),
        "hostname": socket.gethostname(),
        "time_unix_seconds": time.time(),
        "text": text,
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
