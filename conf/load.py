"""From Hydra overrides to checked `Settings`: compose the YAML groups, then validate.

This is the only module that knows Hydra and OmegaConf; composing costs 50 ms and more, so sweeps vary points with
`with_values`, which does not compose, and what was composed is remembered until a file changes.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from conf.errors import ConfigError
from conf.schema import ClusterSpec, Value
from conf.settings import Settings

MOST_SHOWN = 20
CONF_DIR = Path(__file__).resolve().parent
Tree = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)


def options(group: str, folder: Path | None = None) -> list[str]:
    """Names that can be chosen in a config group, such as `cluster`."""
    return sorted(path.stem for path in ((folder or CONF_DIR) / group).glob("*.yaml"))


def compose_tree(overrides: Sequence[str] = ()) -> Tree:
    """The configuration as plain values, interpolations resolved.

    Raises:
        ConfigError: an override names an unknown group, option or key, or a file is not valid YAML.
    """
    tree = _composed("config", overrides)
    for group in ("cluster", "model"):
        _require_own_name(group, tree, overrides)
    return tree


def load_cluster(name: str, folder: Path | None = None) -> ClusterSpec:
    """One file of conf/cluster alone: composing it takes half the time of the whole configuration.

    Args:
        folder: a draft of the configuration; null takes conf/ itself.

    Raises:
        ConfigError: there is no such file, or its content is wrong; names the dotted key, its value and the remedy.
    """
    if name not in (known := options("cluster", folder)):
        raise ConfigError("cluster", name, "is not an option of this group", _nearest(name, known))
    tree = _composed(f"cluster/{name}", (), folder)
    _require_own_name("cluster", tree, [f"cluster={name}"])
    return checked(ClusterSpec, tree["cluster"], "cluster.")


def _composed(root: str, overrides: Sequence[str], folder: Path | None = None) -> Tree:
    folder = folder or CONF_DIR
    return copy.deepcopy(_composed_once(root, tuple(overrides), folder, _last_change(folder)))


def _last_change(folder: Path) -> int:
    """Of any file or list of files, in nanoseconds."""
    groups = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    return max(path.stat().st_mtime_ns for group in groups for path in (group, *group.glob("*.yaml")))


@lru_cache(maxsize=64)
def _composed_once(root: str, overrides: tuple[str, ...], folder: Path, last_change: int) -> Tree:
    """A command asks for the same several times; `last_change` keeps what files no longer say from being remembered."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            composed = compose(root, overrides=[_grouped(override) for override in overrides])
        tree: Tree = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise _explained(error, overrides) from None
    return tree


def load(overrides: Sequence[str] = ()) -> Settings:
    """Compose and validate.

    Raises:
        ConfigError: names the dotted key, its value and the remedy.
    """
    return settings_of(compose_tree(overrides))


def settings_of(tree: Tree) -> Settings:
    """A composed tree, validated; `parallel.world_size: null` becomes every device of the cluster."""
    parallel, cluster = tree.get("parallel"), tree.get("cluster")
    if isinstance(parallel, dict) and parallel.get("world_size", 0) is None:
        whole_cluster = checked(ClusterSpec, cluster if isinstance(cluster, dict) else {}, "cluster.").num_devices
        tree = {**tree, "parallel": {**parallel, "world_size": whole_cluster}}
    return checked(Settings, tree)


def checked(model: type[Model], tree: Mapping[str, Any], prefix: str = "") -> Model:
    """`tree` as a `model`, with pydantic's first complaint turned into a `ConfigError`."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise _first_complaint(error, model, prefix) from None


def with_values(tree: Tree, values: Mapping[str, Value]) -> Tree:
    """A copy of `tree` in which every dotted key of `values` has its value.

    Raises:
        ConfigError: a key that the configuration does not have.
    """
    changed = copy.deepcopy(tree)
    for dotted, value in values.items():
        *parents, leaf = dotted.split(".")
        node: Any = changed
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict) or leaf not in node:
            raise ConfigError(dotted, value, "is not a key of the configuration", _nearest(dotted, _dotted_keys(tree)))
        node[leaf] = value
    return changed


def value_at(tree: Tree, dotted: str) -> Value:
    """The plain value at a dotted key; None where there is none."""
    node: Any = tree
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return None if isinstance(node, dict | list) else node


def _require_own_name(group: str, tree: Tree, overrides: Sequence[str]) -> None:
    """A file that was copied and kept the name inside would share folders and settings with the first."""
    chosen = [override.split("=", 1)[1] for override in overrides if override.startswith(f"{group}=")]
    named = value_at(tree, f"{group}.name")
    if chosen and named is not None and named != chosen[-1] and f"{group}.name" not in " ".join(overrides):
        remedy = f"Write `name: {chosen[-1]}` in that file."
        raise ConfigError(f"{group}.name", named, f"is not the name of the file conf/{group}/{chosen[-1]}.yaml", remedy)


def _grouped(override: str) -> str:
    """`sweep=175b` adds a group that the root does not list by default, which Hydra spells with a plus.

    `device=h100-80gb` is chosen inside the cluster, which Hydra spells with an at sign. A group's option is quoted if
    it is all digits, or Hydra would take it for a number.
    """
    key, _, option = override.partition("=")
    if option.isdigit() and (CONF_DIR / key).is_dir():
        override = f"{key}='{option}'"
    if key == "device":
        override = f"device@cluster.{override}"
    return f"+{override}" if key == "sweep" else override


def _dotted_keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key, value in tree.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += _dotted_keys(value, f"{prefix}{key}.")
    return keys


def _nearest(word: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if match:
        return f"Did you mean {match[0]}?"
    siblings = [name for name in known if "." not in name] or list(known)
    return f"Known: {', '.join(siblings[:MOST_SHOWN])}."


def _explained(error: Exception, overrides: Sequence[str]) -> ConfigError:
    """One message for the several ways Hydra says no."""
    text = " ".join(str(error).split())
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        where = f"{Path(error.problem_mark.name).name}, line {error.problem_mark.line + 1}"
        return ConfigError("conf", where, f"is not valid YAML: {error.problem}", "Correct the file.")
    if missing := re.search(r"Could not find '([\w.-]+)/([^']+)'", text):
        group, option = missing.groups()
        return ConfigError(group, option, "is not an option of this group", _nearest(option, options(group)))
    if missing := re.search(r"Could not override '([\w./@-]+)'", text):
        return _not_overridable(missing.group(1), overrides)
    shown = next((o for o in overrides if o in text), " ".join(overrides))
    return ConfigError(
        "override", shown, text[:300], "Overrides look like cluster=frontier or batch.micro_batch_size=2."
    )


def _not_overridable(key: str, overrides: Sequence[str]) -> ConfigError:
    value = next((o.split("=", 1)[1] for o in overrides if o.lstrip("+~").startswith(f"{key}=")), None)
    sweep = [o for o in overrides if o.startswith("sweep=")] if key != "sweep" else []
    keys = _dotted_keys(compose_tree(sweep))
    if key in keys:
        return ConfigError(key, value, "is a mapping, which takes entries one by one", f"Write +{key}.NAME=VALUE.")
    groups = sorted(path.name for path in CONF_DIR.iterdir() if any(path.glob("*.yaml")))
    return ConfigError(key, value, "is not a key or group of the configuration", _nearest(key, [*keys, *groups]))


def _first_complaint(error: ValidationError, model: type[BaseModel], prefix: str) -> ConfigError:
    complaint = error.errors(include_url=False)[0]
    parts = [str(part) for part in complaint["loc"]]
    key = prefix + ".".join(parts)
    if complaint["type"] == "missing":
        return ConfigError(key, None, "is missing", "Add it to the configuration file of its group.")
    if complaint["type"] == "extra_forbidden":
        siblings = [prefix + ".".join([*parts[:-1], name]) for name in _field_names(model, parts[:-1])]
        return ConfigError(key, complaint["input"], "is not a known key", _nearest(key, siblings))
    message = complaint["msg"][0].lower() + complaint["msg"][1:]
    return ConfigError(key, complaint["input"], message, "Correct the value in the configuration file or the override.")


def _field_names(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
