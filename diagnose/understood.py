"""What was understood of a run: its row as a configuration with a price, what is missing, and what was taken for it.

What a row says that has no price, such as offloaded activations, is left out and named: the price is that of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from conf.errors import ConfigError
from conf.plan.setup import Setup
from conf.types.cluster_spec import LinkSpec
from conf.types.trainer_spec import Practice
from costs import IMPLEMENTATIONS, Estimate, Implementation, estimates, num_parameters
from diagnose.evidence import OFF, FileEvidence, setting_of
from diagnose.readers import MissingFact, missing_of
from diagnose.runs import Fact, SaidBy, UserRun
from diagnose.trainer_flags import TrainerFlag, wrong_flags
from sweeps.confidence import Interval, interval_of
from sweeps.table.cells import integer_of, text_of
from sweeps.table.configuration import Configuration, configuration_of

OFFLOADED = ("offload_optimizer", "optimizer_offload")
LEFT_OUT = ("cpu_offload", "offload", "activation_offload", *OFFLOADED)
"""Columns without a price of their own whose run has one without them."""
TAKEN = {
    "vocab": "51,200 rows, as GPT-2's are padded",
    "ffn_hidden": "4 x hidden",
    "gpus_per_node": "as the cluster's file says",
    "network_gbits_per_node": "as the cluster's file says",
    "precision": "bf16",
    "recompute": "none",
    "zero_stage": "0",
    "flash_attention": "as the trainer does by itself",
    "implementation": "the usual one for such a row",
}
"""Columns whose usual value weighs most, and what is taken where nobody says it."""
UNTOLD = ("implementation", "tflops_count")
"""Columns whose origin stands elsewhere, or that decide no price."""
HELD_AGAINST: Practice = "recipe"
"""Who asks what is wrong with a run asks what it would take by its trainer's recipe, not what first runs take."""
PADS_NOTHING = ("fsdp", "torchtitan", "deepspeed")
"""Trainers that run a vocabulary as its file has it; others pad it to whole tiles of every tensor rank."""
MOST_APART = 0.02
"""Parameters that a log prints may differ by this share: of padding, and of what is counted."""
PARAMETERS = ("num_parameters", "total_parameters", "parameters")


@dataclass(frozen=True)
class Understood:
    """A run as far as its files and the overrides say it.

    Attributes:
        row: what is priced.
        configuration: with the trainer's facts as the run's flags have them; None where there is no price.
        reason: why there is none.
        missing: facts without which there is no price.
        taken: columns that nobody says, and what was taken; with a note, what was computed or assumed by a reader.
        left_out: columns that say something without a price.
        wrong_flags: those that were taken into the price, each with its line.
        mismatch: what the log prints of the parameters, where that is not what the model comes to.
    """

    run: UserRun
    row: Mapping[str, str]
    configuration: Configuration | None
    reason: str = ""
    missing: tuple[MissingFact, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    wrong_flags: tuple[tuple[TrainerFlag, FileEvidence], ...] = ()
    mismatch: str = ""

    @cached_property
    def predicted(self) -> Estimate | None:
        """The step as this very run should take it, its wrong flags included."""
        return None if self.configuration is None else price_of([self.configuration])[0]

    @property
    def interval(self) -> Interval | None:
        if self.configuration is None or self.predicted is None:
            return None
        return interval_of(
            self.configuration.setup, self.configuration.implementation.name, self.predicted, HELD_AGAINST
        )

    def changed(self, columns: Mapping[str, str], facts: Mapping[str, Any] | None = None) -> Configuration | None:
        """The same run with other cells in its row, and other facts of its trainer; None where that cannot exist."""
        try:
            configuration, _ = _priced({**self.row, **columns})
        except ConfigError:
            return None
        wrong = {name: value for flag, _ in self.wrong_flags for name, value in flag.without.items()}
        trainer = configuration.implementation.model_copy(update={**wrong, **(facts or {})})
        return replace(configuration, implementation=trainer)


def price_of(configurations: list[Configuration]) -> list[Estimate]:
    return estimates([(each.setup, each.implementation) for each in configurations])


def understood(run: UserRun, step_seconds: float | None) -> Understood:
    """What is known of a run whose steps take so many seconds."""
    row = _row_of(run, step_seconds)
    missing = _missing(run)
    taken = _taken(run, row, [each.column for each in missing])
    if missing:
        return Understood(run, row, None, f"nothing says {', '.join(each.column for each in missing)}", missing, taken)
    try:
        configuration, left_out = _priced(row)
    except ConfigError as error:
        return Understood(run, row, None, str(error), (), taken)
    setup, trainer = configuration.setup, configuration.implementation
    wrong = wrong_flags(run, setup, trainer)
    without = {name: value for flag, _ in wrong for name, value in flag.without.items()}
    as_run = replace(configuration, implementation=trainer.model_copy(update=without))
    return Understood(run, row, as_run, "", (), taken, left_out, tuple(wrong), _mismatch(run, setup))


def usual_facts(trainer: Implementation) -> Implementation:
    """The trainer of this name as its users usually have it."""
    return IMPLEMENTATIONS[trainer.name]


def _row_of(run: UserRun, step_seconds: float | None) -> dict[str, str]:
    """The run's columns, its trainer and its measured step; a row that was run is not refused for what trainers do."""
    trainer = {"implementation": run.trainer.value} if run.trainer else {}
    measured = {"iter_time_s": f"{step_seconds:.6g}" if step_seconds else "1"}
    row = {**trainer, **measured, **run.row()}
    row.pop("launch_blocking", None)  # a flag of the trainer says it, whose price a plan can mend
    return row


def _missing(run: UserRun) -> tuple[MissingFact, ...]:
    """The facts without which there is no price; a local batch says both kinds of batch."""
    said = ("micro_batch", "global_batch") if text_of(run.row(), "local_batch") else ()
    return tuple(each for each in missing_of(run) if each.column not in said)


def _taken(run: UserRun, row: Mapping[str, str], missing: Sequence[str]) -> dict[str, str]:
    facts = {
        column: f"{fact.value} ({fact.note})" if fact.note else fact.value
        for column, fact in run.columns.items()
        if fact.said_by in (SaidBy.ASSUMED, SaidBy.COMPUTED) and column not in UNTOLD
    }
    usual = {column: value for column, value in TAKEN.items() if not text_of(row, column) and column not in missing}
    return usual | facts


def _priced(row: Mapping[str, str]) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration of a row without the columns that have no price, and those columns."""
    is_on = [column for column in LEFT_OUT if text_of(row, column).lower() not in OFF]
    said = {column: value for column, value in row.items() if column not in LEFT_OUT}
    configuration = _with_own_vocabulary(configuration_of(said), said)
    # An optimizer in the host's memory is a knob of plans, though tables have no column for it.
    if any(column in OFFLOADED for column in is_on):
        configuration = with_plan(configuration, offload_optimizer=True)
    return configuration, tuple(column for column in is_on if column not in OFFLOADED)


def _with_own_vocabulary(configuration: Configuration, row: Mapping[str, str]) -> Configuration:
    """The configuration with as many rows of the embedding as its run has, where the trainer pads none."""
    setup, rows = configuration.setup, integer_of(row, "vocab", default=configuration.setup.model.vocab_size)
    if configuration.implementation.name not in PADS_NOTHING or rows % setup.parallel.tensor_parallel_size:
        return configuration
    model = setup.model.model_copy(update={"vocab_size": rows})
    return replace(configuration, setup=setup.model_copy(update={"model": model}))


def with_plan(configuration: Configuration, **knobs: Any) -> Configuration:
    """The configuration with other knobs of its parallel plan; raises InfeasiblePlan where that cannot exist."""
    parts = {name: getattr(configuration.setup, name) for name in Setup.model_fields}
    parts["parallel"] = configuration.setup.parallel.model_copy(update=knobs)
    return replace(configuration, setup=Setup(**parts))


def with_links(configuration: Configuration, links: tuple[LinkSpec, ...]) -> Configuration:
    """The configuration on a cluster with other links."""
    cluster = configuration.setup.cluster.model_copy(update={"links": links})
    return replace(configuration, setup=configuration.setup.model_copy(update={"cluster": cluster}))


def _mismatch(run: UserRun, setup: Setup) -> str:
    """A sentence where the log's number of parameters is not the model's; empty where it is, or is not said."""
    found = setting_of(run, *PARAMETERS)
    said = number_in(found[1]) if found else None
    if found is None or not said:
        return ""
    counted = num_parameters(setup.model)
    if abs(said / counted - 1) <= MOST_APART:
        return ""
    return f"the log prints {said / 1e9:,.2f} billion parameters, and this model has {counted / 1e9:,.2f} billion"


def number_in(fact: Fact) -> float | None:
    """The fact's number, without its commas; None where it is none."""
    try:
        return float(fact.value.replace(",", ""))
    except ValueError:
        return None
