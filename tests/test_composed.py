"""What tests compose quickly is what Hydra composes."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
from hydra.errors import HydraException

from conf.compose.load import compose
from conf.errors import ConfigError
from conf.overrides import Overrides
from tests.composed import compose_choices_once, compose_with_hydra, digest_of

SAMPLES = (
    (),
    ("model=gpt-22b", "cluster=frontier", "precision=bf16", "batch.global_batch_size=64", "batch.micro_batch_size=4"),
    ("sweep=175b", "sweep.scaling=strong", "parallel.tensor_parallel_size=8", "sweep.max_trials=3"),
    ("cluster=dgx-h100", "device=a100-80gb", "cluster.device.watts=650", "cluster.num_nodes=3"),
    ("model=llama-3.1-8b", "model.rotary_scaling=null", "parallel.layers_per_stage=[8,12,12]", "training.seed=-1"),
    ("trainer=command", "trainer.command='python {x} train.py'", "slurm.environment={A: '1', B: two}"),
)


@pytest.mark.parametrize("texts", SAMPLES)
def test_values_that_are_set_afterwards_give_what_hydra_gives(
    texts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hydra.compose is compose_choices_once
    quick = compose(Overrides.parse(texts)).tree
    monkeypatch.setattr(hydra, "compose", compose_with_hydra)
    assert quick == compose(Overrides.parse(texts)).tree


@pytest.mark.parametrize("text", ["batch.nothing=1", "nothing.at_all=1", "batch.micro_batch_size=[", "model=nothing"])
def test_what_hydra_refuses_is_refused_in_its_words(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = []
    for composing in (compose_choices_once, compose_with_hydra):
        monkeypatch.setattr(hydra, "compose", composing)
        with pytest.raises((ConfigError, HydraException)) as caught:
            compose(Overrides.parse([text]))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_a_persons_own_files_are_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISWEEP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "budget").mkdir()
    for hours in (2, 3):
        (tmp_path / "budget" / "mine.yaml").write_text(f"defaults: [unlimited, _self_]\ndeadline_hours: {hours}\n")
        assert compose(Overrides.parse(["budget=mine"])).settings.budget.deadline_hours == hours


def test_a_changed_renamed_or_new_file_makes_other_compositions(tmp_path: Path) -> None:
    seen = [digest_of(tmp_path)]
    for name, text in (("a", "x: 1\n"), ("a", "x: 2\n"), ("b", "x: 2\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
        seen.append(digest_of(tmp_path))
    (tmp_path / "b.yaml").rename(tmp_path / "c.yaml")
    assert len({*seen, digest_of(tmp_path)}) == 5
