"""What is too large for 64-bit columns is refused, and nothing that is let through leaves them."""

from __future__ import annotations

import numpy as np
import pytest

from conf.errors import ConfigError
from conf.types.model_spec import ModelSpec
from costs import IMPLEMENTATIONS, Implementation, estimate
from costs.counts.parameters import largest_micro_batch_size, require_computable
from costs.price import peak_bytes
from costs.setting import Plans, Setting
from costs.work import work_of
from tests.composed import load
from tests.messages import refused

MODELS = ("gpt-22b", "gpt-1t", "llama-3.1-8b", "llama-2-70b")


def model(name: str, *overrides: str) -> ModelSpec:
    return load([f"model={name}", *overrides]).model


def peak(spec: ModelSpec, micro_batch_size: int, trainer: Implementation) -> int:
    """Bytes of a pipeline of two stages that keeps everything, in fp32."""
    sizes = (1, 2, 1, 1, micro_batch_size, 8, False, 0, 0, 1, 0, spec.num_layers // 2, spec.num_layers // 2, 1, 1)
    plans = Plans(*(np.array([size]) for size in sizes))
    setting = Setting(spec, load(["cluster=local"]).cluster, "fp32", trainer)
    return int(peak_bytes(setting, plans, work_of(setting, plans))[0])


@pytest.mark.parametrize("trainer", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_memory_grows_with_the_micro_batch_up_to_the_largest(name: str, trainer: str) -> None:
    spec = model(name)
    most = largest_micro_batch_size(spec)
    sizes = [1, *(most // 2**power for power in range(10, -1, -1))]
    peaks = [peak(spec, size, IMPLEMENTATIONS[trainer]) for size in sizes]
    assert peaks == sorted(peaks)
    assert peaks[0] > 0
    assert peaks[-1] / most == pytest.approx(peaks[1] / sizes[1], rel=0.1)


def test_the_largest_is_far_beyond_what_anyone_trains_with() -> None:
    assert all(largest_micro_batch_size(model(name)) > 10_000 for name in MODELS)
    assert largest_micro_batch_size(model("llama-3.1-8b", "model.seq_length=131072")) >= 8


def test_a_micro_batch_beyond_it_is_refused_with_the_largest() -> None:
    spec = model("gpt-22b")
    most = largest_micro_batch_size(spec)
    require_computable(spec, most)
    with refused(ConfigError, "batch.micro_batch_size"):
        require_computable(spec, most + 1)


def test_a_model_beyond_it_is_refused_whatever_the_micro_batch() -> None:
    with refused(ConfigError, "model.hidden_size"):
        require_computable(model("gpt-22b", "model.hidden_size=614400000000"), 1)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["batch.micro_batch_size=536870912", "batch.global_batch_size=536870912"], "batch.micro_batch_size"),
        (["model.seq_length=1099511627776"], "model.hidden_size"),
    ],
)
def test_an_experiment_beyond_it_gets_no_estimate(overrides: list[str], key: str) -> None:
    experiment = load(["model=gpt-22b", *overrides]).experiment()
    with refused(ConfigError, key):
        estimate(experiment)
