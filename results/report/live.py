"""A sweep's report on loopback while the sweep runs: the same page, which asks for news and keeps its place."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import TypeAlias

from markupsafe import escape

from conf.errors import UsageError
from conf.own_files import at_hand
from conf.units import count_of
from results.report.report import report_page
from sweeps.folder.journal import History
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.measurement import LIVE, Outcome

HOST = "127.0.0.1"
SHARE_OF_TIME = 5
"""The sweep is read again after so many times as long as the last reading and drawing took, or later."""
Read: TypeAlias = Callable[[], tuple[Sweep, Sequence[TrialReading]]]


@dataclass
class LiveReport:
    """The page as it stands, and which version of it that is.

    Attributes:
        read: reads the sweep and all of its trials.
        finished: why nothing more will come; empty while something may.
    """

    read: Read
    version: int = 0
    finished: str = ""
    text: str = ""
    page: str = ""
    _seen: object = None
    _lock: Lock = field(default_factory=Lock)

    def renew(self) -> None:
        sweep, readings = self.read()
        seen = [(each.trial.trial_id, each.outcome, each.cause, each.num_steps_done) for each in readings]
        text, finished = _news_of(sweep, readings)
        changed = seen != self._seen
        page = report_page(sweep, readings) if changed else ""
        with self._lock:
            self.text, self.finished, self._seen = text, finished, seen
            if changed:
                self.version, self.page = self.version + 1, page

    def whole_page(self) -> str:
        """The page with its line of news and the script that asks for more."""
        with self._lock:
            line = f'<p id="live" role="status" data-version="{self.version}">{escape(self.text)}</p>'
            head, _, rest = self.page.partition("</header>")
            body, _, end = rest.rpartition("</body>")
        script = at_hand("results/report/templates/live.js").read_text()
        return f"{head}{line}</header>{body}<script>\n{script}</script>\n</body>{end}"

    def state(self) -> str:
        with self._lock:
            return json.dumps({"version": self.version, "text": self.text, "finished": self.finished})


def _news_of(sweep: Sweep, readings: Sequence[TrialReading]) -> tuple[str, str]:
    """The progress of the sweep in one sentence, and the sentence that says it has ended; empty until then."""
    counts = Counter(each.outcome for each in readings if each.outcome is not None)
    not_ended = sum(each.outcome in LIVE or each.is_called_off for each in readings)
    history = History.kept_in(sweep.folder)
    ended = f"{counts.total() - not_ended} of {count_of(counts.total(), 'trial', 'has', 'have')} ended"
    if not history.has_ended(counts):
        return f"Live: {ended}, {counts[Outcome.RUNNING]} running. The page follows by itself.", ""
    how = f"was cancelled: {ended}" if history.is_cancelled else f"is finished: {history.finished or ended}"
    return f"The sweep {how}.", f"The sweep {how}"


def serve(report: LiveReport, port: int, period_seconds: float, tell: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C, and say once when the sweep is finished.

    Raises:
        UsageError: the port is taken, or not this user's to serve.
    """
    with contextlib.suppress(KeyboardInterrupt), serve_page(report, port) as address:
        tell(address)
        sent = ""
        while True:
            if report.finished not in ("", sent):
                tell(f"{report.finished}. The page stays until Ctrl-C.")
            sent = report.finished
            begun = time.monotonic()
            report.renew()
            time.sleep(max(period_seconds, SHARE_OF_TIME * (time.monotonic() - begun)))


@contextlib.contextmanager
def serve_page(report: LiveReport, port: int) -> Iterator[str]:
    """Serve the page on loopback while the block runs, which is given its address; port 0 takes any that is free.

    Raises:
        UsageError: the port is taken, or not this user's to serve.
    """
    report.renew()
    try:
        server = ThreadingHTTPServer((HOST, port), _handler_of(report))
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be served ({error.strerror})"
        raise UsageError(f"Port {port} {why}", "Choose another one with --port.") from None
    # A browser that keeps its connection open must not keep the command from ending.
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def _handler_of(report: LiveReport) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers with the page and its state, and nothing else."""

        def do_GET(self) -> None:
            # Another name than that of loopback is a foreign site's, which would read the report through the browser.
            if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path == "/":
                self._answer(report.whole_page(), "text/html")
            elif self.path == "/state":
                self._answer(report.state(), "application/json")
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, text: str, kind: str) -> None:
            content = text.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            with contextlib.suppress(ConnectionError):  # a tab that is closed while it loads is no mistake of anybody's
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a line for each question would bury what the command says."""

    return Handler
