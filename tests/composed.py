"""Configurations that tests share: composing one takes 150 ms, and many tests ask for the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import conf.compose.load
from conf.compose.load import Composition
from conf.compose.settings import Settings
from conf.compose.tree import Tree
from conf.overrides import Overrides
from conf.types.cluster_spec import ClusterSpec


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
