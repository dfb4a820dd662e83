"""`trisweep calibrate`: measure a cluster, or refine its constants on finished trials, and write its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, complete_sweep, composition_of, overrides_of
from cli.output.console import print_json
from conf.errors import UsageError

if TYPE_CHECKING:
    from conf.compose.load import Composition


def calibrate(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="cluster=NAME, whose file is written; further Hydra overrides."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Write cluster/OUTPUT.yaml and leave NAME's as it is.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes of the Slurm job; 2 unless given.", min=1)] = None,
    here: Annotated[bool, typer.Option("--here", help="Measure this machine even where Slurm is.")] = False,
    from_results: Annotated[
        str | None,
        typer.Option(
            help="Refine the constants on the finished trials of this sweep instead.", autocompletion=complete_sweep
        ),
    ] = None,
    from_csv: Annotated[
        Path | None,
        typer.Option("--from-csv", help="Refine them on the measured rows of this table (docs/estimate.md)."),
    ] = None,
    propose: Annotated[
        str | None,
        typer.Option(help="Name the five points of this sweep to measure first.", autocompletion=complete_sweep),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what devices and links reach, in one job, and write it into the cluster's file.

    With --from-results or --from-csv, refine the constants of the cost model so that it predicts what was measured: a
    sweep's finished trials, or the rows of a table. Five are enough to say much, and one says something; --propose
    SWEEP names the five that would say most, and measures nothing.
    """
    kinds = {"--from-results": from_results, "--from-csv": from_csv, "--propose": propose}
    given = [name for name, value in kinds.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} were given", "Each is a command of its own; do one, then the other.")
    if given:
        _refuse(given[0], {"--nodes": nodes is not None, "--here": here}, "measures")
    if propose is not None:
        _refuse("--propose", {"--output": output is not None}, "writes")
        from cli.commands.calibrate.work import propose as propose_runs

        content = propose_runs(_composition_of(propose, "--propose", overrides))
    elif from_results is not None:
        from calibrate.measured_runs import trials_of_sweep
        from cli.commands.calibrate.work import refine

        trials = trials_of_sweep(_composition_of(from_results, "--from-results", overrides))
        content = refine(trials, output, dry_run=dry_run)
    elif from_csv is not None:
        from calibrate.measured_runs import rows_of_table
        from cli.commands.calibrate.work import refine

        content = refine(rows_of_table(from_csv, _chosen_cluster(overrides)), output, dry_run=dry_run)
    else:
        from cli.commands.calibrate.work import measure_and_write

        content = measure_and_write(overrides_of(None, overrides), output, nodes, here=here, dry_run=dry_run)
    if as_json:
        print_json("calibration", content)


def _composition_of(sweep: str, option: str, overrides: Sequence[str] | None) -> Composition:
    """The configuration of the sweep that an option of this command names.

    Raises ConfigError where there is no such sweep.
    """
    from conf.compose.complaints import require_option

    require_option("sweep", sweep, option)
    return composition_of(sweep, overrides)


def _refuse(kind: str, options: Mapping[str, bool], deed: str) -> None:
    names = [name for name, is_given in options.items() if is_given]
    if names:
        were, them = ("were", "them") if len(names) > 1 else ("was", "it")
        raise UsageError(f"{' and '.join(names)} {were} given, but {kind} {deed} nothing", f"Leave {them} out.")


def _chosen_cluster(texts: Sequence[str] | None) -> str | None:
    """The cluster whose rows of a table are taken; None if none is named."""
    overrides = overrides_of(None, texts)
    other = next((each for each in overrides if each.key != "cluster" or not each.value), None)
    if other is not None:
        problem = f"{other.text} was given with --from-csv, but the rows of a table state their whole configuration"
        raise UsageError(problem, "Leave it out; cluster=NAME alone says whose rows are taken.")
    return overrides.stated_value("cluster")
