"""Byte pairs are learnt from a sample of what is trained on, and from nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise

import pytest

from train_core.data import byte_pairs
from train_core.data.byte_pairs import BytePairs, Pieces
from train_core.data.text_files import blocks

LINE = "the same words again and again\n"


class Watched(BytePairs):
    """Remembers what it has learnt from."""

    samples: list[str] = []  # noqa: RUF012  (a frozen dataclass takes no new attributes)

    def sample_lines(self, pieces: Pieces, limit: int) -> Iterator[str]:
        lines = list(super().sample_lines(pieces, limit))
        self.samples.append("".join(lines))
        return iter(lines)


def learnt_from(text: str, held_out_fraction: float) -> list[str]:
    """The samples of all attempts, of which the last one counts."""
    pairs = Watched(512, len(text), held_out_fraction, seq_length=16)
    pairs.samples.clear()
    pairs.write(BytesIO(), lambda: iter([text]))
    return list(pairs.samples)


def noise(num_lines: int) -> str:
    drawn = random.Random(0)
    return "".join("".join(drawn.choices("abcdefghijklmnopqrstuvwxyz ", k=30)) + "\n" for _ in range(num_lines))


def test_without_a_held_out_part_all_of_a_short_text_is_learnt_from() -> None:
    text = noise(200)
    assert learnt_from(text, 0.0) == [text]


def test_what_is_held_out_is_not_learnt_from() -> None:
    """The end of this text gives few tokens, so that those held out reach far back into it."""
    text = LINE * 200 + noise(1200) + LINE * 600
    first, *_, last = learnt_from(text, 0.3)
    assert len(first) > 0.6 * len(text), "the part of the bytes that is not held out"
    assert 0.4 * len(text) < len(last) < 0.6 * len(text)
    assert text.startswith(last)


def test_a_long_text_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_pairs, "SAMPLE_BYTES", 10_000)
    text = "".join(f"{number:>9}\n" for number in range(20_000))
    (sample,) = learnt_from(text, 0.01)
    numbers = [int(line) for line in sample.splitlines()]
    assert 5_000 < len(sample) < 20_000
    assert numbers[0] == 0
    assert max(numbers) > 17_000


@pytest.mark.parametrize("text", [LINE * 100, LINE.replace("\n", " ") * 100, "x" * 2000, "\n" * 100, "a\nb"])
def test_blocks_are_the_same_text_in_whole_lines_or_words(text: str) -> None:
    cut = list(blocks((text[start : start + 7] for start in range(0, len(text), 7)), size=50))
    assert "".join(cut) == text
    assert all(len(block) <= 50 for block in cut)
    assert all(block[-1] == "\n" or after[0] == " " for block, after in pairwise(cut)) or "x" in text
