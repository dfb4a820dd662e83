"""`trisweep show` and `trisweep list`: what a configuration comes to, and what can be chosen, and from which files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.table import Table
from rich.text import Text

from cli.arguments import AsJson, OverrideTexts, composition_of
from cli.output.console import complaints, console, print_json, print_unwrapped, shown_path
from conf.compose.model_from import KEY
from conf.credentials import hide_credentials, hide_variables, shown_tree
from conf.errors import ConfigError
from conf.folders import (
    Option,
    conf_dir,
    folders,
    groups,
    is_own,
    option_called,
    options,
    options_of,
    own_folders,
    shown_source,
    unknown_folders,
)
from conf.overrides import Overrides
from conf.units import count_of

if TYPE_CHECKING:
    from conf.compose.load import Composition


Group = Annotated[
    str | None,
    typer.Argument(
        help="A group, such as cluster; all, unless one is given.",
        autocompletion=lambda incomplete: [name for name in groups() if name.startswith(incomplete)],
    ),
]
All = Annotated[bool, typer.Option("--all", help="Show every group, not just those that were named.")]


def show(overrides: OverrideTexts = None, everything: All = False, as_json: AsJson = False) -> None:
    """Show the values of the named groups, or of all, and the file that each was taken from."""
    composition = composition_of(None, overrides)
    own = Overrides.parse(overrides or ())
    if (lacking := _what_is_lacking(composition, own)) is not None:
        complaints.print(Text(f"Shown, but not complete yet: {lacking}", style="yellow"))
    sources = _sources(composition)
    if (file := own.stated_value(KEY)) is not None:
        sources["model"] = {KEY: str(Path(file).absolute())}
    named = {_place_of(override.group, sources) for override in composition.overrides}
    tree = shown_tree(composition.tree)
    parts = {name: tree[name] for name in tree if everything or not named or name in named}
    if as_json:
        documents = {name: {"sources": sources.get(name, {}), "values": values} for name, values in parts.items()}
        print_json("show", {"groups": documents})
        return
    for name, values in parts.items():
        for key, path in sources.get(name, {}).items():
            print_unwrapped(f"# {key}: {path}")
        for override in (each for each in own if each.group == name and each.pins):
            print_unwrapped(f"# {hide_credentials(hide_variables(override.text))} from the command line")
        print_unwrapped(hide_credentials(yaml.safe_dump({name: values}, sort_keys=False)))


def _what_is_lacking(composition: Composition, own: Overrides) -> ConfigError | None:
    """What nobody has stated yet, such as the program of trainer=command.

    Raises ConfigError where something was stated wrongly.
    """
    try:
        assert composition.settings  # reading them validates the configuration
    except ConfigError as error:
        if error.value in (None, "", (), [], {}) and error.key not in own.pinned_keys():
            return error
        raise
    return None


def _place_of(group: str, sources: dict[str, dict[str, str]]) -> str:
    """The top of the tree under which a group's values stand: a device is a part of its cluster."""
    within = (place for place, files in sources.items() if any(key.startswith(f"{group}=") for key in files))
    return next(within, group)


def _sources(composition: Composition) -> dict[str, dict[str, str]]:
    """The files of each group: its own, then those that it takes parts from, by what was chosen."""
    files: dict[str, dict[str, str]] = {}
    for key, option in composition.choices.items():
        group, _, package = key.partition("@")
        if option in options(group):
            place = (package or group).partition(".")[0]
            files.setdefault(place, {})[f"{group}={option}"] = shown_source(option_called(group, option).path)
    return files


def list_options(group: Group = None, as_json: AsJson = False) -> None:
    """List what can be chosen: all groups, or the options of one, with the folder that each comes from."""
    if group is not None and group not in (names := groups()):
        raise ConfigError("GROUP", group, "is not a group of the configuration", f"Known: {', '.join(names)}.")
    chosen = {name: options_of(name) for name in ([group] if group else groups())}
    if as_json:
        folders_read = {"folders": [str(folder) for folder in folders()], "not_read": list(map(str, unknown_folders()))}
        rows = {name: [_row(option) for option in offered] for name, offered in chosen.items()}
        print_json("list", folders_read | {"groups": rows})
        return
    if group is None:
        table = _table("group", "options")
        for name, offered in chosen.items():
            table.add_row(name, Text(", ").join(map(_option_name, offered)))
        console.print(table)
        console.print("`trisweep list GROUP` says what each is; GROUP=OPTION chooses it.")
    else:
        _print_options(group, chosen[group])
    _print_folders()


def _print_options(group: str, offered: list[Option]) -> None:
    table = _table(group, "from", "is")
    for option in offered:
        whose = "yours" if option.is_own else "package"
        note = " (in place of the package's)" if option.hides_ours else ""
        table.add_row(_option_name(option), whose, f"{option.says}{note}")
    console.print(table)


def _option_name(option: Option) -> Text:
    return Text(option.name, style="bold" if option.is_own else "")


def _table(*heads: str) -> Table:
    """Names in the first column are whole at any width; the last column wraps."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, head in enumerate(heads):
        table.add_column(head, no_wrap=number < len(heads) - 1, overflow="fold")
    return table


def _print_folders() -> None:
    if own_folders():
        console.print("\nFolders, of which the first holds where two have a file of the same name:")
        for number, folder in enumerate(folders(), 1):
            print_unwrapped(f"  {number}. {shown_path(folder) if is_own(folder) else f'the package ({conf_dir()})'}")
    else:
        console.print("\nAll of the package. `trisweep init` makes a folder for files of your own.")
    for path in unknown_folders():
        holds = count_of(len(list(path.glob("*.yaml"))), "file")
        print_unwrapped(f"Not read: {shown_path(path)} ({holds}), because {path.name} is not a group.")


def _row(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "is_own": option.is_own,
        "path": str(option.path),
        "hides": [str(path) for path in option.paths[1:]],
        "says": option.says,
    }
