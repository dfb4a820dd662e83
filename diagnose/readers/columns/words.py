"""What trainers call what a column holds, from words.yaml."""

from __future__ import annotations

from functools import cache

from conf.folders import package_content


@cache
def words_of(trainer: str) -> dict[str, tuple[str, ...]]:
    """The names of settings by column, or by what else a trainer's filler asks for."""
    return {
        column: tuple(names.split()) for column, names in package_content("words.yaml", __package__)[trainer].items()
    }
