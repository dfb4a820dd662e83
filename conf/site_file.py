"""`trisweep.yaml`: what holds for all commands that are given in its folder or below."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from conf.errors import ConfigError

FILE_NAME = "trisweep.yaml"


class SiteText(BaseModel):
    """The file as it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    config_dirs: list[str] = []
    output_dir: str | None = None


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
    """What the file says; its paths are relative to its own folder.

    Raises:
        ConfigError: it cannot be read, or says what is not known.
    """
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigError(FILE_NAME, str(path), f"cannot be read ({error.strerror})", "Make it readable.") from None


@lru_cache(maxsize=16)  # every look at the options of a group asks for it
def _read(path: Path, _changed: int) -> Site:
    try:
        content = yaml.safe_load(path.read_text())
        written = SiteText.model_validate({} if content is None else content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(path, f"is not valid YAML: {' '.join(str(error).split())[:200]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _wrong(path, f"{where}: {first['msg'].lower()}" if where else "is not a mapping") from None
    dirs = tuple(path.parent / Path(text).expanduser() for text in written.config_dirs)
    output = None if written.output_dir is None else path.parent / Path(written.output_dir).expanduser()
    return Site(dirs, output)


def _wrong(path: Path, problem: str) -> ConfigError:
    return ConfigError(FILE_NAME, str(path), problem, f"It takes {' and '.join(SiteText.model_fields)}.")
