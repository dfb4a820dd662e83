"""The difference of two trainings in the losses and the gradients' norms of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.gpu_check.check import CheckFinding
from benchmarks.gpu_check.workbench import JobRun
from conf.types.schema import Dtype, Value
from train_core.trial.measurement import StepMetrics


class StepDifference(NamedTuple):
    """The largest relative differences over all steps."""

    loss: float
    norm: float

    def within(self, other: StepDifference) -> bool:
        return self.loss <= other.loss and self.norm <= other.norm

    def __str__(self) -> str:
        return f"losses differ by {power(self.loss)}, norms by {power(self.norm)}"


TOLERANCES: dict[Dtype, StepDifference] = {
    "fp32": StepDifference(1e-4, 1e-3),
    "bf16": StepDifference(2e-3, 2e-2),
    "fp16": StepDifference(1e-3, 1e-2),
}
"""Ten times and more what CPU ranks show, and an H200 but for products in fp8 (docs/gpu-runs.md)."""


EXACT: dict[str, Value] = {"training.deterministic": True}
"""On GPUs some kernels sum in the order of arrival, unless they are told not to."""


def difference(steps: Sequence[StepMetrics], expected: Sequence[StepMetrics]) -> StepDifference:
    """The largest differences; infinite where the steps are not the same ones."""
    if [step.step for step in steps] != [step.step for step in expected] or not steps:
        return StepDifference(float("inf"), float("inf"))
    pairs = list(zip(steps, expected, strict=True))
    loss = max(_relative(step.loss, other.loss) for step, other in pairs)
    return StepDifference(loss, max(_relative(step.gradient_norm, other.gradient_norm) for step, other in pairs))


def power(value: float) -> str:
    """`2e-07`, and `0` for nothing."""
    return f"{value:.0e}" if value else "0"


def _relative(value: float, expected: float) -> float:
    return abs(value - expected) / max(abs(expected), 1e-12)


def finding_on_unfinished(*jobs: JobRun) -> CheckFinding | None:
    """The finding on the first of these that did not complete."""
    ran = next((job for job in jobs if not job.completed), None)
    return None if ran is None else CheckFinding(passed=False, seen=ran.why, figures=figures_of(ran))


def finding_on_steps(ran: JobRun, expected: list[StepMetrics], dtype: Dtype) -> CheckFinding:
    """The comparison of a completed job's steps with the expected ones, to the rounding of its precision."""
    found, limit = difference(ran.steps, expected), TOLERANCES[dtype]
    figures = {"dtype": dtype, "loss_difference": found.loss, "norm_difference": found.norm} | figures_of(ran)
    exceeded = "" if found.within(limit) else f" (allowed: {limit.loss:.0e}, {limit.norm:.0e})"
    return CheckFinding(passed=not exceeded, seen=f"{found}{exceeded}", figures=figures)


def finding_on_bits(ran: JobRun, first: JobRun) -> CheckFinding:
    """The comparison of a training with the first one, bit by bit, as deterministic kernels promise."""
    if unfinished := finding_on_unfinished(first, ran):
        return unfinished
    found = difference(ran.steps, first.steps)
    equal = figures_of(ran)["steps"] == figures_of(first)["steps"]
    figures = {"bitwise": equal, "loss_difference": found.loss, "norm_difference": found.norm} | figures_of(ran)
    seen = f"equal bit for bit over {len(ran.steps)} steps" if equal else f"not bit for bit: {found}"
    return CheckFinding(passed=equal, seen=seen, figures=figures)


def figures_of(ran: JobRun) -> dict[str, Any]:
    """The figures of a job for the JSON file. The host's name stays here."""
    measurement = ran.measurement.model_dump(mode="json", exclude={"environment": {"hostname"}})
    steps = [{"step": step.step, "loss": step.loss, "gradient_norm": step.gradient_norm} for step in ran.steps]
    stages = [{"ended": stage.ended, "seconds": stage.seconds.model_dump()} for stage in ran.recorded]
    return {"measurement": measurement, "steps": steps, "stages_of_a_step": stages}
