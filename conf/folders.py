"""Folders of configuration: a person's own, which come first, and the package's.

A person's own folder has the groups of this one, with files of their own: `cluster/mine.yaml`, `sweep/mine.yaml`. In
this order: those of `--config-dir`, of the variable TRISWEEP_CONFIG_DIR (with colons between them), and of the nearest
`trisweep.yaml` in the current folder or one above. Where two have a file of the same name, the first one holds.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conf.errors import ConfigError, UsageError
from conf.nearest import nearest
from conf.overrides import quoted_text
from conf.own_files import at_hand
from conf.yaml_text import file_text, yaml_content

VARIABLE = "TRISWEEP_CONFIG_DIR"
OPTION = "--config-dir"
ROOT_FILE = "config.yaml"

_given: tuple[Path, ...] = ()
"""Folders that were named in this process, for all of its threads."""


@contextmanager
def further_folders(paths: Iterable[str | Path]) -> Iterator[None]:
    """Within it, these folders come before all others, in their order.

    Raises ConfigError where one is not a folder of configuration.
    """
    with draft_first(*(_config_folder(at_home(path, OPTION).absolute(), OPTION) for path in paths)):
        yield


@contextmanager
def draft_first(*new: Path) -> Iterator[None]:
    """Within it, these folders come before all others; they may be drafts, which have a root of their own."""
    global _given
    before, _given = _given, (*new, *_given)
    try:
        yield
    finally:
        _given = before


def keep_folders(paths: Iterable[str], named_by: str) -> None:
    """Put these folders before all others from now on, as they were for the command that is taken up.

    Raises ConfigError where one is not a folder of configuration any more.
    """
    global _given
    _given = (*(_config_folder(Path(path), named_by) for path in paths), *_given)


def given_words(shown: Callable[[Path], str] = str) -> list[str]:
    """The words by which a command that is printed to be copied names the folders that the present one was given."""
    return [word for folder in _given for word in (OPTION, shown(folder))]


def at_home(path: str | Path, named_by: str) -> Path:
    """The path with a home in place of `~` and `~user` at its beginning.

    Raises ConfigError where nobody knows that home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        problem = "begins with the home of a user who is not known here"
        raise ConfigError(named_by, str(path), problem, "Write the whole path.") from None


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("The current folder has been removed", "Change into another one, and try again.") from None


def own_folders() -> tuple[Path, ...]:
    """A person's own folders, those first whose files hold before others'.

    Raises ConfigError where one does not exist, is not a folder, or a `trisweep.yaml` is wrong.
    """
    variable = [(VARIABLE, at_home(text, VARIABLE)) for text in os.environ.get(VARIABLE, "").split(":") if text]
    file = nearest_site_file(_current_folder())
    stated = [(str(file), path) for path in site_of(file).config_dirs] if file else []
    named = (_config_folder(path.absolute(), named_by) for named_by, path in (*variable, *stated))
    return tuple(dict.fromkeys((*_given, *named)))


def conf_dir() -> Path:
    """The folder of this package."""
    return at_hand("conf")


def folders() -> tuple[Path, ...]:
    """All folders of configuration: a person's own, then the package's."""
    return (*own_folders(), conf_dir())


def options(group: str) -> list[str]:
    """Names of the files that can be chosen in a config group, such as `cluster`.

    What editors leave is none, nor is what begins with an underscore: others alone build on it.
    """
    files = (path for folder in folders() for path in (folder / group).glob("[!._]*.yaml"))
    return sorted({path.stem for path in files if path.is_file()})


def site_overrides() -> list[str]:
    """The values in the nearest `trisweep.yaml`, as overrides, which those of a command line come after."""
    file = nearest_site_file(_current_folder())
    output = site_of(file).output_dir if file else None
    return [] if output is None else [f"output_dir={quoted_text(str(output))}"]


def groups() -> list[str]:
    """Names of all config groups. Nobody adds one: a group is a part of what the program knows."""
    return sorted(path.name for path in conf_dir().iterdir() if any(path.glob("*.yaml")))


def package_content(name: str, package: str = "conf") -> Any:
    """The content of a YAML file of a package."""
    return yaml_content((pkgutil.get_data(package, name) or b"").decode(), name)


def path_of(group: str, option: str) -> Path | None:
    """The file that holds for an option; None if no folder has it."""
    return next((path for folder in folders() if (path := folder / group / f"{option}.yaml").is_file()), None)


def shown_file(group: str, option: str) -> str:
    """The file that holds for an option, as a person finds it: a path where it is the person's own."""
    path = path_of(group, option)
    return str(path) if path is not None and is_own(path) else f"conf/{group}/{option}.yaml"


def is_own(path: Path) -> bool:
    """True if a file lies in a person's own folder."""
    return not path.is_relative_to(conf_dir())


def _config_folder(path: Path, named_by: str) -> Path:
    """The path itself, once it is known to be a folder of configuration."""
    if not path.exists():
        remedy = f"Correct the path, or make such a folder with `trisweep init {path}`."
        raise ConfigError(named_by, str(path), "does not exist", remedy)
    if not path.is_dir():
        raise ConfigError(named_by, str(path), "is a file", "Name the folder that holds cluster/, model/ or sweep/.")
    # Hydra searches own folders first, so that their root would replace the list of all groups.
    if (path / ROOT_FILE).exists():
        problem = f"holds a {ROOT_FILE}, which would take the place of the root of the configuration"
        raise ConfigError(named_by, str(path), problem, "Move that file away, or name a folder below it.")
    return path


SHORT = 3
"""Up to so many letters, a word with a dot at its end is an abbreviation rather than the end of a sentence."""


@dataclass(frozen=True)
class Option:
    """A file that can be chosen.

    Attributes:
        paths: the file that holds, then those of the same name that it hides.
        says: the first sentence of its first comment; empty where it has none.
    """

    group: str
    name: str
    paths: tuple[Path, ...]
    says: str

    @property
    def path(self) -> Path:
        """The file that holds."""
        return self.paths[0]

    @property
    def is_own(self) -> bool:
        return is_own(self.path)

    @property
    def hides_ours(self) -> bool:
        """True if it takes the place of a file of the package's."""
        return self.is_own and not is_own(self.paths[-1])


def options_of(group: str) -> list[Option]:
    return [option_called(group, name) for name in options(group)]


def option_called(group: str, name: str) -> Option:
    places = (folder / group / f"{name}.yaml" for folder in folders())
    paths = tuple(path for path in places if path.is_file())
    return Option(group, name, paths, first_sentence(paths[0]))


def first_sentence(path: Path) -> str:
    """The first sentence of the comment at the top of a file."""
    lines = []
    for line in file_text(path, errors="replace").splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:  # an instruction to Hydra
            lines.append(line.lstrip("# "))
    text = " ".join(" ".join(lines).split())
    ends = (match.end() for match in re.finditer(r"(\S*)[.](?=\s|$)", text) if len(match[1]) > SHORT)
    return text[: next(ends, len(text))]


def unknown_folders() -> list[Path]:
    """Folders inside of own ones that hold YAML files and are no group, such as a misspelt one."""
    names = set(groups())
    inside = (path for folder in own_folders() for path in sorted(folder.iterdir()) if path.is_dir())
    return [path for path in inside if path.name not in names and any(path.glob("*.yaml"))]


def shown_source(path: Path) -> str:
    """A file of the package's as `conf/group/option.yaml`, an own one with its whole path."""
    return str(path) if is_own(path) else f"conf/{path.relative_to(conf_dir())}"


FILE_NAME = "trisweep.yaml"
TAKES: Mapping[str, tuple[str, str]] = {
    "config_dirs": ("a list of folders", "config_dirs: [my-config]"),
    "output_dir": ("a folder", "output_dir: runs"),
}
"""The kind of each key's value, and an example of it."""


class SiteText(BaseModel):
    """The file as it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    config_dirs: list[str] = []
    output_dir: Annotated[str, Field(min_length=1)] | None = None


@dataclass(frozen=True)
class Site:
    """The file's meaning.

    Attributes:
        config_dirs: folders of configuration.
        output_dir: where sweeps and trainings are written; None where the file does not say.
    """

    config_dirs: tuple[Path, ...] = ()
    output_dir: Path | None = None


def nearest_site_file(start: Path) -> Path | None:
    """The file in this folder or in the nearest one above it."""
    places = (folder / FILE_NAME for folder in (start, *start.parents))
    return next((path for path in places if path.is_file()), None)


def site_of(path: Path) -> Site:
    """The values in the file; its paths are relative to its own folder.

    Raises ConfigError where it cannot be read, or says what is not known.
    """
    try:
        return _read_site(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigError(FILE_NAME, str(path), f"cannot be read ({error.strerror})", "Make it readable.") from None


@lru_cache(maxsize=16)  # every look at the options of a group asks for it
def _read_site(path: Path, _changed: int) -> Site:
    # `_changed` only keys the cache: a file that was edited has another time, and is read again.
    entries, lines = _entries_of(path)
    try:
        site = SiteText.model_validate(entries)
    except ValidationError as error:
        raise _wrong_entry(path, lines, entries, str(error.errors()[0]["loc"][0])) from None
    dirs = tuple(path.parent / at_home(text, str(path)) for text in site.config_dirs)
    output = None if site.output_dir is None else path.parent / at_home(site.output_dir, str(path))
    return Site(dirs, output)


def _entries_of(path: Path) -> tuple[dict[str, object], dict[str, int]]:
    """The entries of the file, and the line of each, counted from 1."""
    text = file_text(path, FILE_NAME)
    content, root = yaml_content(text, path, FILE_NAME), yaml.compose(text, yaml.SafeLoader)
    if content is None:
        return {}, {}
    if not isinstance(content, dict) or not isinstance(root, yaml.MappingNode):
        examples = " or ".join(f"`{example}`" for _, example in TAKES.values())
        raise ConfigError(FILE_NAME, str(path), "holds no lines of the form `KEY: VALUE`", f"Write {examples}.")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in root.value}
    return {str(key): value for key, value in content.items()}, lines


def _wrong_entry(path: Path, lines: Mapping[str, int], entries: Mapping[str, object], key: str) -> ConfigError:
    where = f"{path}, line {lines.get(key, 1)}"
    if key not in TAKES:
        return ConfigError(key, entries[key], f"is not a key of {where}", nearest(key, tuple(TAKES)))
    kind, example = TAKES[key]
    return ConfigError(key, entries[key], f"is not {kind}, in {where}", f"Write it as in `{example}`.")
