"""A password inside an address, and the address of a webhook, are used, but neither kept nor shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.credentials import hide_credentials, overrides_for_records, shown_tree, without_credentials
from conf.errors import ConfigError
from conf.types.sites import TrackingSpec
from tests.composed import compose_tree

SIGNED_IN = TrackingSpec(kind="server", uri="https://ada:p%40ss@runs.example:5000/mlflow", experiment="layouts")
HOOK = "https://hooks.example.org/services/T0/B0/secret"


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


def test_passwords_and_webhooks_are_hidden_in_texts() -> None:
    assert hide_credentials("see https://me:pw@host/x") == "see https://***@host/x"
    assert hide_credentials(f"override = 'notify.url={HOOK}': wrong") == "override = 'notify.url=*** wrong"


def test_records_keep_no_webhook_and_no_password() -> None:
    given = ("batch.micro_batch_size=2", f"notify.url={HOOK}", "tracking.uri=https://me:pw@host")
    assert overrides_for_records(given) == ("batch.micro_batch_size=2", "tracking.uri=https://host")


@pytest.mark.slow
def test_the_configuration_is_shown_without_the_webhook() -> None:
    tree = compose_tree([f"notify.url={HOOK}"])
    assert shown_tree(tree)["notify"]["url"] == "***"
    assert tree["notify"]["url"] == HOOK
    assert shown_tree(compose_tree())["notify"]["url"] is None


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("notify={url: https://hooks.example/t0ken, style: slack}", "notify.url"),
        ("++slurm={environment: {TOKEN: t0ken}}", "slurm.environment.NAME"),
        ("slurm='{environment: {TOKEN: t0ken}}'", "slurm.environment.NAME"),
    ],
)
def test_a_group_with_secrets_is_not_given_as_one_mapping(override: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"one by one, such as {key}=VALUE") as refused:
        compose_tree([override])
    assert "t0ken" not in str(refused.value)


def test_the_files_of_the_group_hold_no_address() -> None:
    folder = Path(__file__).parents[2] / "conf" / "notify"
    assert all("url: null" in path.read_text() for path in folder.glob("*.yaml"))


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("slurm.environment.WANDB_API_KEY=abc d", "slurm.environment.WANDB_API_KEY=***"),
        ("+slurm.environment.TOKEN='a=b'", "+slurm.environment.TOKEN=***"),
        ("slurm.environment={TOKEN: abc, 'B': \"x, y\"}", "slurm.environment={TOKEN: ***, 'B': ***}"),
        ("slurm.environment=abc", "slurm.environment=***"),
        ("slurm.partition=abc", "slurm.partition=abc"),
    ],
)
def test_of_variables_of_jobs_records_keep_the_names_alone(override: str, kept: str) -> None:
    assert overrides_for_records([override]) == (kept,)
    tree = compose_tree(["+slurm.environment.TOKEN=abc"])
    assert shown_tree(tree)["slurm"]["environment"] == {"TOKEN": "***"}
