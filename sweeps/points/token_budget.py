"""The number of steps that a point trains: as configured, or what `search.tokens` allows at its batch size."""

from __future__ import annotations

from collections.abc import Callable

from conf.errors import InfeasiblePlan
from conf.experiment import Experiment
from conf.schema import Value
from conf.tree import Tree, part_at
from sweeps.planner.objectives import steps_for

NUM_STEPS = "training.num_steps"
NEEDED = ("batch.global_batch_size", "model.seq_length")
"""The keys from which the number of steps follows, where tokens are given."""


def budgeted_steps(tree: Tree, value_of: Callable[[str], Value]) -> int | None:
    """The steps that `search.tokens` takes, rounded up; None where no tokens are given.

    Args:
        value_of: the value of a dotted key at the point.
    """
    tokens = part_at(tree, "search.tokens")
    sizes = [value_of(key) for key in NEEDED]
    if tokens is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    batch, sequence = (int(size or 1) for size in sizes)
    return steps_for(int(tokens), batch * sequence)


def require_last_step_evaluated(experiment: Experiment) -> None:
    """Refuse a trial whose last held-out loss would be of an earlier step, after fewer tokens than those of others.

    Raises:
        InfeasiblePlan: the evaluations miss the last step.
    """
    training = experiment.training
    if training.evaluate_every is not None and training.num_steps % training.evaluate_every:
        problem = f"leaves the last of training.num_steps = {training.num_steps} without evaluation"
        remedy = "Use a divisor, or the axis `training.evaluate_every: =training.num_steps`, or null."
        raise InfeasiblePlan("training.evaluate_every", training.evaluate_every, problem, remedy)
