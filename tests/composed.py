"""Configurations that tests share. Hydra takes 100 to 300 ms to compose one, and tests ask for thousands."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

import hydra
import omegaconf
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

import conf.compose.load
from conf.compose.load import Composition
from conf.compose.settings import Settings
from conf.compose.tree import Tree
from conf.folders import CONF_DIR, own_folders
from conf.overrides import Override, Overrides
from conf.types.cluster_spec import ClusterSpec

TESTS_FOLDER = Path(__file__).parent


def composed(texts: Sequence[str] = ()) -> Composition:
    """The composition of these overrides, made once in a process. Nobody changes its tree."""
    return _composed(tuple(texts))


def compose_tree(texts: Sequence[str] = ()) -> Tree:
    return composed(texts).tree


def load(texts: Sequence[str] = ()) -> Settings:
    return composed(texts).settings


@cache
def load_cluster(name: str) -> ClusterSpec:
    return conf.compose.load.load_cluster(name)


@cache
def _composed(texts: tuple[str, ...]) -> Composition:
    return conf.compose.load.compose(Overrides.parse(texts))


compose_with_hydra = hydra.compose


def compose_choices_once(config_name: str, overrides: list[str], *, return_hydra_config: bool = False) -> DictConfig:
    """What `hydra.compose` returns. Each choice of files is composed once, as most differ in values only.

    Hydra sets values after it has put the chosen files together, and its own function sets them here. With folders of
    a person's own, whose files a test may change, all is composed anew.
    """
    values = [text for text in overrides if Override.parse(text).pins]
    if return_hydra_config or own_folders():
        return compose_with_hydra(config_name, overrides, return_hydra_config)
    config: DictConfig = pickle.loads(_chosen(config_name, tuple(text for text in overrides if text not in values)))
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(values), config)
    return config


@cache
def _chosen(config_name: str, choices: tuple[str, ...]) -> bytes:
    """The composition of the chosen files, pickled: to load it takes a third of the time of a deep copy."""
    path = _kept() / sha256(repr((config_name, choices)).encode()).hexdigest()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        pickled = pickle.dumps(compose_with_hydra(config_name, list(choices)))
    with NamedTemporaryFile(dir=path.parent, delete=False) as draft:
        draft.write(pickled)
    Path(draft.name).replace(path)  # no other process reads half a file
    return pickled


@cache
def _kept() -> Path:
    """The folder of compositions that all processes of these tests share, as long as no file of conf/ changes."""
    read = sha256(f"{hydra.__version__} {omegaconf.__version__}".encode())
    for file in sorted(CONF_DIR.rglob("*.yaml")):
        read.update(f"{file.relative_to(CONF_DIR)} ".encode() + file.read_bytes())
    folder = TESTS_FOLDER.parent / ".pytest_cache" / "composed" / read.hexdigest()
    if not folder.is_dir():
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    return folder
