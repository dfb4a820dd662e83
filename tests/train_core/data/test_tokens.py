"""Text to token files: what is read, what is cached, and what is refused."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import ConfigError, UsageError
from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf
from train_core.data import text, token_file
from train_core.data.text_files import pieces
from train_core.data.tokens import prepare


def asked(experiment_of: ExperimentOf, path: Path | None, **values: Any) -> Any:
    dotted = {"data.path": None if path is None else str(path)} | {k.replace("__", "."): v for k, v in values.items()}
    return experiment_of(dotted)


def prepared(experiment: Experiment, cache: Path) -> Any:
    tokens = prepare(experiment, cache)
    assert tokens is not None
    return tokens.first


def test_bytes_are_the_text_itself(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    text = "Größe zählt, meistens.\n" * 4
    (tmp_path / "a.txt").write_text(text)
    tokens = prepared(asked(experiment_of, tmp_path / "a.txt"), tmp_path / "cache")
    assert bytes(tokens.read().astype(np.uint8)).decode() == text
    assert tokens.num_tokens == len(text.encode())


def test_a_folder_is_read_in_order_up_to_max_bytes(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.txt").write_text("b" * 100)
    (folder / "a.txt").write_text("a" * 20)
    (folder / "deep" / "c.txt").write_text("c" * 100)
    tokens = prepared(asked(experiment_of, folder, data__max_bytes=50), tmp_path / "cache")
    assert bytes(tokens.read().astype(np.uint8)) == b"a" * 20 + b"b" * 30


def test_hidden_folders_are_skipped_as_hidden_files_are(
    experiment_of: ExperimentOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "text"
    (folder / ".git" / "deep").mkdir(parents=True)
    (folder / ".git" / "deep" / "index").write_bytes(b"\0binary\xff" * 9)
    (folder / ".hidden.txt").write_text("h" * 100)
    (folder / "a.txt").write_text("a" * 40)
    tokens = prepared(asked(experiment_of, folder), tmp_path / "cache")
    assert bytes(tokens.read().astype(np.uint8)) == b"a" * 40
    assert caplog.messages == [f"data.path = {folder}: not read are hidden: .git, .hidden.txt"]


def test_links_are_followed_once_and_those_that_lead_nowhere_or_back_are_named(
    experiment_of: ExperimentOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, outside = tmp_path / "text", tmp_path / "outside"
    (folder / "z").mkdir(parents=True)
    outside.mkdir()
    (folder / "z" / "c.txt").write_text("c" * 10)
    (outside / "b.txt").write_text("b" * 10)
    (outside / "back").symlink_to(folder)
    (folder / "a.txt").symlink_to(outside / "b.txt")
    (folder / "linked").symlink_to(outside)
    (folder / "once more").symlink_to(folder / "z")
    (folder / "up").symlink_to(tmp_path)
    (folder / "nowhere").symlink_to(tmp_path / "gone")
    (folder / "itself").symlink_to(folder / "itself")
    os.mkfifo(folder / "pipe")
    tokens = prepared(asked(experiment_of, folder), tmp_path / "cache")
    assert bytes(tokens.read().astype(np.uint8)) == b"b" * 10 + b"b" * 10 + b"c" * 10
    (said,) = caplog.messages
    assert "links that lead nowhere: itself, nowhere; neither files nor folders: pipe; " in said
    assert said.endswith("links to folders that are read already or lie above: linked/back, once more, up")


def test_what_max_bytes_leaves_out_is_said(
    experiment_of: ExperimentOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("a" * 5000)
    prepared(asked(experiment_of, tmp_path / "a.txt", data__max_bytes=1000), tmp_path / "cache")
    assert caplog.messages == [
        f"data.path = {tmp_path / 'a.txt'}: took 1,000 of 5,000 bytes; data.max_bytes=5000 takes all"
    ]


def test_a_text_that_changes_while_it_is_read_is_refused(
    experiment_of: ExperimentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write = tmp_path / "a.txt", token_file.write_header
    file.write_text("a" * 5000)

    def write_slowly(*arguments: Any) -> None:
        with file.open("a") as end:
            end.write("more")
        write(*arguments)

    monkeypatch.setattr(text, "write_header", write_slowly)
    with pytest.raises(ConfigError, match=r"data\.path = .*changed while it was read"):
        prepared(asked(experiment_of, file), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy")) + list((tmp_path / "cache").glob(".tokens*"))


def test_a_disk_that_takes_no_more_is_named(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 50_000)
    experiment = asked(experiment_of, tmp_path / "a.txt", data__cache_dir=str(tmp_path / "cache"))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        said = pool.apply(refusal_where_files_end_early, (experiment, tmp_path / "cache"))
    assert "tokens-" in said
    assert "cannot be written (File too large). Name a folder" in said
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]


def refusal_where_files_end_early(experiment: Experiment, cache: Path) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    with pytest.raises(ConfigError) as caught:
        prepared(experiment, cache)
    return str(caught.value)


def memory_taken(experiment: Experiment, cache: Path) -> int:
    """Bytes by which the peak of this process grows."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prepared(experiment, cache)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.slow
def test_text_takes_less_memory_than_it_has_bytes(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    """Made or found again. Twenty bytes a byte of BPE are what the library takes to learn pairs, whatever there is."""
    file, num_bytes = tmp_path / "a.txt", 50_000_000
    file.write_bytes(b"some words that are not long\n" * (num_bytes // 29))
    by_bytes = asked(experiment_of, file, data__max_bytes=num_bytes)
    pairs = asked(experiment_of, file, data__max_bytes=2_000_000, data__tokenizer="bpe", model__vocab_size=300)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        made, found = (pool.apply(memory_taken, (by_bytes, tmp_path / "cache")) for _ in range(2))
        assert made < 1.5 * num_bytes
        assert found < 1.5 * num_bytes
        assert pool.apply(memory_taken, (pairs, tmp_path / "cache")) < 20 * 2_000_000


def test_a_character_cut_by_max_bytes_is_dropped(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä" * 40)
    tokens = prepared(asked(experiment_of, tmp_path / "a.txt", data__max_bytes=41), tmp_path / "cache")
    assert tokens.num_tokens == 40


def test_of_the_files_after_a_character_that_is_cut_nothing_is_read(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("aaaa€bbbb")
    (folder / "b.txt").write_text("ZZZZ")
    assert "".join(pieces(asked(experiment_of, folder, data__max_bytes=6).data, sorted(folder.iterdir()))) == "aaaa"


def test_the_default_corpus_is_the_standard_library(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    tokens = prepared(asked(experiment_of, None, data__max_bytes=1000), tmp_path)
    first = min(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    assert bytes(tokens.read()[:200].astype(np.uint8)) == first.read_bytes()[:200]


def test_bpe_ids_stay_below_the_models_vocabulary(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    experiment = asked(experiment_of, None, data__tokenizer="bpe", data__max_bytes=50_000, model__vocab_size=512)
    tokens = prepared(experiment, tmp_path)
    assert 256 < tokens.read().max() < 512
    assert tokens.num_tokens < 40_000


def test_the_same_question_is_answered_from_the_cache(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    experiment = asked(experiment_of, None, data__max_bytes=1000)
    first = prepared(experiment, tmp_path)
    made = first.path.stat().st_mtime_ns
    assert prepared(experiment, tmp_path) == first
    assert first.path.stat().st_mtime_ns == made


def test_changed_text_is_tokenised_anew(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x" * 100)
    first = prepared(asked(experiment_of, file), tmp_path / "cache")
    file.write_text("y" * 100)
    assert prepared(asked(experiment_of, file), tmp_path / "cache").path != first.path


def test_several_processes_may_ask_at_once(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    experiment = asked(experiment_of, None, data__tokenizer="bpe", data__max_bytes=50_000, model__vocab_size=512)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        answers = pool.starmap(prepared, [(experiment, tmp_path)] * 4)
    assert len(set(answers)) == 1
    assert len(list(tmp_path.glob("*.npy"))) == 1
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".npy", ".lock", ".json")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"", "holds no text"),
        (b"  \n\n ", "holds no text"),
        (b"\x7fELF\x00\x01\xff\xfe" * 100, "is not text"),
        (b"plain\x00zero" * 100, "is not text"),
        ("Größe".encode("latin-1") * 100, "is not text"),
        (b"short", "gives 5 tokens"),
    ],
    ids=["missing", "empty", "blank", "binary", "zero bytes", "latin-1", "too short"],
)
def test_an_unusable_path_is_one_clear_error(
    experiment_of: ExperimentOf, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "input"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        prepared(asked(experiment_of, file), tmp_path / "cache")
    assert caught.value.key == "data.path"
    assert str(file) in str(caught.value)


def test_an_empty_folder_holds_no_text(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no text"):
        prepared(asked(experiment_of, tmp_path), tmp_path / "cache")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_says_so(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x" * 100)
    file.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        prepared(asked(experiment_of, file), tmp_path / "cache")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_folder_is_not_passed_over(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    (tmp_path / "text" / "closed").mkdir(parents=True)
    (tmp_path / "text" / "a.txt").write_text("x" * 100)
    (tmp_path / "text" / "closed").chmod(0)
    with pytest.raises(ConfigError, match=r"cannot be read \(.*closed: Permission denied\)"):
        prepared(asked(experiment_of, tmp_path / "text"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("target", "problem"), [("nowhere", "is a link that leads nowhere"), ("/dev/zero", "is neither a file nor a fo")]
)
def test_what_is_no_file_is_not_called_absent(
    target: str, problem: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ConfigError, match=problem):
        prepared(asked(experiment_of, tmp_path / "link"), tmp_path / "cache")


def test_a_vocabulary_below_the_bytes_is_refused(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="256 ids") as caught:
        prepared(asked(experiment_of, None, model__vocab_size=128), tmp_path)
    assert caught.value.key == "model.vocab_size"


@pytest.mark.parametrize("num_bytes", [0, 100, 5000])
def test_a_damaged_token_file_is_made_again(num_bytes: int, experiment_of: ExperimentOf, tmp_path: Path) -> None:
    experiment = experiment_of()
    made = prepared(experiment, tmp_path)
    whole = made.read().copy()
    made.path.write_bytes(made.path.read_bytes()[:num_bytes])
    again = prepared(experiment, tmp_path)
    assert (again.read() == whole).all()


@pytest.mark.parametrize("source", ["text", "megatron"])
def test_a_folder_that_takes_no_tokens_is_named_by_its_key(source: str, experiment_of: ExperimentOf) -> None:
    path = Path(__file__).parent / "megatron" / "int32" if source == "megatron" else None
    folder = Path("/proc/nowhere")
    configured = asked(experiment_of, path, data__source=source, data__cache_dir=str(folder))
    with pytest.raises(ConfigError, match=r"data\.cache_dir = '/proc/nowhere': /proc/nowhere.* cannot be written \("):
        prepared(configured, folder)
    with pytest.raises(UsageError, match=r"output_dir: /proc/nowhere.* cannot be written \("):
        prepared(asked(experiment_of, path, data__source=source), folder)
