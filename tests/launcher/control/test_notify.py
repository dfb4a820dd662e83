"""Messages to a command, and by the commands of `conf/notify` to a real server on this machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from conf.compose.settings import NotifySpec
from conf.folders import package_content
from launcher.control import notify
from launcher.control.notify import notifier
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
def told(tmp_path: Path) -> Path:
    """The file to which the command of `spec_of` adds its lines."""
    return tmp_path / "told"


@pytest.fixture
def spec_of(told: Path) -> SpecOf:
    """`spec_of(min_gain=0.0)`."""

    def make(**more: Any) -> NotifySpec:
        values = {"command": f"cat >> {told}", "after_failures": 2, "min_gain": 0.1} | more
        return NotifySpec.model_validate(values)

    return make


def lines_of(told: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, told.read_text().splitlines()))


def tell(spec: NotifySpec, sweep: Sweep, *news: Finished) -> None:
    """Tell of the sweep as it stands, as a new process does."""
    notifier(spec)(sweep, SweepStep(readings=tuple(sweep.read()), news=news))


def test_a_new_best_is_told_once_and_only_if_it_is_clearly_better(
    sweep: Sweep, told: Path, end: End, spec_of: SpecOf
) -> None:
    for index, rate in enumerate([1e12, 1.05e12, 2e12]):
        end(index, rate=rate)
        tell(spec_of(), sweep)
        tell(spec_of(), sweep)
    rates = [message["measured_model_flops_per_second_per_device"] for message in lines_of(told)]
    assert rates == [1e12, 2e12]
    best = lines_of(told)[-1]
    assert (best["event"], best["sweep"], best["counts"]) == ("best", "test", {"PENDING": 5, "COMPLETED": 3})
    assert "2 TFLOPS measured" in best["text"]
    assert "predicted" in best["text"]


def test_the_best_of_a_sweep_for_the_loss_is_the_lowest_loss(
    sweep: Sweep, told: Path, end: End, spec_of: SpecOf
) -> None:
    sought = Sweep(sweep.folder, sweep.record.model_copy(update={"objective": ("loss",)}))
    for index, (loss, rate) in enumerate([(5.0, 1e12), (6.0, 3e12), (4.0, 1e11)]):
        end(index, rate=rate, loss=loss)
        tell(spec_of(min_gain=0.0), sought)
    # Seeds are runs of one point, whose mean is the loss: (5 + 6 + 4) / 3 is no better than the first alone.
    assert ["loss 5" in message["text"] for message in lines_of(told)] == [True]


def test_a_best_of_a_program_that_knows_no_model_has_no_tflops(
    folder: SweepFolder, record_of: RecordOf, told: Path, spec_of: SpecOf
) -> None:
    folder.path.mkdir(parents=True)
    record = record_of([{"training.learning_rate": 0.1}], "trainer=command", "trainer.command=[fit.py]")
    sought = Sweep(folder, record.model_copy(update={"objective": ("loss",)}))
    write_end(sought, 0, loss=3.0)
    tell(spec_of(), sought)
    (best,) = lines_of(told)
    assert best["text"].startswith(f"Sweep test: new best {sought.read()[0].title}: loss 3 (")
    assert best["measured_model_flops_per_second_per_device"] is None


def test_a_loss_that_is_no_number_is_no_best(
    folder: SweepFolder, record_of: RecordOf, told: Path, spec_of: SpecOf
) -> None:
    folder.path.mkdir(parents=True)
    record = record_of([{"training.learning_rate": rate} for rate in (1.0, 0.1)])
    sought = Sweep(folder, record.model_copy(update={"objective": ("loss",)}))
    for index, loss in enumerate([math.nan, 3.0]):
        write_end(sought, index, loss=loss)
        for _ in range(2):
            tell(spec_of(), sought)
    assert ["loss 3" in message["text"] for message in lines_of(told)] == [True]


def test_failures_are_told_when_there_are_many_and_when_there_are_twice_as_many(
    sweep: Sweep, told: Path, end: End, spec_of: SpecOf
) -> None:
    for index in range(6):
        end(index, Outcome.FAILED)
        tell(spec_of(), sweep)
    assert [message["num_failed"] for message in lines_of(told)] == [2, 4]
    assert lines_of(told)[0]["cause"] == "<it> broke"


@pytest.mark.parametrize(
    ("option", "keys"),
    [
        ("webhook", {"event", "sweep", "folder", "hostname", "time_unix_seconds", "text", "counts"}),
        ("slack", {"text"}),
    ],
)
def test_the_end_is_posted_to_the_address_in_a_file_as_json_or_as_slack_takes_it(
    option: str,
    keys: set[str],
    sweep: Sweep,
    server: Server,
    end: End,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / ".config/trisweep/webhook"
    file.parent.mkdir(parents=True)
    file.write_text(f"{server.url}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    end(0, Outcome.FAILED)
    spec = NotifySpec.model_validate(package_content(f"notify/{option}.yaml"))
    tell(spec, sweep, Finished(because="gain < 2 %"))
    (posted,) = server.posted
    assert posted.keys() == keys
    sign = "&lt;" if keys == {"text"} else "<"
    assert posted["text"] == f"Sweep test: it has ended: gain {sign} 2 % (7 PENDING, 1 FAILED)"


def test_a_server_that_refuses_costs_a_warning_without_the_address(
    sweep: Sweep,
    server: Server,
    end: End,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.status = 404
    (tmp_path / ".config/trisweep").mkdir(parents=True)
    (tmp_path / ".config/trisweep/webhook").write_text(server.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    end(0)
    tell(NotifySpec.model_validate(package_content("notify/webhook.yaml")), sweep)
    (message,) = caplog.messages
    assert re.fullmatch(r"notify\.command was not told of `best`: curl: \(22\) .*404.*", message)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 3", "exit code 3"),
        ('echo no https:"//"host/secret; exit 1', r"no \*\*\*"),
        ("sleep 60", r"sh did not answer within 0\.1 s"),
    ],
)
def test_a_command_that_fails_or_hangs_costs_a_warning_and_is_not_told_again(
    command: str,
    why: str,
    sweep: Sweep,
    end: End,
    spec_of: SpecOf,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "COMMAND_SECONDS", 0.1 if "sleep" in command else 30.0)
    end(0)
    for _ in range(2):
        tell(spec_of(command=command), sweep)
    (message,) = caplog.messages
    assert re.fullmatch(rf"notify\.command was not told of `best`: {why}", message)


def test_a_full_disk_ends_nothing(sweep: Sweep, end: End, caplog: pytest.LogCaptureFixture, spec_of: SpecOf) -> None:
    end(0)
    (sweep.folder.path / "notified.json").mkdir()
    tell(spec_of(), sweep)
    assert len(caplog.messages) == 1


def test_without_a_command_nobody_is_told(sweep: Sweep, end: End, spec_of: SpecOf, told: Path) -> None:
    end(0)
    tell(spec_of(command=None), sweep)
    assert not told.exists()
    assert not (sweep.folder.path / "notified.json").exists()
