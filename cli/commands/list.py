"""`trisweep list`: the groups of the configuration, what can be chosen in each, and where that comes from."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.arguments import AsJson
from cli.output.console import console, print_json, print_unwrapped, shown_path
from conf.errors import ConfigError
from conf.folders import CONF_DIR, Option, folders, groups, is_own, options_of, own_folders, unknown_folders
from conf.units import count_of


def _complete_group(incomplete: str) -> list[str]:
    return [name for name in groups() if name.startswith(incomplete)]


Group = Annotated[
    str | None,
    typer.Argument(help="A group, such as cluster; all, unless one is given.", autocompletion=_complete_group),
]


def list_options(group: Group = None, as_json: AsJson = False) -> None:
    """List what can be chosen: all groups, or the options of one, with the folder that each comes from."""
    if group is not None and group not in (names := groups()):
        raise ConfigError("GROUP", group, "is not a group of the configuration", f"Known: {', '.join(names)}.")
    chosen = {name: options_of(name) for name in ([group] if group else groups())}
    if as_json:
        print_json("list", _document(chosen))
        return
    if group is None:
        _print_groups(chosen)
    else:
        _print_options(group, chosen[group])
    _print_folders()


def _print_groups(chosen: dict[str, list[Option]]) -> None:
    table = _table("group", "options")
    for group, options in chosen.items():
        names = Text(", ").join(Text(option.name, style="bold" if option.is_own else "") for option in options)
        table.add_row(group, names)
    console.print(table)
    console.print("`trisweep list GROUP` says what each is; GROUP=OPTION chooses it.")


def _print_options(group: str, options: list[Option]) -> None:
    table = _table(group, "from", "is")
    for option in options:
        whose = "yours" if option.is_own else "package"
        note = " (in place of the package's)" if option.hides_ours else ""
        table.add_row(Text(option.name, style="bold" if option.is_own else ""), whose, f"{option.says}{note}")
    console.print(table)


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
            print_unwrapped(f"  {number}. {shown_path(folder) if is_own(folder) else f'the package ({CONF_DIR})'}")
    else:
        console.print("\nAll of the package. `trisweep init` makes a folder for files of your own.")
    for path in unknown_folders():
        holds = count_of(len(list(path.glob("*.yaml"))), "file")
        print_unwrapped(f"Not read: {shown_path(path)} ({holds}), because {path.name} is no group.")


def _document(chosen: dict[str, list[Option]]) -> dict[str, Any]:
    return {
        "folders": [str(folder) for folder in folders()],
        "not_read": [str(path) for path in unknown_folders()],
        "groups": {group: [_row(option) for option in options] for group, options in chosen.items()},
    }


def _row(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "is_own": option.is_own,
        "path": str(option.path),
        "hides": [str(path) for path in option.paths[1:]],
        "says": option.says,
    }
