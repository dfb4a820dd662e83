"""Several sets as one: which sequences of which set a sample is, what of them was seen, and what is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.experiment import Experiment
from costs.axes import Coordinates, Layout
from tests.composed import load
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.data.batches import Batches
from train_core.data.token_file import TokenFile
from train_core.data.tokens import HELD_OUT, TRAINING, figures_of_mixture, open_windows, prepare
from train_core.parallel.groups import build_mesh
from train_core.process.world import World

LENGTH = 16
SIZES = {"code": 12, "web": 20, "books": 7}
FIRST = {"code": 0, "web": 40, "books": 80}  # whose sequences begin with numbers of their own, as bytes
Mixed = Callable[..., Experiment]


@pytest.fixture
def mixed(experiment_of: ExperimentOf, tmp_path: Path) -> Mixed:
    """An experiment on sets by their weights, whose sequences are told apart by their first id."""
    for name, size in SIZES.items():
        text = "".join(chr(1 + FIRST[name] + number) * LENGTH for number in range(size)) + "~"
        (tmp_path / f"{name}.txt").write_text(text)

    def build(values: dict[str, Any] | None = None, **weights: float) -> Experiment:
        mixture = {name: {"path": str(tmp_path / f"{name}.txt"), "weight": weight} for name, weight in weights.items()}
        return experiment_of({"data.mixture": mixture, "batch.global_batch_size": 8} | (values or {}))

    return build


def numbers(experiment: Experiment, cache: Path, samples: int, part: str = TRAINING) -> list[tuple[str, int]]:
    """The sets and numbers of the sequences of the first samples."""
    window = open_windows(experiment, prepare(experiment, cache))[part]
    firsts = [int(window(sample)[0]) - 1 for sample in range(samples)]
    return [(max((begin, name) for name, begin in FIRST.items() if begin <= first)[1], first) for first in firsts]


def test_each_set_gets_its_share_and_is_gone_through_in_epochs_of_its_own(mixed: Mixed, tmp_path: Path) -> None:
    seen = numbers(mixed(code=1, web=2.5, books=1.5), tmp_path / "cache", 100)
    assert Counter(name for name, _ in seen) == {"code": 20, "web": 50, "books": 30}
    for number in range(100):
        counts = Counter(name for name, _ in seen[:number])
        assert all(abs(counts[name] - number * share) < 1 for name, share in (("code", 0.2), ("web", 0.5)))
    for name, size in SIZES.items():
        own = [number - FIRST[name] for of, number in seen if of == name]
        for epoch in range(len(own) // size):
            assert sorted(own[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_a_sets_own_order_stays_whatever_is_mixed_in_and_in_whatever_order(mixed: Mixed, tmp_path: Path) -> None:
    both = numbers(mixed(web=3, code=1), tmp_path / "cache", 40)
    assert both == numbers(mixed(code=0.25, web=0.75), tmp_path / "cache", 40)
    three = numbers(mixed(web=3, code=1, books=2), tmp_path / "cache", 60)
    for name in ("web", "code"):
        own, again = ([number for of, number in seen if of == name] for seen in (both, three))
        assert own == again[: len(own)]
    assert numbers(mixed({"training.seed": 7}, web=3, code=1), tmp_path / "cache", 40) != both


def test_the_last_part_of_every_set_is_held_out_in_the_same_shares(mixed: Mixed, tmp_path: Path) -> None:
    experiment = mixed({"data.held_out_fraction": 0.25}, code=1, web=1)
    trained, held_out = (numbers(experiment, tmp_path / "cache", 40, part) for part in (TRAINING, HELD_OUT))
    assert not set(trained) & set(held_out)
    assert set(held_out) == {("code", n) for n in range(9, 12)} | {("web", 40 + n) for n in range(15, 20)}
    assert Counter(name for name, _ in held_out) == {"code": 20, "web": 20}


def test_documents_of_every_set_stay_separate(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    for name, texts in (("a", ["x" * 25, "y" * 40]), ("b", ["z" * 70])):
        (tmp_path / name).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / name / f"{number}.txt").write_text(text)
    mixture = {name: {"path": str(tmp_path / name), "weight": 1} for name in "ab"}
    experiment = experiment_of({"data.mixture": mixture, "data.separate_documents": True})
    tokens = prepare(experiment, tmp_path / "cache")
    training, documents = (
        open_windows(experiment, tokens, read)[TRAINING] for read in (TokenFile.read, TokenFile.document_numbers)
    )
    changes = [(np.diff(training(sample)) != 0, np.diff(documents(sample)) != 0) for sample in range(8)]
    assert all((of_ids == of_documents).all() for of_ids, of_documents in changes)
    assert any(of_ids.any() for of_ids, _ in changes)


def test_what_was_seen_of_each_set_is_what_was_read(mixed: Mixed, tmp_path: Path) -> None:
    experiment = mixed(code=1, web=2, books=4)
    seen = Counter(name for name, _ in numbers(experiment, tmp_path / "cache", 3 * 8))
    figures = figures_of_mixture(experiment, prepare(experiment, tmp_path / "cache"), step=3)
    assert figures == {
        f"data/{name}/{what}": value
        for name in sorted(SIZES)
        for what, value in (("tokens", seen[name] * LENGTH), ("epochs", seen[name] / SIZES[name]))
    }


def firsts_of(world: World, experiment: Experiment, cache: Path) -> tuple[Coordinates, list[int]]:
    """The coordinates of a rank, and the first ids of the sequences that it reads in its third step."""
    mesh = build_mesh(Layout.of(experiment), world.rank)
    batches = Batches(experiment, mesh, world.device, cache)
    parts = (batches.micro_batch(3, index).tokens[0].tolist() for index in range(experiment.num_micro_batches))
    return mesh.layout.coordinates(world.rank), [first for part in parts for first in part]


def test_every_layout_reads_the_same_mixture_in_the_same_step(mixed: Mixed, worlds: Worlds, tmp_path: Path) -> None:
    small = {"batch.micro_batch_size": 2}
    ((_, alone),) = worlds(1).run(firsts_of, mixed(small, code=1, web=3), tmp_path / "cache")
    for layout in ({}, {"parallel.tensor_parallel_size": 2}, {"parallel.pipeline_parallel_size": 2}):
        experiment = mixed(small | {"parallel.world_size": 4} | layout, code=1, web=3)
        replicas: dict[tuple[int, int], list[int]] = {}
        for (stage, _, _, tensor), firsts in worlds(4).run(firsts_of, experiment, tmp_path / "cache"):
            replicas.setdefault((stage, tensor), []).extend(firsts)  # ranks come in the order of replicas
        assert all(sorted(firsts) == sorted(alone) for firsts in replicas.values()), layout


def test_a_set_that_is_held_out_is_read_in_order(mixed: Mixed, tmp_path: Path) -> None:
    held_out = {"of_code": {"path": str(tmp_path / "code.txt")}}
    values = {"data.held_out": held_out, "training.evaluate_every": 1, "training.num_evaluation_batches": 1}
    experiment = mixed(values, web=1)
    windows = open_windows(experiment, prepare(experiment, tmp_path / "cache"))
    assert [int(windows["of_code"](sample)[0]) - 1 for sample in range(SIZES["code"])] == list(range(SIZES["code"]))


WEB = {"path": "web.txt", "weight": 1}
EVALUATED = {"training.evaluate_every": 1, "training.num_evaluation_batches": 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data.mixture": {"web": WEB | {"weight": 0}}}, r"data\.mixture\.web\.weight = 0: must be greater than 0"),
        ({"data.mixture": {"web": WEB | {"weight": -2}}}, r"data\.mixture\.web\.weight = -2: must be greater than 0"),
        ({"data.mixture": {"w.b": WEB}}, r"data\.mixture\.w\.b.*"),
        ({"data.mixture": {"web": WEB}, "data.path": "a"}, r"data\.path = 'a': is not read, as data\.mixture names"),
        ({"data.mixture": {"web": WEB}, "data.source": "synthetic"}, r"data\.mixture = \['web'\]: names sets, and"),
        ({"data.mixture": {"web": WEB}, "data.tokenizer": "bpe"}, r"data\.mixture.* learn other ids from each"),
        (
            {"data.mixture": {"web": WEB}, "data.held_out": {"same": {"path": "web.txt"}}} | EVALUATED,
            r"data\.held_out\.same\.path = 'web\.txt': is trained on, as web",
        ),
        ({"data.held_out": {"web": {"path": "web.txt"}}}, r"data\.held_out = \['web'\]: names sets that nothing eval"),
    ],
)
def test_sets_that_cannot_be_are_refused_before_anything_is_read(values: Any, message: str) -> None:
    words = [f"{key}={_text(value)}" for key, value in values.items()]
    with pytest.raises((ConfigError, InfeasiblePlan), match=message):
        load(["model=tiny", "cluster=local", "data=text", *words]).experiment()


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(entry)}" for key, entry in value.items()) + "}"
    return str(value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{key} = '{path}': does not exist"),
        ("", "{key} = '{path}': holds no text"),
        ("short", "{key} = '{path}': gives 5 tokens, and one sequence with its targets needs 17"),
    ],
    ids=["missing", "empty", "shorter than a sequence"],
)
@pytest.mark.parametrize("key", ["data.mixture.web.path", "data.held_out.books.path"])
def test_a_set_that_cannot_be_read_is_named_by_its_key(
    key: str, content: str | None, message: str, mixed: Mixed, tmp_path: Path
) -> None:
    file = tmp_path / "bad"
    if content is not None:
        file.write_text(content)
    experiment = mixed(
        {"data.held_out": {"books": {"path": str(tmp_path / "books.txt")}}, "batch.global_batch_size": 4} | EVALUATED,
        **{"web": 1, "code": 1},
    )
    which, name = key.split(".")[1:3]
    sets = getattr(experiment.data, which)
    bad = sets | {name: sets[name].model_copy(update={"path": str(file)})}
    experiment = experiment.model_copy(update={"data": experiment.data.model_copy(update={which: bad})})
    with pytest.raises(ConfigError, match=re.escape(message.format(key=key, path=file))):
        prepare(experiment, tmp_path / "cache")


def test_a_held_out_set_shorter_than_its_evaluation_is_refused(mixed: Mixed, tmp_path: Path) -> None:
    held_out = {"code": {"path": str(tmp_path / "code.txt")}}
    values = {"data.held_out": held_out, "training.evaluate_every": 1, "training.num_evaluation_batches": 3}
    message = (
        r"data\.held_out\.code\.path.*: has 12 sequences, and an evaluation takes 24\. Use training\.num_eval\S+=1"
    )
    with pytest.raises(ConfigError, match=message):
        prepare(mixed(values, web=1), tmp_path / "cache")
