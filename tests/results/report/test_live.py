"""The report while its sweep runs. Every measured number is MADE UP for the test."""

from __future__ import annotations

import errno
import json
import socket
import struct
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from conf.errors import UsageError
from results.report.live import LiveReport, serve_page
from sweeps.folder.journal import Asked, Cancelled, Finished, Journal
from sweeps.sweep import Sweep
from tests.results.conftest import WriteSweep, finish, performance, trial
from train_core.measurement import Outcome

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TRIALS = (trial("base", is_baseline=True), trial("two", world_size=2), trial("three", world_size=2, recompute="full"))


@pytest.fixture
def sweep(write_sweep: WriteSweep) -> Sweep:
    """One of three trials has ended."""
    return write_sweep(TRIALS, {"base": performance(100.0)})


@pytest.fixture
def live(sweep: Sweep) -> LiveReport:
    return LiveReport(lambda: (sweep, sweep.read()))


def text_at(address: str, **headers: str) -> str:
    with urlopen(Request(address, headers=headers), timeout=90) as answer:
        content: bytes = answer.read()
    return content.decode()


def test_the_page_says_how_the_sweep_stands_and_asks_for_news(live: LiveReport) -> None:
    with serve_page(live, 0) as address:
        page = text_at(address)
        state = json.loads(text_at(f"{address}state"))
    assert "Live: 1 of 3 trials have ended, 0 running." in page
    assert "askForNews()" in page
    assert state == {"version": 1, "text": live.text, "finished": ""}


def test_a_trial_that_ends_makes_a_new_version_and_nothing_new_makes_none(live: LiveReport, sweep: Sweep) -> None:
    live.renew()
    live.renew()
    assert live.version == 1
    finish(sweep.folder, TRIALS[1], performance(150.0, 2))
    live.renew()
    assert live.version == 2
    assert "2 of 3 trials have ended" in live.text


def test_it_says_when_all_trials_have_ended(live: LiveReport, sweep: Sweep) -> None:
    finish(sweep.folder, TRIALS[1], performance(150.0, 2))
    finish(sweep.folder, TRIALS[2], (Outcome.FAILED, "made up"))
    live.renew()
    assert live.finished == "The sweep is finished: 3 of 3 trials have ended"


def test_a_search_goes_on_although_nothing_runs_until_it_says_that_it_has_ended(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(TRIALS[:2], {"base": performance(100.0), "two": performance(150.0, 2)})
    live = LiveReport(lambda: (sweep, sweep.read()))
    Journal(sweep.folder.journal).append(Asked(trial=TRIALS[1]))
    live.renew()
    assert '"finished": ""' in live.state()
    Journal(sweep.folder.journal).append(Finished(because="all plans were tried"))
    live.renew()
    assert live.finished == "The sweep is finished: all plans were tried"


@pytest.mark.parametrize(("path", "host", "code"), [("../sweep.json", None, 404), ("", "evil.example:80", 403)])
def test_nothing_else_is_served_and_to_no_foreign_name(
    live: LiveReport, path: str, host: str | None, code: int
) -> None:
    with serve_page(live, 0) as address, pytest.raises(HTTPError) as refused:
        text_at(address + path, **({"Host": host} if host else {}))
    assert refused.value.code == code
    refused.value.close()


def test_a_tab_that_is_closed_while_it_loads_prints_nothing(
    live: LiveReport, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve_page(live, 0) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as browser:
            reset_on_close = struct.pack("ii", 1, 0)
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close)
            browser.sendall(f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            browser.recv(1)
        text_at(f"{address}state")
    assert capfd.readouterr().err == ""


def test_a_cancelled_sweep_has_ended_though_trials_were_never_started(live: LiveReport, sweep: Sweep) -> None:
    Journal(sweep.folder.journal).append(Cancelled(trial_id=None))
    live.read = lambda: (cancelled := Sweep.stored_in(sweep.folder), cancelled.read())
    live.renew()
    assert live.finished == "The sweep was cancelled: 1 of 3 trials have ended"


def test_a_port_that_is_taken_is_named(live: LiveReport) -> None:
    with serve_page(live, 0) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(UsageError, match=f"Port {port} is taken"), serve_page(live, port):
            pass


def test_a_port_that_only_root_may_serve_is_named(live: LiveReport, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("results.report.live.ThreadingHTTPServer", refuse)
    refused = pytest.raises(UsageError, match=r"Port 80 cannot be served \(Permission denied\)\. Choose another one")
    with refused, serve_page(live, 80):
        pass


@pytest.mark.slow
def test_the_browser_follows_and_keeps_filters_order_and_place(
    live: LiveReport, sweep: Sweep, browser: Browser
) -> None:
    with serve_page(live, 0) as address:
        page = browser.new_page(viewport={"width": 1000, "height": 300})
        page.goto(address)
        page.wait_for_selector("html[data-plots=drawn]", state="attached")
        tools = page.locator('.tools[data-table="table-trials"]')
        tools.get_by_label("Filter").fill("dp2")
        page.locator("#table-trials th button", has_text="tokens/s").click()
        page.evaluate("scrollTo(0, 250)")
        finish(sweep.folder, TRIALS[1], performance(150.0, 2))
        live.renew()
        page.wait_for_selector('#live[data-version="2"]', state="attached")
        page.wait_for_function("document.documentElement.dataset.plots === 'drawn' && scrollY === 250")
        assert tools.get_by_label("Filter").input_value() == "dp2"
        assert tools.locator("output").inner_text() == "2 of 3 rows"
        assert page.locator("#table-trials th[aria-sort=descending]").count() == 1
        page.close()
