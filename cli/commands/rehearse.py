"""`trisweep rehearse`: one step of the real trainer at full size, without devices, beside the cost model's numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cli.arguments import AsJson, OverrideTexts, ShowConfig, composition_of, print_config
from cli.commands.plan.command import Name, sweep_and_overrides
from cli.output.console import complaints, console, print_json
from conf.units import count_of


def rehearse(
    name: Name = None, overrides: OverrideTexts = None, cfg: ShowConfig = False, as_json: AsJson = False
) -> None:
    """Rehearse one step of every pipeline stage with the real trainer, at full size, without devices.

    Says what one rank of each stage holds at its fullest moment, computes, sends and receives, as counted, beside what
    the cost model predicts.
    """
    composition = composition_of(*sweep_and_overrides(name, overrides or []))
    if cfg:
        print_config(composition)
        return
    from results.tables.rehearsal_table import comparison, memory_table, predict, work_table
    from train_core.rehearsal.rehearse import rehearse as rehearse_all

    experiment = composition.settings.experiment()
    predicted = predict(experiment)
    with _progress() as on_stage:
        counts = rehearse_all(experiment, on_stage)
    if as_json:
        print_json("rehearsal", comparison(counts, predicted))
        return
    console.print(memory_table(counts, predicted))
    console.print(work_table(counts, predicted))
    ratio = counts.flops / predicted.flops
    rest = "; the others do exactly the same" if counts.num_rehearsed < len(counts.stages) else ""
    number, stages = counts.num_micro_batches, count_of(len(counts.stages), "stage")
    micro_batches = f"{number:,} micro-batch{'' if number == 1 else 'es'}"
    console.print(
        f"{counts.label} on {count_of(counts.world_size, 'rank')}, {micro_batches}:"
        f" {counts.flops:.4e} FLOPs counted, {predicted.flops:.4e} by formula ({ratio:.6g})."
        f" {counts.num_rehearsed} of {stages} rehearsed{rest}. Nothing was run on devices."
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Give a function that tells on stderr how far a rehearsal is: a live line on a terminal, else a line a stage."""
    # On stderr, since stdout may be a JSON document that a program reads.
    begun = time.monotonic()

    def message(done: int, total: int) -> str:
        after = f", {time.monotonic() - begun:.0f} s" if done else ""
        return f"Rehearsed {done} of {count_of(total, 'different stage')}{after}"

    if not complaints.is_terminal:
        yield lambda done, total: complaints.print(message(done, total))
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=complaints, transient=True) as progress:
        task = progress.add_task("Rehearsing", total=None)
        yield lambda done, total: progress.update(task, description=message(done, total))
