"""The types of a row: narrow products and how they are scaled."""

from __future__ import annotations

import pytest

from sweeps.table.trainer import precision_of
from tests.composed import load_cluster


@pytest.mark.parametrize(
    ("cells", "recipe"),
    [
        ({"precision": "bf16"}, None),
        ({"precision": "fp8", "fp8_recipe": "hybrid delayed scaling, fp8 params"}, "fp8-delayed"),
        ({"precision": "fp8", "fp8_recipe": "current scaling"}, "fp8-tensorwise"),
        ({"precision": "fp8", "fp8_recipe": "blockwise 128"}, "fp8-blockwise"),
        ({"precision": "fp8 rowwise"}, "fp8-rowwise"),
        ({"precision": "fp8-rowwise"}, "fp8-rowwise"),
        ({"precision": "fp8 tensorwise"}, "fp8-tensorwise"),
        ({"precision": "mxfp8", "fp8_recipe": "MXFP8 block 32"}, "mxfp8"),
        ({"precision": "fp8", "fp8_recipe": "MXFP8"}, "mxfp8"),
        ({"precision": "nvfp4", "fp8_recipe": "NVFP4"}, "nvfp4"),
        ({"precision": "fp4"}, "nvfp4"),
        ({"precision": "amp_fp8"}, "fp8-delayed"),
        ({"precision": "FP8"}, "fp8-delayed"),
        ({"precision": "FP8-CS"}, "fp8-tensorwise"),
        ({"precision": "FP8_MX"}, "mxfp8"),
        ({"precision": "FP8-SC"}, "fp8-blockwise"),
        ({"precision": "bf16", "matmul_precision": "fp8"}, "fp8-delayed"),
    ],
)
def test_recipes_are_read_by_their_words(cells: dict[str, str], recipe: str | None) -> None:
    found = precision_of(cells, load_cluster("dgx-b200"), "megatron-core")
    assert (found.matmul_recipe, found.dtype) == (recipe, "bf16")


def test_torchtitan_scales_by_the_tensor_unless_the_row_says_otherwise() -> None:
    cluster = load_cluster("dgx-h100")
    assert precision_of({"precision": "fp8"}, cluster, "torchtitan").matmul_recipe == "fp8-tensorwise"
    assert precision_of({"precision": "fp8 rowwise"}, cluster, "torchtitan").matmul_recipe == "fp8-rowwise"


def test_gradients_are_in_fp32_unless_the_row_says_otherwise() -> None:
    cluster = load_cluster("dgx-h100")
    assert precision_of({}, cluster, "megatron-core").gradient_dtype == "fp32"
    assert precision_of({"gradient_dtype": "bf16"}, cluster, "megatron-core").gradient_dtype == "bf16"
