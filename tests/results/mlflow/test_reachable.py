"""Servers behind a proxy of the environment, and those of this machine, which are in front of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import proxy_bypass

import pytest
import requests

from conf.errors import UsageError
from results.mlflow.reachable import pass_proxy_by, require_server
from tests.composed import load
from tests.messages import refused

NOWHERE = "http://somebody:secret@127.0.0.1:9"


@pytest.fixture(autouse=True)
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a site whose computers reach others through a proxy; here nothing answers for it."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("no_proxy", "NO_PROXY"):  # set first, so that they are as they were afterwards
        monkeypatch.setenv(name, "")
    # urlopen keeps the proxies of its first call, with which later tests of this process would ask nowhere.
    monkeypatch.setattr("urllib.request._opener", None)


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server that answers whatever it is asked."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as answering:
        threading.Thread(target=answering.serve_forever, args=(0.01,), daemon=True).start()
        yield answering.server_port
        answering.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_this_machine_is_reached_without_the_proxy(server: int, host: str) -> None:
    require_server(f"http://{host}:{server}")
    assert requests.get(f"http://{host}:{server}/health", timeout=5).status_code


@pytest.mark.parametrize(
    "uri", ["databricks", "databricks://profile", "azureml://region.api/mlflow", "arn:aws:sagemaker:x"]
)
def test_a_server_that_mlflow_finds_by_itself_is_accepted_and_not_asked(uri: str) -> None:
    assert load(["tracking=server", f"tracking.uri='{uri}'"]).tracking.uri == uri
    require_server(uri)


@pytest.mark.parametrize("before", ["", "example.org,.site"])
@pytest.mark.parametrize("place", ["127.0.0.1:5000", "127.0.1.1:80", "localhost:5000", "[::1]:5000"])
def test_of_the_hosts_that_need_no_proxy_those_that_were_named_stay(
    monkeypatch: pytest.MonkeyPatch, before: str, place: str
) -> None:
    monkeypatch.setenv("NO_PROXY", before)
    pass_proxy_by(f"http://{place}/")
    assert proxy_bypass(place)
    assert requests.utils.should_bypass_proxies(f"http://{place}/", no_proxy=None)
    assert not before or proxy_bypass("www.example.org")
    once = os.environ["no_proxy"]
    pass_proxy_by(f"http://{place}/")
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == once


def test_a_proxy_that_may_be_the_cause_is_named_without_its_password() -> None:
    with refused(UsageError, "http_proxy") as error:
        require_server("http://mlflow.invalid:5000")
    assert "secret" not in str(error.value)
    assert not proxy_bypass("mlflow.invalid:5000")
