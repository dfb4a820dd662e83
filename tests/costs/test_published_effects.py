"""What published sweeps showed and simple models miss: shapes that suit tiles, chunks that cost transfers."""

from __future__ import annotations

import pytest

from benchmarks.published_rows import compared_rows, row_sets
from sweeps.table.prices import PricedRow
from tests.costs.priced import seconds, setting_of, with_model

BLOOM_LAYOUT = {"tp": "8", "pp": "6", "micro_batch": "4", "global_batch": "2048"}
Sets = dict[str, list[PricedRow]]


@pytest.fixture(scope="module")
def published() -> Sets:
    return row_sets()


def rates(bloom: list[PricedRow], hidden: str) -> tuple[float, float]:
    """Published and predicted hardware TFLOPS per GPU of the first row of this width in BLOOM's layout of 48 nodes."""
    wanted = BLOOM_LAYOUT | {"hidden": hidden}
    row = next(one for one in bloom if wanted.items() <= one.record.row.items())
    assert row.prediction is not None
    predicted = row.prediction.estimate.hardware_flops_per_second_per_device / 1e12
    return float(row.record.row["tflops_per_gpu"]), predicted


def test_blooms_width_that_suits_its_tiles_is_predicted_a_fifth_faster_too(published: Sets) -> None:
    """14400 / 8 = 1800 = 8 x 225, and 13824 / 8 = 1728 = 64 x 27. BLOOM's authors saw 97.6 and 133.9 TFLOPS."""
    (seen_odd, odd), (seen_suitable, suitable) = (rates(published["bloom"], hidden) for hidden in ("14400", "13824"))
    assert (seen_odd, seen_suitable) == (97.55, 133.93)
    assert suitable / odd >= 1.2


@pytest.mark.parametrize("num_micro_batches", [12, 24, 60])
def test_four_chunks_instead_of_two_gain_less_than_the_textbook_says(num_micro_batches: int) -> None:
    """The 175B on 96 GPUs of figures 12 and 18 of arXiv 2104.04473, batches of 12 to 60.

    The textbook's bubble is (p - 1) / (v m); every chunk more is one transfer more, and the ends are slower than the
    other stages.
    """
    setting = with_model(setting_of("gpt-175b", "selene", "fp16"), vocab_size=51_200)
    plan = {"tensor_parallel_size": 8, "pipeline_parallel_size": 12, "recompute": "full", "schedule": "interleaved"}
    two, four = (
        seconds(setting, **plan, virtual_pipeline_size=chunks, num_micro_batches=num_micro_batches) for chunks in (2, 4)
    )
    textbook = (1 + 11 / (2 * num_micro_batches)) / (1 + 11 / (4 * num_micro_batches))
    assert 1 < two / four < 1 + 0.95 * (textbook - 1)


def test_frontiers_rates_fall_from_the_22b_to_the_1t_as_published(published: Sets) -> None:
    """Hardware TFLOPS per GCD, on which the cluster's constants were fitted; arXiv 2312.12705, abstract."""
    rows = compared_rows(published["frontier-headline"])
    seen = [float(row.row["tflops_per_gpu"]) for row in rows]
    predicted = [row.prediction.estimate.hardware_flops_per_second_per_device / 1e12 for row in rows]
    assert [row.row["model"] for row in rows] == ["GPT-22B", "GPT-175B", "GPT-1T"]
    assert seen == [73.5, 69.2, 61.2]
    assert predicted == sorted(predicted, reverse=True)
    assert predicted == pytest.approx(seen, rel=0.075)  # constants are fitted to all published rows at once
