"""Folders of configuration: a person's own, which come first, and the package's.

A person's own folder has the groups of this one, with files of their own: `cluster/mine.yaml`, `sweep/mine.yaml`. In
this order: those of `--config-dir`, of the variable TRISWEEP_CONFIG_DIR (with colons between them), and of the nearest
`trisweep.yaml` in the current folder or one above. Where two have a file of the same name, the first one holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import ConfigError
from conf.overrides import quoted
from conf.site_file import nearest_site_file, site_of

CONF_DIR = Path(__file__).resolve().parent
VARIABLE = "TRISWEEP_CONFIG_DIR"
OPTION = "--config-dir"
ROOT_FILE = "config.yaml"

_given: tuple[Path, ...] = ()
"""Folders that were named in this process, for all of its threads."""


@contextmanager
def further_folders(paths: Iterable[str | Path], named_by: str = OPTION) -> Iterator[None]:
    """Within it, these folders come before all others, in their order.

    Raises:
        ConfigError: one is no folder of configuration.
    """
    new = tuple(_checked(Path(path).expanduser().absolute(), named_by) for path in paths)
    with _with_given(new):
        yield


@contextmanager
def draft_first(folder: Path | None) -> Iterator[None]:
    """Within it, a draft of the configuration, which may have a root of its own, comes before all folders."""
    with _with_given(() if folder is None else (folder,)):
        yield


@contextmanager
def _with_given(new: tuple[Path, ...]) -> Iterator[None]:
    global _given
    before, _given = _given, (*new, *_given)
    try:
        yield
    finally:
        _given = before


def keep_folders(paths: Iterable[str], named_by: str) -> None:
    """From now on these folders come before all others, as they did for the command that is taken up.

    Raises:
        ConfigError: one is no folder of configuration any more.
    """
    global _given
    _given = (*(_checked(Path(path), named_by) for path in paths), *_given)


def given_folders() -> tuple[Path, ...]:
    """Those that the command line named, which no other command knows of."""
    return _given


def own_folders() -> tuple[Path, ...]:
    """A person's own folders, those first whose files hold before others'.

    Raises:
        ConfigError: one does not exist, is no folder, or a `trisweep.yaml` is wrong.
    """
    variable = [(VARIABLE, Path(text).expanduser()) for text in os.environ.get(VARIABLE, "").split(":") if text]
    file = nearest_site_file(Path.cwd())
    stated = [(str(file), path) for path in site_of(file).config_dirs] if file else []
    named = (_checked(path.absolute(), named_by) for named_by, path in (*variable, *stated))
    return tuple(dict.fromkeys((*_given, *named)))


def folders() -> tuple[Path, ...]:
    """All folders of configuration: a person's own, then the package's."""
    return (*own_folders(), CONF_DIR)


def options(group: str) -> list[str]:
    """Names of the files that can be chosen in a config group, such as `cluster`."""
    return sorted({path.stem for folder in folders() for path in (folder / group).glob("*.yaml")})


def site_overrides() -> list[str]:
    """The values in the nearest `trisweep.yaml`, as overrides, which those of a command line come after."""
    file = nearest_site_file(Path.cwd())
    output = site_of(file).output_dir if file else None
    return [] if output is None else [f"output_dir={quoted(str(output))}"]


def groups() -> list[str]:
    """Names of all config groups. Nobody adds one: a group is a part of what the program knows."""
    return sorted(path.name for path in CONF_DIR.iterdir() if any(path.glob("*.yaml")))


def path_of(group: str, option: str) -> Path | None:
    """The file that holds for an option; None if no folder has it."""
    return next((path for folder in folders() if (path := folder / group / f"{option}.yaml").is_file()), None)


def shown_file(group: str, option: str) -> str:
    """The file that holds for an option, as a person finds it: a path where it is the person's own."""
    path = path_of(group, option)
    return str(path) if path is not None and is_own(path) else f"conf/{group}/{option}.yaml"


def is_own(path: Path) -> bool:
    """True if a file lies in a person's own folder."""
    return not path.is_relative_to(CONF_DIR)


def _checked(path: Path, named_by: str) -> Path:
    if not path.exists():
        remedy = f"Correct the path, or make such a folder with `trisweep init {path}`."
        raise ConfigError(named_by, str(path), "does not exist", remedy)
    if not path.is_dir():
        raise ConfigError(named_by, str(path), "is a file", "Name the folder that holds cluster/, model/ or sweep/.")
    if (path / ROOT_FILE).exists():
        problem = f"holds a {ROOT_FILE}, which would take the place of the root of the configuration"
        raise ConfigError(named_by, str(path), problem, "Move that file away, or name a folder below it.")
    return path
