"""The predicted timeline, pass by pass, and the price of the step that it draws."""

from __future__ import annotations

import pytest

from costs import IMPLEMENTATIONS, estimate
from results.report.pipeline_spans import predicted_step
from tests.composed import load


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize("layers", ["[24,24]", "[8,40]", "[40,8]", "[6,14,14,14]"])
def test_the_price_of_a_step_is_the_length_of_its_timeline(layers: str, zero_stage: int, schedule: str) -> None:
    """Stages that are not equal reduce and update what they have, each from its own last backward pass."""
    num_stages = layers.count(",") + 1
    overrides = [
        *("model=gpt-22b", "cluster=frontier", "precision=bf16", "parallel.tensor_parallel_size=8"),
        *("parallel.sequence_parallel=true", f"parallel.schedule={schedule}", f"parallel.zero_stage={zero_stage}"),
        *(f"parallel.layers_per_stage={layers}", f"parallel.pipeline_parallel_size={num_stages}"),
        *("parallel.world_size=128", "batch.global_batch_size=64"),
    ]
    experiment = load(overrides).experiment()
    drawn = predicted_step(experiment, IMPLEMENTATIONS["trisweep"]).total_seconds
    assert estimate(experiment).step_seconds == pytest.approx(drawn, rel=0.001 if schedule == "1f1b" else 0.02)
