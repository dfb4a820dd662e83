"""What was measured is recognised as the same experiment by later code: a configuration keeps its fingerprint."""

from __future__ import annotations

import pytest

from tests.composed import load


@pytest.mark.parametrize(
    ("overrides", "fingerprint"),
    [
        (["data=synthetic"], "1e83473119bd"),
        (["data=megatron", "data.path=x"], "b2cd5efc5e6d"),
        (["data=text-bpe"], "f6aeec8f631a"),
        (["data=text", "data.source=synthetic"], "deb3d7274481"),
        (["data=text", "data.max_bytes=20000"], "21324e16e5da"),
        (
            [
                "model=gpt-175b",
                "cluster=frontier",
                "parallel=frontier-175b",
                "precision=fp16",
                "batch.global_batch_size=1536",
            ],
            "f700dbab1422",
        ),
        (
            [
                "model=llama-3.1-8b",
                "model.rotary_scaling=null",  # as when its positions were not yet scaled
                "cluster=dgx-h100",
                "precision=bf16",
                "parallel.world_size=16",
                "batch.global_batch_size=64",
                "training.dropout=0.1",
                "parallel.recompute=full",
                "parallel.recompute_every=2",
            ],
            "5d718f6d855a",
        ),
    ],
)
def test_the_fingerprint_of_a_configuration_is_that_of_folders_written_before(
    overrides: list[str], fingerprint: str
) -> None:
    assert load(overrides).experiment().fingerprint == fingerprint
