"""The file of a sweep that was begun without one: its overrides, written as a person would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from conf.compose.complaints import as_hydra_spells
from conf.compose.load import compose, require_name
from conf.compose.tree import part_at
from conf.errors import ConfigError
from conf.folders import OPTION, folders, groups
from conf.overrides import WITHOUT_FILE, Overrides, command_line

SAVE = "--save"
OF_THE_LINE = frozenset({"output_dir"})
"""Overrides that say where results are written, which a command goes on to say."""


def save_script_sweep(path: Path, overrides: Overrides, *, dry_run: bool = False) -> tuple[str, str]:
    """Write the file of a sweep, and return its text and the command that runs it; a dry run writes nothing.

    Raises:
        ConfigError: the path is none that a sweep's file may have, is there already, or the sweep itself is wrong.
    """
    if path.suffix != ".yaml" or path.absolute().parent.name != "sweep":
        remedy = f"Give one in a folder `sweep` of your configuration, such as conf/sweep/{path.stem or 'fit'}.yaml."
        raise ConfigError(SAVE, str(path), "is not where a sweep's file is looked for", remedy)
    require_name(SAVE, path.stem)
    if path.exists():
        raise ConfigError(SAVE, str(path), "is there already", "Give another name, or remove it first.")
    named = overrides + Overrides.parse([f"sweep.name={path.stem}"])
    assert compose(named).settings  # reading them validates the sweep, before anything is written
    text = _text(named, path.stem)
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    config_dir = path.absolute().parent.parent
    words = [] if config_dir in {each.absolute() for each in folders()} else [OPTION, str(path.parent.parent)]
    cluster = overrides.stated_value("cluster")
    chosen = [f"cluster={cluster}"] if cluster else []
    where = [each.text for each in overrides.of(OF_THE_LINE)]
    return text, command_line(["trisweep", "sweep", path.stem, *chosen, *where, *words])


def _text(overrides: Overrides, name: str) -> str:
    base = compose(Overrides.choosing("sweep", WITHOUT_FILE)).tree
    chosen = [f"override /trainer: {part_at(base, 'trainer.name')}"]
    content: dict[str, Any] = {"watch": {"hang_seconds": part_at(base, "watch.hang_seconds")}}
    for key, value in _values(overrides):
        if key == "sweep" or key in OF_THE_LINE:
            continue
        if key in groups():
            chosen.append(f"override /{key}: {value}")
        else:
            _put(content, key, value)
    content["sweep"] = {"name": name} | {key: value for key, value in content.pop("sweep").items() if key != "name"}
    lines = "".join(f"  - {each}\n" for each in chosen)
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return f"# Written by `trisweep sweep --command ... {SAVE}`.\ndefaults:\n{lines}{body}"


def _values(overrides: Overrides) -> Iterator[tuple[str, Any]]:
    parser = OverridesParser.create()
    for each in overrides:
        yield each.key, parser.parse_override(as_hydra_spells(each)).value()


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
    content[leaf] = value
