"""A password inside an address and a variable of jobs are used, but neither kept nor shown."""

from __future__ import annotations

import pytest

from conf.credentials import hide_credentials, overrides_for_records, revealed, shown_tree, without_credentials
from conf.errors import ConfigError, UsageError
from conf.types.sites import TrackingSpec
from tests.composed import compose_tree, load
from tests.messages import refused

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


def test_an_address_is_refused_where_records_would_keep_it() -> None:
    with refused(ConfigError, "notify.command") as caught:
        load(["notify=slack", "notify.command='curl https://hooks.example.org/t0ken'"])
    assert "t0ken" not in str(caught.value)


def test_records_keep_no_password() -> None:
    given = ("batch.micro_batch_size=2", "tracking.uri=https://me:pw@host")
    assert overrides_for_records(given) == ("batch.micro_batch_size=2", "tracking.uri=https://host")


@pytest.mark.parametrize("override", ["++slurm={environment: {TOKEN: t0ken}}", "slurm='{environment: {TOKEN: t0ken}}'"])
def test_a_group_with_secrets_is_not_given_as_one_mapping(override: str) -> None:
    with refused(ConfigError, "slurm") as caught:
        compose_tree([override])
    assert "t0ken" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("slurm.environment.WANDB_API_KEY=abc d", "slurm.environment.WANDB_API_KEY=***"),
        ("+slurm.environment.TOKEN='a=b'", "+slurm.environment.TOKEN=***"),
        ("slurm.environment={TOKEN: abc, 'B': \"x, y\"}", "slurm.environment={TOKEN: ***, 'B': ***}"),
        ("slurm.environment=abc", "slurm.environment=***"),
        ("slurm.partition=abc", "slurm.partition=abc"),
        ("+trainer.environment.TOKEN=abc", "+trainer.environment.TOKEN=***"),
        ("trainer.flags.hf_token=abc", "trainer.flags.hf_token=***"),
        ("trainer.flags={api_key: abc, n: 3}", "trainer.flags={api_key: ***, n: 3}"),
        ("trainer.flags.pad_token=abc", "trainer.flags.pad_token=abc"),
        ("trainer.command='train --api-key abc --n 3'", "trainer.command='train --api-key *** --n 3'"),
        ("trainer.command=[train,'--password','a b']", "trainer.command=[train,'--password',***]"),
        ("trainer.command=[train,--tokenizer,abc]", "trainer.command=[train,--tokenizer,abc]"),
    ],
)
def test_of_variables_of_jobs_records_keep_the_names_alone(override: str, kept: str) -> None:
    assert overrides_for_records([override]) == (kept,)
    tree = compose_tree(["+slurm.environment.TOKEN=abc"])
    assert shown_tree(tree)["slurm"]["environment"] == {"TOKEN": "***"}


def test_variables_of_a_program_that_everybody_may_see_are_shown() -> None:
    """Those of the package's own files, those that a sweep varies, and those that hold what the job fills in."""
    given = ["+trainer.environment.FOLDER='{trial_folder}/x'", "+trainer.environment.A='{{b}}'"]
    axis = "+trainer.environment.NCCL_ALGO=Ring", "sweep.axes={trainer.environment.NCCL_ALGO: [Ring, Tree]}"
    shown = compose_tree(["sweep=smoke", "trainer=deepspeed", *given, *axis])["trainer"]["environment"]
    assert shown.pop("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    assert (shown.pop("FOLDER"), shown.pop("NCCL_ALGO")) == ("{trial_folder}/x", "Ring")
    assert revealed(shown.pop("A"), {}, "nowhere") == "{b}"
    assert not shown


def test_a_value_that_is_lost_is_said_to_be() -> None:
    with refused(UsageError, "private.json"):
        revealed("--key=***000000", {}, "trial/private.json")
