"""`trisweep diagnose`: what a run of yours was, what it should take, why it does not, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson
from cli.output.console import complaints, console, print_json, print_verbatim
from conf.errors import EXIT_FAILED, UsageError
from conf.overrides import Override

if TYPE_CHECKING:
    from diagnose.diagnosis import Diagnosis
    from diagnose.difference import RunDifference
    from diagnose.runs import UserRun

START = ", start "
"""What readers put behind a file's name for each further start in it."""
MOST_SHOWN, OTHER_SPEED = 4, 0.05

RunFiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        help="Logs, launch scripts and configuration files of a run, or - for stdin; and what they do not say, as in"
        " cluster=dgx-h100 model_from=config.json parallel.tensor_parallel_size=8.",
    ),
]


def diagnose(
    run: RunFiles = None,
    *,
    row: Annotated[bool, typer.Option("--row", help="Print the runs as a table for `trisweep estimate`.")] = False,
    calibrate: Annotated[
        str | None, typer.Option("--calibrate", metavar="NAME", help="Write cluster/NAME.yaml, refined on these runs.")
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            "--sweep", metavar="FILE", help="Write a sweep that measures the proposals with your own command."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FOLDER", help="Write the answer as a page and as Markdown.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a run of yours is slow, why, and what to change.

    Exit code 1: no file has a step or a plan.
    """
    from diagnose.difference import difference

    diagnoses = diagnoses_of(run or [])
    differences = [difference(one, other) for one, other in pairwise(diagnoses)]
    if row:
        from cli.commands.diagnose.written import row_text

        print_verbatim(row_text(diagnoses).rstrip("\n"))
    elif as_json:
        from cli.commands.diagnose.document import diagnosis_document

        print_json("diagnosis", diagnosis_document(diagnoses, differences))
    else:
        _show(diagnoses, differences)
    if report is not None:
        from cli.commands.diagnose.page import write_page

        for path in write_page(diagnoses, differences, report):
            complaints.print(f"Written: {path}.")
    _write(diagnoses, calibrate, sweep)
    if not any(each.measured or each.understood.predicted for each in diagnoses):
        raise typer.Exit(EXIT_FAILED)


def diagnoses_of(words: Sequence[str]) -> list[Diagnosis]:
    """The diagnoses of the runs in these files, of which overrides among the words say what the files do not.

    Raises UsageError where no file is named or one cannot be read, and ConfigError for an override that is wrong.
    """
    from diagnose.diagnosis import diagnose as diagnosis_of
    from diagnose.readers import read_runs

    files, overrides = _files_and_overrides(words)
    return [diagnosis_of(each) for each in _told(read_runs(files, overrides))]


def _files_and_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that name files, and those that say something; a file whose name holds `=` is a file."""
    overrides = [word for word in words if Override.parse(word).value is not None and not Path(word).exists()]
    files = [word for word in words if word not in overrides]
    if not files:
        remedy = "Name the log that it printed, or - for stdin: trisweep diagnose run.log cluster=dgx-h100."
        raise UsageError("No file of a run was named", remedy)
    return files, overrides


def _told(runs: Sequence[UserRun]) -> list[UserRun]:
    """The runs that are diagnosed: of starts of one configuration that with most steps, and no more than a few."""
    from conf.grouped import grouped
    from conf.units import count_of

    kept = []
    for starts in grouped(
        runs, lambda each: (each.name.partition(START)[0], tuple(sorted(each.row().items())))
    ).values():
        longest = max(starts, key=lambda each: len(each.steps))
        found = [each for each in starts if each is longest or _is_another_run(each, longest)]
        kept += found
        if len(starts) > len(found):
            complaints.print(f"{count_of(len(starts), 'start')} of one configuration: {longest.name} has most steps.")
    kept = [each for each in kept if each.steps] or kept
    if len(kept) > MOST_SHOWN:
        complaints.print(f"{len(kept)} runs were found; the {MOST_SHOWN} with most steps are diagnosed.")
        most = sorted(kept, key=lambda each: -len(each.steps))[:MOST_SHOWN]
        kept = [each for each in kept if each in most]
    return kept


def _is_another_run(start: UserRun, longest: UserRun) -> bool:
    """True of a start that takes the same steps at another speed: one of two runs whose logs are in one file."""
    from diagnose.measured import measured

    one, other = measured(start), measured(longest)
    if one is None or other is None or len(start.steps) < 2:
        return False
    is_again = start.steps[0].number == longest.steps[0].number
    return is_again and abs(one.step_seconds / other.step_seconds - 1) > OTHER_SPEED


def _show(diagnoses: Sequence[Diagnosis], differences: Sequence[RunDifference]) -> None:
    from cli.commands.diagnose.answer import difference_section, print_diagnosis

    for each in diagnoses:
        if len(diagnoses) > 1:
            console.print()
            console.rule(each.run.name, align="left")
        print_diagnosis(each)
    for difference in differences:
        difference_section(difference).show()


def _write(diagnoses: Sequence[Diagnosis], calibrate: str | None, sweep: Path | None) -> None:
    if sweep is not None:
        from cli.commands.diagnose.written import write_sweep

        write_sweep(diagnoses[-1], sweep)
        folder = sweep.absolute().parent.parent
        console.print(f"Written: {sweep}. Look at it with `trisweep plan {sweep.stem} --config-dir {folder}`.")
    if calibrate is not None:
        from cli.commands.diagnose.written import calibrate_on

        calibrate_on(diagnoses, calibrate)
