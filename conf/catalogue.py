"""A list of all choices and where each comes from: every file of every group, in all folders of configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from conf.folders import CONF_DIR, folders, groups, is_own, options, own_folders

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
    """Every option of a group, by name."""
    return [option_called(group, name) for name in options(group)]


def option_called(group: str, name: str) -> Option:
    """The option of this name, which is one of the group's."""
    places = (folder / group / f"{name}.yaml" for folder in folders())
    paths = tuple(path for path in places if path.is_file())
    return Option(group, name, paths, first_sentence(paths[0]))


def first_sentence(path: Path) -> str:
    """The first sentence of the comment at the top of a file."""
    lines = []
    for line in path.read_text(errors="replace").splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:  # an instruction to Hydra
            lines.append(line.lstrip("# "))
    text = " ".join(" ".join(lines).split())
    ends = (found.end() for found in re.finditer(r"(\S*)[.](?=\s|$)", text) if len(found[1]) > SHORT)
    return text[: next(ends, len(text))]


def unknown_folders() -> list[Path]:
    """Folders inside of own ones that hold YAML files and are no group, such as a misspelt one."""
    known = set(groups())
    inside = (path for folder in own_folders() for path in sorted(folder.iterdir()) if path.is_dir())
    return [path for path in inside if path.name not in known and any(path.glob("*.yaml"))]


def shown_source(path: Path) -> str:
    """A file of the package's as `conf/group/option.yaml`, an own one with its whole path."""
    return str(path) if is_own(path) else f"{CONF_DIR.name}/{path.relative_to(CONF_DIR)}"
