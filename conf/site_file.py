"""`trisweep.yaml`: what holds for all commands that are given in its folder or below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conf.errors import ConfigError
from conf.nearest import nearest
from conf.yaml_errors import not_yaml

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
    found = (folder / FILE_NAME for folder in (start, *start.parents))
    return next((path for path in found if path.is_file()), None)


def site_of(path: Path) -> Site:
    """The values in the file; its paths are relative to its own folder.

    Raises:
        ConfigError: it cannot be read, or says what is not known.
    """
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigError(FILE_NAME, str(path), f"cannot be read ({error.strerror})", "Make it readable.") from None


@lru_cache(maxsize=16)  # every look at the options of a group asks for it
def _read(path: Path, _changed: int) -> Site:
    written, lines = _written_in(path)
    try:
        site = SiteText.model_validate(written)
    except ValidationError as error:
        raise _wrong_entry(path, lines, written, str(error.errors()[0]["loc"][0])) from None
    dirs = tuple(path.parent / Path(text).expanduser() for text in site.config_dirs)
    output = None if site.output_dir is None else path.parent / Path(site.output_dir).expanduser()
    return Site(dirs, output)


def _written_in(path: Path) -> tuple[dict[str, object], dict[str, int]]:
    """The entries of the file, and the line of each, counted from 1."""
    try:
        text = path.read_text(encoding="utf-8")
        content, root = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except UnicodeDecodeError:
        raise ConfigError(FILE_NAME, str(path), "is not a text in UTF-8", "Save it as UTF-8.") from None
    except yaml.YAMLError as error:
        raise not_yaml(FILE_NAME, path, error) from None
    if content is None:
        return {}, {}
    if not isinstance(content, dict) or not isinstance(root, yaml.MappingNode):
        examples = " or ".join(f"`{example}`" for _, example in TAKES.values())
        raise ConfigError(FILE_NAME, str(path), "holds no lines of the form `KEY: VALUE`", f"Write {examples}.")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in root.value}
    return {str(key): value for key, value in content.items()}, lines


def _wrong_entry(path: Path, lines: Mapping[str, int], written: Mapping[str, object], key: str) -> ConfigError:
    where = f"{path}, line {lines.get(key, 1)}"
    if key not in TAKES:
        return ConfigError(key, written[key], f"is not a key of {where}", nearest(key, tuple(TAKES)))
    kind, example = TAKES[key]
    return ConfigError(key, written[key], f"is not {kind}, in {where}", f"Write it as in `{example}`.")
