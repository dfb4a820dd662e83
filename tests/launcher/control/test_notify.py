"""Messages to a webhook, told to a real server on this machine."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from conf.compose.settings import NotifySpec
from launcher.control.notify import tell_webhook
from launcher.control.rules import SweepStep
from sweeps.folder.journal import Finished
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.results.conftest import performance
from train_core.trial.measurement import Measurement, Outcome

SECRET = "T0/B0/secret"
End = Callable[..., None]
SpecOf = Callable[..., NotifySpec]


class Server(HTTPServer):
    """Keeps what is posted to it, and answers with the status that it is told to."""

    posted: list[dict[str, Any]]
    status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/{SECRET}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.posted = []
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf) -> Sweep:
    folder.path.mkdir(parents=True)
    return Sweep(folder, record_of([{"training.seed": seed} for seed in range(8)]))


@pytest.fixture
def end(sweep: Sweep) -> End:
    """`end(0, rate=2e12)`, `end(1, Outcome.FAILED)`: how a trial ended."""

    return partial(write_end, sweep)


def write_end(
    sweep: Sweep, index: int, outcome: Outcome = Outcome.COMPLETED, rate: float = 1e12, loss: float = 3.0
) -> None:
    reading = sweep.read()[index]
    assert reading.experiment is not None
    measured = performance(0.5, model_flops_per_second_per_device=rate, losses=(loss,), final_loss=loss)
    reading.folder.write_measurement(
        Measurement(
            fingerprint=reading.experiment.fingerprint,
            outcome=outcome,
            cause="" if outcome is Outcome.COMPLETED else "<it> broke",
            performance=measured if outcome is Outcome.COMPLETED else None,
            started=0.0,
            ended=float(index),
        )
    )


@pytest.fixture
def spec_of(tmp_path: Path) -> SpecOf:
    """`spec_of(address, style="slack")`: its address is in a file."""

    def make(address: str, **more: Any) -> NotifySpec:
        path = tmp_path / "webhook"
        path.write_text(f"{address}\n")
        values = {"url_file": str(path), "style": "generic", "after_failures": 2, "min_gain": 0.1} | more
        return NotifySpec.model_validate(values)

    return make


def step_of(sweep: Sweep, *news: Finished) -> SweepStep:
    return SweepStep(readings=tuple(sweep.read()), news=news)


def test_a_new_best_is_told_once_and_only_if_it_is_clearly_better(
    sweep: Sweep, server: Server, end: End, spec_of: SpecOf
) -> None:
    for index, rate in enumerate([1e12, 1.05e12, 2e12]):
        end(index, rate=rate)
        tell_webhook(spec_of(server.url), sweep, step_of(sweep))  # each time a new process
        tell_webhook(spec_of(server.url), sweep, step_of(sweep))
    told = [message["measured_model_flops_per_second_per_device"] for message in server.posted]
    assert told == [1e12, 2e12]
    best = server.posted[-1]
    assert (best["event"], best["sweep"], best["counts"]) == ("best", "test", {"PENDING": 5, "COMPLETED": 3})
    assert "2 TFLOPS measured" in best["text"]
    assert "predicted" in best["text"]


def test_the_best_of_a_sweep_for_the_loss_is_the_lowest_loss(
    sweep: Sweep, server: Server, end: End, spec_of: SpecOf
) -> None:
    sought = Sweep(sweep.folder, sweep.record.model_copy(update={"objective": ("loss",)}))
    for index, (loss, rate) in enumerate([(5.0, 1e12), (6.0, 3e12), (4.0, 1e11)]):
        end(index, rate=rate, loss=loss)
        tell_webhook(spec_of(server.url, min_gain=0.0), sought, step_of(sought))
    # Seeds are runs of one point, whose mean is the loss: (5 + 6 + 4) / 3 is no better than the first alone.
    assert ["loss 5" in message["text"] for message in server.posted] == [True]


def test_a_best_of_a_program_that_knows_no_model_has_no_tflops(
    folder: SweepFolder, record_of: RecordOf, server: Server, spec_of: SpecOf
) -> None:
    folder.path.mkdir(parents=True)
    record = record_of([{"training.learning_rate": 0.1}], "trainer=command", "trainer.command=[fit.py]")
    sought = Sweep(folder, record.model_copy(update={"objective": ("loss",)}))
    write_end(sought, 0, loss=3.0)
    tell_webhook(spec_of(server.url), sought, step_of(sought))
    (best,) = server.posted
    assert best["text"].startswith(f"Sweep test: new best {sought.read()[0].title}: loss 3 (")
    assert best["measured_model_flops_per_second_per_device"] is None


def test_a_loss_that_is_no_number_is_no_best(
    folder: SweepFolder, record_of: RecordOf, server: Server, spec_of: SpecOf
) -> None:
    folder.path.mkdir(parents=True)
    record = record_of([{"training.learning_rate": rate} for rate in (1.0, 0.1)])
    sought = Sweep(folder, record.model_copy(update={"objective": ("loss",)}))
    for index, loss in enumerate([math.nan, 3.0]):
        write_end(sought, index, loss=loss)
        for _ in range(2):
            tell_webhook(spec_of(server.url), sought, step_of(sought))
    assert ["loss 3" in message["text"] for message in server.posted] == [True]


def test_failures_are_told_when_there_are_many_and_when_there_are_twice_as_many(
    sweep: Sweep, server: Server, end: End, spec_of: SpecOf
) -> None:
    for index in range(6):
        end(index, Outcome.FAILED)
        tell_webhook(spec_of(server.url), sweep, step_of(sweep))
    assert [message["num_failed"] for message in server.posted] == [2, 4]
    assert server.posted[0]["cause"] == "<it> broke"


def test_the_end_is_told_in_the_body_that_slack_takes(sweep: Sweep, server: Server, end: End, spec_of: SpecOf) -> None:
    end(0, Outcome.FAILED)
    tell_webhook(spec_of(server.url, style="slack"), sweep, step_of(sweep, Finished(because="gain < 2 %")))
    assert server.posted == [{"text": "Sweep test: it has ended: gain &lt; 2 % (7 PENDING, 1 FAILED)"}]


def test_a_server_that_refuses_costs_a_warning_without_the_address(
    sweep: Sweep, server: Server, end: End, caplog: pytest.LogCaptureFixture, spec_of: SpecOf
) -> None:
    server.status = 404
    end(0)
    with caplog.at_level(logging.WARNING):
        tell_webhook(spec_of(server.url), sweep, step_of(sweep))
    assert caplog.messages == ["127.0.0.1 was not told of `best`: it answered 404"]


@pytest.mark.parametrize("content", [None, "", "ftp://x/y", "https://"])
def test_a_file_without_an_address_costs_a_warning(
    content: str | None, sweep: Sweep, end: End, tmp_path: Path, spec_of: SpecOf, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of(content or "")
    if content is None:
        (tmp_path / "webhook").unlink()
    end(0)
    tell_webhook(spec, sweep, step_of(sweep))
    (message,) = caplog.messages
    assert message.startswith("no message was sent")


def test_nobody_listening_and_a_full_disk_end_nothing(
    sweep: Sweep, end: End, caplog: pytest.LogCaptureFixture, spec_of: SpecOf
) -> None:
    end(0)
    tell_webhook(spec_of(f"http://127.0.0.1:9/{SECRET}"), sweep, step_of(sweep))
    (sweep.folder.path / "notified.json").unlink()
    (sweep.folder.path / "notified.json").mkdir()
    tell_webhook(spec_of(f"http://127.0.0.1:9/{SECRET}"), sweep, step_of(sweep))
    assert len(caplog.messages) == 2
    assert SECRET not in caplog.text
