"""`trisweep rehearse`: one step of the real trainer at full size, without devices, beside the cost model's numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cli.command_line.arguments import AsJson, OverrideTexts, ShowConfig, composed, print_config
from cli.commands.plan.command import Name, sweep_and_overrides
from cli.output.console import complaints, console, counted, print_json


def rehearse(
    name: Name = None,
    overrides: OverrideTexts = None,
    cfg: ShowConfig = False,
    as_json: AsJson = False,
) -> None:
    """Rehearse one step of every pipeline stage with the real trainer, at full size, without devices.

    Says what one rank of each stage holds at its fullest moment, computes, sends and receives, as counted, beside what
    the cost model predicts.
    """
    asked = composed(*sweep_and_overrides(name, overrides or []))
    if cfg:
        print_config(asked)
        return
    from results.terminal.rehearsal_table import comparison, memory_table, predict, work_table
    from train_core.rehearsal.rehearse import rehearse as rehearse_all

    experiment = asked.settings.experiment()
    predicted = predict(experiment)
    with _progress() as on_stage:
        found = rehearse_all(experiment, on_stage)
    if as_json:
        print_json("rehearsal", comparison(found, predicted))
        return
    console.print(memory_table(found, predicted))
    console.print(work_table(found, predicted))
    ratio = found.flops / predicted.flops
    rest = "; the others do exactly the same" if found.num_rehearsed < len(found.stages) else ""
    console.print(
        f"{found.label} on {found.world_size:,} ranks, {found.num_micro_batches:,} micro-batches: {found.flops:.4e}"
        f" FLOPs counted, {predicted.flops:.4e} by formula ({ratio:.6g}). {found.num_rehearsed} of {len(found.stages)}"
        f" stages rehearsed{rest}. Nothing was run on devices."
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Give a function that tells on stderr how far a rehearsal is: a live line on a terminal, else a line a stage."""
    begun = time.monotonic()

    def told(done: int, total: int) -> str:
        after = f", {time.monotonic() - begun:.0f} s" if done else ""
        return f"Rehearsed {done} of {counted(total, 'different stage')}{after}"

    if not complaints.is_terminal:
        yield lambda done, total: complaints.print(told(done, total))
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=complaints, transient=True) as progress:
        task = progress.add_task("Rehearsing", total=None)
        yield lambda done, total: progress.update(task, description=told(done, total))
