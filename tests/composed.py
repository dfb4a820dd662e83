"""Configurations that tests share. Hydra takes 100 to 300 ms to compose one, and tests ask for thousands."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import hydra
import omegaconf
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, open_dict

import conf.compose.load
from conf.compose.load import Composition
from conf.compose.settings import Settings
from conf.compose.tree import Tree
from conf.folders import conf_dir, own_folders
from conf.overrides import Override, Overrides
from conf.plan.setup import Setup
from conf.types.cluster_spec import ClusterSpec
from train_core.trial.atomic import replacing


def composed(texts: Sequence[str] = ()) -> Composition:
    """The composition of these overrides, made once in a process. Nobody changes its tree."""
    return _composed(tuple(texts))


def compose_tree(texts: Sequence[str] = ()) -> Tree:
    return composed(texts).tree


def load(texts: Sequence[str] = ()) -> Settings:
    return composed(texts).settings


def setup_of(texts: Sequence[str]) -> Setup:
    """Of these overrides, whatever trainer can run it."""
    parts = load(texts)
    return Setup(**{name: getattr(parts, name) for name in Setup.model_fields})


@cache
def load_cluster(name: str) -> ClusterSpec:
    return conf.compose.load.load_cluster(name)


@cache
def _composed(texts: tuple[str, ...]) -> Composition:
    return conf.compose.load.compose(Overrides.parse(texts))


compose_with_hydra = hydra.compose


def compose_choices_once(config_name: str, overrides: list[str], *, return_hydra_config: bool = False) -> DictConfig:
    """What `hydra.compose` returns. Each choice of files is composed once, as most differ in values only.

    Hydra sets values after it has put the chosen files together, and its own function sets them here. In folders of a
    person's own, whose files a test may change, each content is composed once.
    """
    values = [text for text in overrides if Override.parse(text).pins]
    try:
        own = tuple(map(digest_of, own_folders()))
    except OSError:  # a folder in place of a file, or one that nobody may read: Hydra says so
        return compose_with_hydra(config_name, overrides, return_hydra_config)
    chosen = _chosen(config_name, tuple(text for text in overrides if text not in values), own)
    config: DictConfig = pickle.loads(chosen)
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(values), config)
    return config


@cache
def _chosen(config_name: str, choices: tuple[str, ...], own: tuple[str, ...]) -> bytes:
    """The composition of the chosen files, pickled: to load it takes a third of the time of a deep copy."""
    folder = COMPOSITIONS / OF_OWN_FILES if own else COMPOSITIONS
    path = folder / sha256(repr((config_name, choices, own)).encode()).hexdigest()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        config = compose_with_hydra(config_name, list(choices), return_hydra_config=True)
        with open_dict(config):  # of Hydra's own values only the choices are read
            config["hydra"] = {"runtime": {"choices": config.hydra.runtime.choices}}
        pickled = pickle.dumps(config)
    with replacing(path, durable=False) as file:
        file.write(pickled)
    for other in COMPOSITIONS.parent.iterdir():
        if other != COMPOSITIONS:  # of files that have changed since
            shutil.rmtree(other, ignore_errors=True)
    return pickled


def forget_own_files() -> None:
    """What sessions before this one composed of files that tests wrote, many of which never come again."""
    for path in (COMPOSITIONS / OF_OWN_FILES).glob("*"):
        if time.time() - path.stat().st_mtime > DAY_SECONDS:
            path.unlink(missing_ok=True)


def digest_of(folder: Path) -> str:
    """Of the configuration's files there, and of what composes them."""
    read = sha256(f"{hydra.__version__} {omegaconf.__version__}".encode())
    for file in sorted({*folder.rglob("*.yaml"), *folder.glob("*/*.yaml")}):  # these in linked folders, too
        read.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    return read.hexdigest()


OF_OWN_FILES = "own"
DAY_SECONDS = 86_400
COMPOSITIONS = Path(__file__).parents[1] / ".pytest_cache" / "composed" / digest_of(conf_dir())
"""What all processes of these tests compose, as long as no file of conf/ changes. Commands are forked from a process
that has imported this module, so that they do not read conf/ again."""
