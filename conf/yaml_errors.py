"""Complaints about files that are no YAML: the path, and the line where the parser knows it."""

from __future__ import annotations

from pathlib import Path

import yaml

from conf.errors import ConfigError


def not_yaml(key: str, path: Path | str, error: yaml.YAMLError) -> ConfigError:
    """The complaint of the parser, in one line.

    Args:
        key: what the file was chosen as.
    """
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    return ConfigError(key, where, f"is not valid YAML: {_problem(error)}", "Correct the file.")


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character U+{int(error.character):04X} is not allowed"
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    return problem or " ".join(str(error).split())
