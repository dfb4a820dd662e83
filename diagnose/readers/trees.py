"""Configurations that are trees (JSON, YAML, TOML, a printed dictionary), as settings under dotted names."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from conf.errors import ConfigError
from conf.yaml_text import yaml_content
from diagnose.readers.said import says, text_of
from diagnose.readers.text import KEY, at
from diagnose.runs import SaidBy, UserRun

TREES = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
INTERPOLATED = re.compile(r"\$\{([\w.]+)\}")
STARTS_TRAINING = re.compile(
    r"^\s*(?:\S*/)?(?:torchrun|srun|deepspeed|accelerate launch|python3? (?:-m )?\S+) ", re.MULTILINE
)
TEXT = r'("(?:\\.|[^"\\])*")'
REMARK, LAST_COMMA = re.compile(rf"{TEXT}|(?://|#)[^\n]*|/\*.*?\*/", re.DOTALL), re.compile(rf"{TEXT}|,(?=\s*[}}\]])")
MOST_DEPTH, MOST_LEAVES, MOST_OF_A_LIST = 12, 5000, 512
DOTTED_LATER = re.compile(r"\bconfigs?: |args: |json = ")


def tree_of(text: str, source: str, kind: str) -> Any:
    """The content of a configuration file of a kind: json, toml or yaml.

    Raises:
        ConfigError: it is none.
    """
    try:
        if kind == "toml":
            return tomllib.loads(text)
        if kind == "json":
            return _json_of(text)
        return yaml_content(text.expandtabs(2), source, KEY)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            KEY, source, f"is not {kind.upper()} ({str(error)[:150]})", "Correct the file, or leave it out."
        ) from None


def _json_of(text: str) -> Any:
    """JSON, also with remarks and with commas behind a last value, as DeepSpeed reads its file (Hjson)."""
    try:
        return json.loads(text)
    except ValueError as error:
        try:
            return json.loads(LAST_COMMA.sub(_kept, REMARK.sub(_kept, text)))
        except ValueError:
            raise error from None


def _kept(match: re.Match[str]) -> str:
    return match[1] or ""


def unwrapped(content: Any) -> Any:
    """The content of wandb's config.yaml, in which each value stands under `value`; any other as it is."""
    if not isinstance(content, dict) or len(content) < 2:
        return content
    kept = {key: value for key, value in content.items() if key not in ("_wandb", "wandb_version")}
    are_wrapped = all(isinstance(value, dict) and "value" in value for value in kept.values())
    return {key: value["value"] for key, value in kept.items()} if are_wrapped else content


def printed_tree(text: str) -> dict[str, Any] | None:
    """A dictionary as Python or JSON prints it; None where the text is none, or is cut."""
    if "{" not in text:
        return None
    text = text[text.index("{") : text.rindex("}") + 1] if "}" in text else text
    for read in (json.loads, ast.literal_eval):
        try:
            content = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        return content if isinstance(content, dict) else None
    return None


def leaves(content: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Every value with its dotted name, in the order of the file; lists of plain values are one value."""
    if isinstance(content, dict) and depth < MOST_DEPTH:
        for name, value in content.items():
            yield from leaves(value, f"{prefix}{'.' if prefix else ''}{name}", depth + 1)
    elif prefix:
        yield prefix, content[:MOST_OF_A_LIST] if isinstance(content, list) else content


def listed_commands(content: Any) -> Iterator[list[str]]:
    """The words of commands that a file lists under `command` and `args`, as those of Kubernetes do."""
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from listed_commands(value)
    if isinstance(content, dict):
        parts = (content.get(name) for name in ("command", "args"))
        words = [str(word) for part in parts if isinstance(part, list) for word in part]
        if any(word.startswith("--") for word in words):
            yield words


def scripts_in(content: Any) -> Iterator[str]:
    """Texts of a file that are commands, such as `run` of SkyPilot and `entrypoint` of Ray."""
    return (text for _, text in leaves(content) if isinstance(text, str) and STARTS_TRAINING.search(text))


def read_tree(
    run: UserRun, content: Any, source: str, lines: list[str], said_by: SaidBy, first_line: int = 1, prefix: str = ""
) -> None:
    """Take down every value of a tree, with the line on which its key stands."""
    place = 0
    values = dict(islice(leaves(content), MOST_LEAVES))
    for name, value in values.items():
        if isinstance(value, str) and (other := INTERPOLATED.fullmatch(value)) is not None:
            value = values.get(other[1], value)  # noqa: PLW2901
        key = re.compile(rf"(?<![\w.-]){re.escape(name.rpartition('.')[2])}[\"']?\]? ?[:=]")
        found = next((index for index in range(place, len(lines)) if key.search(lines[index])), None)
        place = found if found is not None else place
        where = at(source, first_line + place if lines else None, _part(lines[place], key) if found is not None else "")
        says(run, prefix + name.replace("-", "_"), text_of(value), said_by, where)


def _part(line: str, key: re.Pattern[str]) -> str:
    """The part of a line with a key in it: a printed dictionary is one line of thousands of characters."""
    match = key.search(line)
    return line if match is None or len(line) < 200 else line[match.start() : match.end() + 60]
