"""Where full recomputation of a layer ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.types.schema import MatmulRecipe
from costs.kernels import matmul_seconds, recipe_of
from costs.layer.layer_costs import layer_costs
from costs.layer.layer_time import projections_forward, projections_repeated
from costs.layer.shard import products_of, tokens_of
from costs.setting import Setting
from tests.costs.priced import setting_of, shard_of, with_trainer

SHARD = shard_of(1, 2, recompute="full")


def setting(*, stops: bool, recipe: MatmulRecipe | None = None) -> Setting:
    torchtitan = setting_of("llama-3.1-8b", "dgx-h100", trainer="torchtitan")
    return replace(with_trainer(torchtitan, stops_recompute_early=stops), matmul_recipe=recipe)


def last_product(setting: Setting) -> float:
    """Seconds of the way down in the feed-forward layer, 14,336 to 4,096, whose output nothing needs again."""
    columns, depth = products_of(setting, SHARD)[-1]
    assert (columns, depth) == (4096, 14336)
    rows = tokens_of(setting, SHARD)
    return float(matmul_seconds(setting, rows, columns, depth, recipe=recipe_of(setting))[0])


@pytest.mark.parametrize("recipe", [None, "fp8-tensorwise", "fp8-rowwise"])
def test_a_repeated_pass_ends_before_the_last_product(recipe: MatmulRecipe | None) -> None:
    whole, early = setting(stops=False, recipe=recipe), setting(stops=True, recipe=recipe)
    forward = projections_forward(whole, SHARD)
    assert projections_repeated(whole, SHARD, forward) == forward
    saved = forward - projections_repeated(early, SHARD, forward)
    assert saved == pytest.approx(last_product(early))


def test_a_narrow_product_that_is_left_out_saves_less_than_a_wide_one() -> None:
    assert last_product(setting(stops=True, recipe="fp8-tensorwise")) < 0.7 * last_product(setting(stops=True))


def test_an_early_end_shortens_the_backward_pass_of_full_recomputation_alone() -> None:
    for recompute, saved in (("none", 0.0), ("selective", 0.0), ("full", last_product(setting(stops=True)))):
        shard = shard_of(1, 2, recompute=recompute)
        late, early = (layer_costs(setting(stops=stops), shard).input_gradient_seconds for stops in (False, True))
        assert late - early == pytest.approx(saved)
