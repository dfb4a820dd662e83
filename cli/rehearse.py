"""`trisweep rehearse`: one step of the real trainer at full size, without devices, beside the cost model's numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import AsJson, OverrideTexts, ShowConfig, composed, print_config
from cli.console import console, print_json
from cli.plan import Name, sweep_and_overrides
from conf.errors import ConfigError, UsageError

FORMATS = ("table", "json")


def rehearse(
    name: Name = None,
    overrides: OverrideTexts = None,
    cfg: ShowConfig = False,
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
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
    if output_format not in FORMATS:
        raise ConfigError("--format", output_format, "is not known", f"Use one of {', '.join(FORMATS)}.")
    from results.rehearsal_table import comparison, memory_table, predict, work_table
    from train_core.rehearsal.rehearse import rehearse as rehearse_all

    experiment = asked.settings.experiment()
    predicted = predict(experiment)
    found = rehearse_all(experiment)
    if as_json or output_format == "json":
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


def dry_run(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """The name that `rehearse` once had."""
    raise UsageError("there is no command `dry-run`", "Use `trisweep rehearse`; `trisweep sweep --dry-run` shows jobs.")
