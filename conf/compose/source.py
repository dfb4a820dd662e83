"""Files of configuration as Hydra is given them: read as they are written, whatever habits their editor has.

A plain value is a text where its key takes texts alone, so that `partition: 3090` and `CUDA: 12.10` need no quotes.
Whoever leaves out the first line `# @package _global_` of a sweep means it all the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from conf.compose.defaults import require_sound
from conf.compose.kinds import kind_at, kind_below, kinds_in
from conf.compose.settings import Settings
from conf.errors import ConfigError
from conf.folders import is_own
from conf.types.sweep_spec import SweepSpec
from conf.yaml_text import TAG, TEXT, file_text, yaml_content

PACKAGE = re.compile(r"#[#\s]*@package[\s:]+(\S+)")
NOTHING_YET = re.compile(r"\s*($|#|---|%)")
"""Lines that may come before the first one of a file's content."""
GLOBAL = "_global_"
TYPES: dict[str, set[Any]] = {f"{TAG}bool": {bool}, f"{TAG}int": {int, float}, f"{TAG}float": {float}}
"""The types that plain values are taken for which may be meant as texts, by their tags."""
WORDS = {
    f"{TAG}bool": re.compile("yes|no|on|off", re.IGNORECASE),
    f"{TAG}int": re.compile(r"[-+]?[1-9][0-9]*(?:_[0-9]+)+"),
}
"""Plain values of YAML 1.1 that are no texts, where a key takes none: truths, and numbers with groups of digits."""


class AsWritten(FileConfigSource):
    """Hydra's source of files, in place of its own."""

    def load_config(self, config_path: str) -> ConfigResult:
        """The content of a file, and the place in the configuration that it is for.

        Raises ConfigError where it is no text, no YAML, or no mapping.
        """
        path = Path(self.path, self._normalize_file_name(config_path))
        group, shown = Path(config_path).parent.name, path if is_own(path) else path.name
        text = file_text(path)

        def adapt(root: yaml.Node) -> None:
            names = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
            is_global = not group or _package(group, text, names) == GLOBAL
            _take_as_written(root, Settings if is_global else kind_at(group) or kind_at(f"cluster.{group}"), set())

        content = yaml_content(text, shown, adapt=adapt)
        if content is not None and not isinstance(content, dict):
            raise ConfigError("conf", str(shown), "holds no lines of the form `KEY: VALUE`", "Correct the file.")
        if group:
            require_sound(group, str(shown), content or {})
        header = {"package": _package(group, text, content or ())}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content or {}), header)


def _package(group: str, text: str, names: Iterable[str]) -> str | None:
    """The part of the configuration that a file is for; None: that of its group."""
    if group == "sweep" and not {*names} - {"defaults"} <= SweepSpec.model_fields.keys():
        return GLOBAL
    lines = itertools.takewhile(NOTHING_YET.match, text.splitlines())
    return next((match[1] for line in lines if (match := PACKAGE.match(line))), None)


def _take_as_written(node: yaml.Node, kind: Any, seen: set[int]) -> None:
    """Make texts of plain values where a type takes texts and not theirs, and values of words where it takes none."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _take_as_written(value, _below(kind, key.value), seen)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _take_as_written(each, _below(kind, None), seen)
    elif str in (kinds := kinds_in(kind)):
        node.tag = TEXT if node.tag in TYPES and not kinds & TYPES[node.tag] else node.tag
    elif node.tag == TEXT and isinstance(node, yaml.ScalarNode) and not node.style:
        node.tag = next((tag for tag, word in WORDS.items() if kinds & TYPES[tag] and word.fullmatch(node.value)), TEXT)


def _below(kind: Any, name: str | None) -> Any:
    """The type of an entry; axes and points name keys of the whole configuration."""
    if name == "defaults" and kind_below(kind, name) is None:
        return str
    inner = kind_at(name) if name and "." in name else None
    inner = inner or kind_below(kind, name)
    return kind if inner is None and str in kinds_in(kind) else inner  # the values of an axis are of its key's type
