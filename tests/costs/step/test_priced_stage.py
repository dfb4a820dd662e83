"""The sums over a stage's layers, of which some have experts and some recompute, held against each layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from costs.layer.experts import expert_layer_costs
from costs.layer.layer_costs import layer_costs
from costs.setting import Setting
from costs.stages import spread_stages
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas
from costs.work import work_of
from tests.costs.priced import plan_of, priced, setting_of, shard_of, with_model

COLUMNS = ("input_gradient_seconds", "tensor_backward_seconds", "kept_bytes", "deferred_bytes")


def with_dense_layers(num_layers: int, num_dense: int) -> Setting:
    setting = setting_of("moe-proxy", "frontier", "bf16", "megatron-core")
    experts = setting.model.experts
    assert experts is not None
    return with_model(
        setting, num_layers=num_layers, experts=experts.model_copy(update={"num_dense_layers": num_dense})
    )


def first_stage(setting: Setting, **plan: Any) -> PricedStage:
    plans = plan_of(setting, **plan)
    first = spread_stages(plans, setting.model.num_layers)[0]
    return PricedStage(PricedReplicas(setting, plans), work_of(setting, plans), first)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize(("num_layers", "num_dense"), [(4, 3), (4, 4), (6, 1), (7, 2)])
@pytest.mark.parametrize("every", [1, 2, 3, 8])
def test_a_stage_is_the_sum_of_what_each_of_its_layers_is(
    name: str, recompute: str, num_layers: int, num_dense: int, every: int
) -> None:
    setting = with_dense_layers(num_layers, num_dense)
    kinds = [layer_costs if layer < num_dense else expert_layer_costs for layer in range(num_layers)]
    modes = [recompute if layer % every == 0 else "none" for layer in range(num_layers)]
    each = [getattr(of(setting, shard_of(recompute=mode)), name) for of, mode in zip(kinds, modes, strict=True)]
    stage = first_stage(setting, recompute=recompute, recompute_every=every)
    np.testing.assert_allclose(stage.of_layers(name), sum(each), rtol=1e-12)


def test_no_term_is_negative_where_chunks_are_shorter_than_the_dense_layers() -> None:
    """They are priced as if all of them were on the first stage."""
    setting = with_dense_layers(8, 4)
    chunks = {"schedule": "interleaved", "virtual_pipeline_size": 4, "pipeline_parallel_size": 2}
    for every in (2, 3, 8):
        found = priced(setting, **chunks, num_micro_batches=8, recompute="full", recompute_every=every)
        assert all(np.all(np.asarray(term) >= 0) for term in asdict(found.step).values())
