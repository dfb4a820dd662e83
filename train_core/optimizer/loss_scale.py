"""Dynamic loss scaling: keeps fp16 gradients inside fp16's range by trying ever larger scales."""

from __future__ import annotations

from dataclasses import dataclass

from conf.schema import PrecisionPlan

BACKOFF, GROWTH = 0.5, 2.0  # powers of two, so that scaling changes exponents alone and no digits
STATE = ("scale", "num_good_steps", "num_overflows_in_a_row")


@dataclass
class LossScale:
    """The factor of the loss, and how the last steps went under it.

    It halves at every overflow and doubles after `window` steps without one. Source: arXiv 1710.03740, section 3.2.

    Attributes:
        window: so many steps without an overflow double the scale; None where it is constant.
        scale: the factor of the loss; 1 and constant where the precision is not fp16.
        num_good_steps: steps without an overflow since the scale last changed.
        num_overflows_in_a_row: how many steps up to the last one were skipped.
    """

    window: int | None
    scale: float
    num_good_steps: int = 0
    num_overflows_in_a_row: int = 0

    @classmethod
    def of(cls, plan: PrecisionPlan) -> LossScale:
        if plan.dtype != "fp16":
            return cls(window=None, scale=1.0)
        return cls(plan.loss_scale_window, plan.initial_loss_scale)

    @property
    def is_dynamic(self) -> bool:
        return self.window is not None

    def overflowed(self) -> None:
        self.scale *= BACKOFF
        self.num_good_steps = 0
        self.num_overflows_in_a_row += 1

    def succeeded(self) -> None:
        self.num_overflows_in_a_row = 0
        self.num_good_steps += 1
        if self.num_good_steps == self.window:
            self.scale *= GROWTH
            self.num_good_steps = 0

    def state(self) -> dict[str, float]:
        """The values that a checkpoint keeps; empty where the scale is constant."""
        return {name: getattr(self, name) for name in STATE} if self.is_dynamic else {}

    def restore(self, state: dict[str, float]) -> None:
        """Go on with the state of a checkpoint, where both trainings scale their loss."""
        if self.is_dynamic:
            for name, value in state.items():
                setattr(self, name, type(getattr(self, name))(value))  # JSON's numbers are floats
