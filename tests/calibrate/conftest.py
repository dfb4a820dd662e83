"""A configuration to write to, and rates that devices would have measured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from conf.folders import conf_dir, draft_first
from conf.types.cluster_spec import ClusterSpec
from rates.plan import rates_plan
from rates.record import AttentionRate, DeviceRates, LinkTime, MeasuredSpread, ProductRate, RatesFolder
from train_core.trial.measurement import Environment


@pytest.fixture
def folder(tmp_path: Path) -> RatesFolder:
    return RatesFolder(tmp_path / "runs" / "calibrate-local")


@pytest.fixture
def conf_copy(tmp_path: Path) -> Iterator[Path]:
    """The configuration in a folder of its own, which holds before all others, to be written to."""
    copy = tmp_path / "conf"
    shutil.copytree(conf_dir(), copy, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    with draft_first(copy):
        yield copy


def rates_of(
    cluster: ClusterSpec,
    kind: Literal["gpu", "cpu"],
    world_size: int,
    *,
    product: float,
    attention: float = 1e10,
    memory: float = 1e10,
    kernel_seconds: float = 4e-6,
    bandwidth: float = 2e9,
    latency: float = 1e-5,
) -> DeviceRates:
    """What devices of these rates would have measured."""
    plan = rates_plan(cluster, kind, world_size)
    shapes = [*((one, True) for one in plan.large_products), *((one, False) for one in plan.thin_products)]
    return DeviceRates(
        plan=plan,
        products=tuple(
            ProductRate(
                dtype=dtype, product=one, is_large=large, flops_per_second=spread(product * (1 if large else 0.5))
            )
            for dtype in plan.dtypes
            for one, large in shapes
        ),
        attentions=tuple(
            AttentionRate(dtype=dtype, shape=shape, flops_per_second=spread(attention))
            for dtype in plan.dtypes
            for shape in plan.attention_shapes
        ),
        copy_bytes_per_second=spread(0.9 * memory),
        triad_bytes_per_second=spread(1.1 * memory),
        kernel_seconds=spread(kernel_seconds),
        link_times=tuple(
            LinkTime(
                link=link.name,
                pattern="transfer",
                num_ranks=2,
                num_bytes=num_bytes,
                seconds=spread(latency + num_bytes / bandwidth),
            )
            for link in plan.links
            for num_bytes in plan.message_bytes
        ),
        environment=Environment(
            hostname="node1",
            device="a device",
            backend="gloo",
            torch_version="2.9.9",
            python_version="3.12.1",
            git_sha="0123abc",
            num_cores=4,
        ),
        hostnames=("node1",),
        cores_per_host=4,
        finished=1_800_000_000.0,
    )


def spread(value: float) -> MeasuredSpread:
    return MeasuredSpread(median=value, lowest=0.98 * value, highest=1.03 * value)
