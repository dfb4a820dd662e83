"""`trisweep show`: what a configuration comes to, with the file that each group was taken from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from cli.arguments import AsJson, OverrideTexts, composition_of
from cli.output.console import print_json, print_unwrapped
from conf.compose.model_from import KEY
from conf.credentials import hide_credentials, hide_variables, shown_tree
from conf.folders import option_called, options, shown_source
from conf.overrides import Overrides

if TYPE_CHECKING:
    from conf.compose.load import Composition

All = Annotated[bool, typer.Option("--all", help="Show every group, not just those that were named.")]


def show(overrides: OverrideTexts = None, everything: All = False, as_json: AsJson = False) -> None:
    """Show the values of the named groups, or of all, and the file that each was taken from."""
    composition = composition_of(None, overrides)
    assert composition.settings  # reading them validates the configuration
    own = Overrides.parse(overrides or ())
    sources = _sources(composition)
    if (file := own.stated_value(KEY)) is not None:
        sources["model"] = {KEY: str(Path(file).absolute())}
    named = {_place_of(override.group, sources) for override in composition.overrides}
    tree = shown_tree(composition.tree)
    parts = {name: tree[name] for name in tree if everything or not named or name in named}
    if as_json:
        groups = {name: {"sources": sources.get(name, {}), "values": values} for name, values in parts.items()}
        print_json("show", {"groups": groups})
        return
    for name, values in parts.items():
        for key, path in sources.get(name, {}).items():
            print_unwrapped(f"# {key}: {path}")
        for override in (each for each in own if each.group == name and each.pins):
            print_unwrapped(f"# {hide_credentials(hide_variables(override.text))} from the command line")
        print_unwrapped(hide_credentials(yaml.safe_dump({name: values}, sort_keys=False)))


def _place_of(group: str, sources: dict[str, dict[str, str]]) -> str:
    """The top of the tree under which a group's values stand: a device is a part of its cluster."""
    within = (place for place, files in sources.items() if any(key.startswith(f"{group}=") for key in files))
    return next(within, group)


def _sources(composition: Composition) -> dict[str, dict[str, str]]:
    """The files of each group: its own, then those that it takes parts from, by what was chosen."""
    from conf.compose.load import choices

    files: dict[str, dict[str, str]] = {}
    for key, option in choices(composition.overrides).items():
        group, _, package = key.partition("@")
        if option in options(group):
            place = (package or group).partition(".")[0]
            files.setdefault(place, {})[f"{group}={option}"] = shown_source(option_called(group, option).path)
    return files
