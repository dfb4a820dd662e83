"""Composition of the YAML groups by overrides, and its validation as `Settings`.

Only this module knows Hydra and OmegaConf. Composing costs 150 ms, so a command composes once and passes the
`Composition` on, and a sweep makes its points with `with_values`, which does not compose.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from conf.compose.complaints import (
    LOOK_LIKE,
    as_hydra_spells,
    cleared_before,
    no_option,
    require_no_hidden_mapping,
    require_none_of_hydra,
    validate,
    wrong_alone,
)
from conf.compose.defaults import MOST_OF_HYDRA, circle_of, wrong_defaults
from conf.compose.kinds import dotted_fields
from conf.compose.plausible import doubts, not_modelled
from conf.compose.references import following
from conf.compose.secrets import with_stand_ins
from conf.compose.settings import Settings
from conf.compose.source import AsWritten
from conf.compose.tree import Tree, dotted_keys, value_at
from conf.errors import ConfigError
from conf.folders import conf_dir, groups, options, own_folders, shown_file, site_overrides
from conf.nearest import nearest
from conf.overrides import Override, Overrides
from conf.plan.knobs import remedy_for
from conf.plan.setup_parts import named_blocks
from conf.types.cluster_spec import ClusterSpec
from conf.types.sbatch_options import remedy_for_option
from conf.types.schema import NAME

ROOT = "config"
"""The file from which all groups are composed."""


class OwnFolders(SearchPathPlugin):
    """Tells Hydra where a person's own groups are, which come before the package's."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put the own folders in front of the package's, in their order."""
        for folder in own_folders():
            search_path.prepend("own", f"file://{folder}", SearchPathQuery(provider="main"))


Plugins.instance().register(OwnFolders)
SourcesRegistry.instance().types[AsWritten.scheme()] = AsWritten


@dataclass(frozen=True)
class Composition:
    """A request and the configuration composed from it, made once and passed on.

    Attributes:
        tree: plain values, interpolations resolved. Nobody changes it: `with_values` makes changed copies.
        choices: the option that each group came to, by its key: `model`, and `device@cluster.device` inside another.
        doubts: a sentence for each unusual figure of the cluster and for what a model leaves out, for the person.
    """

    overrides: Overrides
    tree: Tree
    choices: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    @cached_property
    def settings(self) -> Settings:
        """The tree as settings, validated when they are first asked for.

        They are not validated at once, because a search replaces the plan of a tree, which need not be able to exist.
        Raises ConfigError, which names the dotted key, its value and the remedy.
        """
        return settings_of(self.tree)


def compose(overrides: Overrides) -> Composition:
    """The configuration with these overrides.

    Raises ConfigError where an override names an unknown group, option or key, a file is not valid YAML, or a figure of
    the cluster is impossible in its unit.
    """
    plain, choices = _plain_tree(ROOT, overrides)
    tree = with_stand_ins(plain)
    wrong = [*_wrong_name("model", tree, overrides), *_wrong_name("cluster", tree, overrides)]
    cluster = tree.get("cluster")
    said = doubts(cluster, wrong) if isinstance(cluster, dict) else ()
    return Composition(overrides, tree, choices, (*said, *not_modelled(tree.get("model"), tree.get("trainer"))))


def compose_tree(texts: Sequence[str] = ()) -> Tree:
    """The composed tree alone, for callers that have overrides as texts."""
    return compose(Overrides.parse(texts)).tree


def load(texts: Sequence[str] = ()) -> Settings:
    """The settings alone, for callers that have overrides as texts.

    Raises ConfigError, which names the dotted key, its value and the remedy.
    """
    return compose(Overrides.parse(texts)).settings


def load_cluster(name: str) -> ClusterSpec:
    """One file of conf/cluster alone: composing it takes half the time of the whole configuration.

    Raises:
        ConfigError: there is no such file, or its content is wrong; names the dotted key, its value and the remedy.
    """
    if name not in options("cluster"):
        raise no_option("cluster", name)
    tree, _ = _plain_tree(f"cluster/{name}", Overrides())
    doubts(tree["cluster"], _wrong_name("cluster", tree, Overrides.choosing("cluster", name)))
    return validate(ClusterSpec, tree["cluster"], "cluster.")


@cache
def cluster_named(name: str) -> ClusterSpec:
    """The same of a file that does not change meanwhile: rows of tables and points of sweeps name the same few."""
    return load_cluster(name)


def _plain_tree(root: str, overrides: Overrides) -> tuple[Tree, dict[str, str]]:
    """The composed tree, and the option that each group came to."""
    # OmegaConf resolves references only here, and reports a broken one as a plain ValueError or an error of its own.
    try:
        config, choices = _with_hydra(root, overrides)
        tree = following(OmegaConf.to_container(config, resolve=True), OmegaConf.to_container(config, resolve=False))
    except (OmegaConfBaseException, ValueError) as error:
        raise _readable_error(error, overrides) from None
    return tree, choices


def _with_hydra(root: str, overrides: Overrides) -> tuple[DictConfig, dict[str, str]]:
    """The configuration that Hydra composes, and the option that each group came to."""
    # Hydra keeps one configuration per process, and refuses to open another before the first is cleared.
    GlobalHydra.instance().clear()
    _require_sweep(overrides)
    require_no_hidden_mapping(overrides)
    require_none_of_hydra(overrides)
    # Of two overrides of one key Hydra takes the later one, so those of the site come before the command's.
    own = chain.from_iterable((*cleared_before(each), as_hydra_spells(each)) for each in overrides)
    texts = [*(site_overrides() if root == ROOT else ()), *own]
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = hydra.compose(root, overrides=texts, return_hydra_config=True)
    except RecursionError:
        if (circle := circle_of(overrides)) is not None:
            raise circle from None
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _readable_error(error, overrides) from None
    choices = {key: str(option) for key, option in config.hydra.runtime.choices.items()}
    with open_dict(config):
        del config["hydra"]
    return config, choices


def _require_sweep(overrides: Overrides) -> None:
    """Refuse a value of a sweep where none was named, which would make one of that value alone."""
    of_a_sweep = next((each for each in overrides.of({"sweep"}) if each.pins), None)
    if of_a_sweep is not None and overrides.stated_value("sweep") is None:
        problem, remedy = "belongs to a sweep, and none was named", "Name it, as in `trisweep plan 175b`."
        raise ConfigError(of_a_sweep.key, of_a_sweep.value, problem, remedy)


def settings_of(tree: Tree) -> Settings:
    """A composed tree, validated; `parallel.world_size: null` becomes every device, of the cluster or a mixed job."""
    named = tree.get("mixed")
    # In a trial's folder the clusters are described, and not just named.
    is_described = isinstance(named, list | tuple) and all(isinstance(block, dict) for block in named)
    if named is not None and not is_described:
        tree = _with_blocks(tree, "+".join(map(str, named)) if isinstance(named, list) else str(named))
    parallel, cluster = tree.get("parallel"), tree.get("cluster")
    if isinstance(parallel, dict) and parallel.get("world_size", 0) is None:
        whole_cluster = validate(ClusterSpec, cluster if isinstance(cluster, dict) else {}, "cluster.").num_devices
        tree = {**tree, "parallel": {**parallel, "world_size": whole_cluster}}
    settings = validate(Settings, tree)
    slurm = settings.slurm.seeing(Path(settings.output_dir), settings.cluster.device.maker)
    return settings if slurm is settings.slurm else settings.model_copy(update={"slurm": slurm})


def _with_blocks(tree: Tree, named: str) -> Tree:
    """The tree with a cluster's whole description in place of each name; the chosen cluster keeps what was overridden.

    Raises ConfigError where the text names no blocks, or an unknown cluster.
    """
    counts, cluster, parallel = named_blocks(named), tree.get("cluster"), tree.get("parallel")
    chosen = cluster.get("name") if isinstance(cluster, dict) else None
    blocks = [
        {"cluster": cluster if name == chosen else cluster_named(name).model_dump(), "num_devices": number}
        for name, number in counts
    ]
    tree = {**tree, "mixed": blocks}
    if isinstance(parallel, dict) and parallel.get("world_size", 0) is None:
        tree["parallel"] = {**parallel, "world_size": sum(number for _, number in counts)}
    return tree


def require_name(option: str, text: str | None) -> None:
    """Raises ConfigError where a command's option was given a text that can name neither a file nor a folder."""
    if text is not None and (not re.fullmatch(NAME, text) or text.lower() == "null"):
        remedy = "Use letters, digits, dots, underscores and dashes, beginning with a letter or a digit."
        raise ConfigError(option, text, "is not a plain name", remedy)


def _wrong_name(group: str, tree: Tree, overrides: Overrides) -> list[ConfigError]:
    """The error where a file's `name` is not its file name: a copy that kept it would share folders with the first."""
    # A name that an override states is meant, and no slip.
    chosen, key = overrides.stated_value(group), f"{group}.name"
    named = value_at(tree, key)
    if chosen is None or named in (None, chosen) or key in overrides.pinned_keys():
        return []
    problem = f"is not the name of the file {shown_file(group, chosen)}"
    return [ConfigError(key, named, problem, f"Write `name: {chosen}` in that file.")]


def _readable_error(error: Exception, overrides: Overrides) -> ConfigError:
    """One message for the several ways in which Hydra refuses. Its errors lack fields, so their texts are matched."""
    text = " ".join(str(error).split())
    # Before any text is matched: an override that is wrong by itself makes Hydra complain of something else.
    if wrong := next(filter(None, map(wrong_alone, overrides)), None):
        return wrong
    if missing := re.search(r"Could not find '([\w.-]+)/([^']+)'", text):
        group, option = missing.groups()
        return no_option(group, option)
    if (wrong := wrong_defaults(text)) is not None:
        return wrong
    if missing := re.search(r"Could not override '([\w./@-]+)'", text):
        return _not_overridable(missing.group(1), overrides)
    if missing := re.search(r"Could not delete from config. '([^']*)' does not exist", text):
        problem = "cannot be removed, as it is not set"
        return ConfigError(f"~{missing.group(1)}", None, problem, "Leave out the override.")
    if (wrong := _unresolved_reference(text, overrides)) is not None:
        return wrong
    culprit = next((override for override in overrides.texts if override in text), " ".join(overrides.texts))
    return ConfigError("override", culprit, text[:MOST_OF_HYDRA], LOOK_LIKE)


def _unresolved_reference(text: str, overrides: Overrides) -> ConfigError | None:
    """The error for a value that refers to another one, which is not there or refers back; None for other texts."""
    reference = re.search(r"^(.*?nterpolation.*?) full_key: (\S+)", text)
    if reference is None:
        return None
    complaint, key = reference.groups()
    absent = re.search(r"key '([^']+)' not found", complaint)
    problem = f"refers to the key {absent.group(1)}, which does not exist" if absent else "cannot be resolved"
    remedy = "Write the value itself, or ${KEY} of a key that is set."
    return ConfigError(key, overrides.stated_value(key), problem, remedy)


def _not_overridable(key: str, overrides: Overrides) -> ConfigError:
    group, _, place = key.partition("@")
    if place and group in groups():
        problem = "is not taken from a file by this cluster, which states its own"
        return ConfigError(group, overrides.stated_value(group), problem, f"Set the keys of {place} one by one.")
    value, sweep = overrides.stated_value(key), overrides.stated_value("sweep")
    # Compose once more without the mistake, to learn which keys there are; a chosen sweep adds some of its own.
    without_mistake = Overrides() if sweep is None or key == "sweep" else Overrides.choosing("sweep", sweep)
    keys = [*dotted_keys(_plain_tree(ROOT, without_mistake)[0]), *dotted_fields()]
    if key in keys:
        remedy = "Change it in the sweep's file, or give it values with an axis."
        return ConfigError(key, value, "has a dot in one of its names, which no override can tell", remedy)
    remedy = remedy_for(key) or remedy_for_option(key, value) or nearest(key, [*keys, *groups()])
    return ConfigError(key, value, "is not a key or group of the configuration", remedy)


def run_with_hydra(run: Callable[[Tree], None]) -> None:
    """Compose what the command line (`sys.argv`) says and call `run` with it, once for each job of a Hydra sweep.

    The tree is not yet validated: `settings_of` does that. Raises ConfigError where it cannot be composed.
    """

    def job(config: DictConfig) -> None:
        run(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]

    # Options such as -m stay as they are, since Hydra reads the command line itself.
    words = [text if text.startswith("-") else as_hydra_spells(Override.parse(text)) for text in sys.argv[1:]]
    given = Overrides.parse(text for text in sys.argv[1:] if not text.startswith("-"))
    sys.argv[1:] = [*site_overrides(), *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come here, instead of being printed with their way through it
    try:
        hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")(job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise _readable_error(error, given) from None
