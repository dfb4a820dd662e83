"""A step of a training, for tests that need one and do not look at most of its numbers."""

from __future__ import annotations

from train_core.trial.measurement import StepMetrics

STEP = StepMetrics(
    step=1,
    num_steps=3,
    loss=2.5,
    gradient_norm=1.0,
    learning_rate=1e-3,
    step_seconds=0.5,
    tokens_per_second=100.0,
    model_flops_per_second_per_device=1e9,
    warmup=False,
    time=0.0,
)
