"""A password inside an address is used, but neither kept nor shown."""

from __future__ import annotations

import pytest

from conf.credentials import hide_credentials, without_credentials
from conf.sites import TrackingSpec

SIGNED_IN = TrackingSpec(kind="server", uri="https://ada:p%40ss@runs.example:5000/mlflow", experiment="layouts")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://ada:secret@host/path", "https://host/path"),
        ("https://token@host", "https://host"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("sqlite:///runs/mlflow.db", "sqlite:///runs/mlflow.db"),
    ],
)
def test_an_address_without_credentials_is_the_same_place(address: str, shown: str) -> None:
    assert without_credentials(address) == shown


def test_every_address_of_a_text_is_hidden() -> None:
    text = "tracking.uri=https://a:b@host failed, see 'http://c:d@other/x'"
    assert hide_credentials(text) == "tracking.uri=https://***@host failed, see 'http://***@other/x'"


def test_a_record_gets_its_credentials_back_from_the_configuration_of_the_same_store() -> None:
    kept = SIGNED_IN.without_credentials()
    assert kept.uri == "https://runs.example:5000/mlflow"
    assert kept.signed_in_as(SIGNED_IN) == SIGNED_IN
    elsewhere = SIGNED_IN.model_copy(update={"uri": "https://ada:p%40ss@other.example"})
    assert kept.signed_in_as(elsewhere) == kept
    local = TrackingSpec(kind="sqlite", uri=None, experiment="layouts")
    assert local.without_credentials() == local
    assert kept.signed_in_as(local) == kept
