"""`trisweep rerun`: one trial of a sweep again, with the code and configuration that it had, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.output.console import console, print_json, shown_path
from cli.started_sweep import started_sweep
from conf.errors import EXIT_FAILED, EXIT_INTERRUPTED
from conf.units import GIBIBYTE, TERA
from results.render.units import significant

if TYPE_CHECKING:
    from conf.compose.load import Composition
    from conf.types.sites import SlurmSpec
    from launcher.rerun import Rerun
    from sweeps.reading import Reading
    from sweeps.sweep import Sweep

TrialName = Annotated[str, typer.Argument(metavar="TRIAL", help="A trial, or a part of its name; status lists them.")]
COMPARED = (
    ("step_seconds", "step s", 1.0),
    ("model_flops_per_second_per_device", "TFLOPS", TERA),
    ("tokens_per_second", "tokens/s", 1.0),
    ("peak_memory_bytes", "GiB", GIBIBYTE),
    ("final_loss", "final loss", 1.0),
)


def rerun(name: SweepName, trial: TrialName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Run a trial again beside its sweep, with its own code and configuration, and say how the numbers compare."""
    from launcher.rerun import plan_rerun
    from sweeps.log_choice import reading_called
    from sweeps.sweep import Sweep
    from train_core.trial.measurement import Outcome

    folder, composition = started_sweep(name, overrides)
    sweep = Sweep.stored_in(folder)
    chosen = reading_called(sweep.read(), trial)
    planned = plan_rerun(sweep, chosen, _slurm(sweep, composition))
    again = _run(planned)
    document = _document(chosen, again, planned)
    console.print(_table(document))
    console.print(f"Folder: {shown_path(planned.folder.path)}. Both were measured; neither replaces the other.")
    if as_json:
        print_json("rerun", document)
    if again.outcome is not Outcome.COMPLETED:
        raise typer.Exit(EXIT_FAILED)


def _slurm(sweep: Sweep, composition: Composition) -> SlurmSpec | None:
    """The settings with which the sweep was begun, changed as was asked now; None where no Slurm answers."""
    from conf.overrides import Overrides
    from launcher.control.orders import overrides_at_begin
    from launcher.where import compose_for_slurm, slurm_answers
    from sweeps.folder.journal import History

    if not slurm_answers():
        return None
    begun = History.kept_in(sweep.folder).begun
    before = overrides_at_begin(sweep.folder, begun) if begun else Overrides.parse(sweep.record.overrides)
    # The sweep's own overrides may name the sweep, as those with which it was begun do; it is chosen once.
    return compose_for_slurm(before.without({"sweep"}) + composition.overrides).settings.slurm


def _run(planned: Rerun) -> Reading:
    console.print(f"Running {planned.trial.title} again, with {shown_path(planned.code)}")
    if not planned.trial.planned.trainer.is_own:
        console.print("Of the trainer's own program no copy is kept: it runs as it is now.")
    last_line = ""

    def tell(reading: Reading) -> None:
        nonlocal last_line
        step = f", step {reading.num_steps_done}/{reading.num_steps}" if reading.num_steps_done else ""
        line = f"  {reading.outcome}{step}"
        if line != last_line and (console.is_terminal or not step):
            last_line = line
            console.print(line, end="\r" if console.is_terminal else "\n")

    try:
        return planned.run(tell)
    except KeyboardInterrupt:
        console.print(f"\nInterrupted. What there is so far is in {shown_path(planned.folder.path)}.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _document(before: Reading, again: Reading, planned: Rerun) -> dict[str, Any]:
    names = dict.fromkeys([*before.metrics, *again.metrics])
    losses, of_again = _losses(before), _losses(again)
    common = losses.keys() & of_again.keys()  # of one that was interrupted a few steps may not be on record
    return {
        "trial_id": before.name,
        "folder": str(planned.folder.path),
        "code": str(planned.code),
        "outcome_before": before.outcome and before.outcome.value,
        "outcome_again": again.outcome and again.outcome.value,
        "cause_again": again.cause,
        "same_code": before.code == again.code if before.code and again.code else None,
        "same_losses": all(losses[step] == of_again[step] for step in common) if common else None,
        "numbers": {name: _both_measurements(_value(before, name), _value(again, name)) for name, _, _ in COMPARED},
        "metrics": {name: _both_measurements(before.metrics.get(name), again.metrics.get(name)) for name in names},
    }


def _both_measurements(first: float | None, second: float | None) -> dict[str, float | None]:
    ratio = second / first if first and second is not None else None
    return {"measured_before": first, "measured_again": second, "ratio": ratio}


def _value(reading: Reading, name: str) -> float | None:
    """A measured number; of the memory that of the rank which needs most."""
    value = getattr(reading.performance, name) if reading.performance else None
    return max(value, default=None) if isinstance(value, tuple) else value


def _losses(reading: Reading) -> dict[int, float]:
    performance = reading.performance
    return dict(zip(performance.recorded_steps, performance.losses, strict=False)) if performance else {}


def _table(document: dict[str, Any]) -> Table:
    table = Table(title=document["trial_id"], title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("", "before", "again", "again / before"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("outcome", document["outcome_before"] or "", document["outcome_again"] or "", "")
    rows = [(heading, unit, document["numbers"][name]) for name, heading, unit in COMPARED]
    rows += [(name, 1.0, numbers) for name, numbers in document["metrics"].items()]
    for heading, unit, numbers in rows:
        cells = [numbers["measured_before"], numbers["measured_again"]]
        if cells == [None, None]:
            continue
        entries = ["" if value is None else significant(value / unit, 4) for value in cells]
        table.add_row(heading, *entries, "" if numbers["ratio"] is None else f"{numbers['ratio']:.3f}")
    same = {True: "every loss is the same", False: "losses differ", None: ""}[document["same_losses"]]
    changed = "the trainer's code has changed" if document["same_code"] is False else ""
    table.caption = document["cause_again"] or ", ".join(filter(None, (same, changed)))
    table.caption_justify = "left"
    return table
