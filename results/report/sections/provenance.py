"""The origin of the numbers, and how to make them again: code, software, machine, commands, fingerprints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conf.overrides import Override, Overrides, command_line
from conf.units import count_of
from results.render.section import Block, FactList, Heading, NamedTable, Paragraph, ReportSubject, Section
from results.render.table import Table, text
from sweeps.ranking.points import best_reading
from sweeps.reading import TrialReading
from sweeps.trial import JOB_GROUPS, SweepFolder

FOLDER = "provenance"
SHOWN_PACKAGES = ("torch", "numpy", "submitit", "mlflow", "optuna", "nvidia_ml_py", "triton", "flash_attn")
PLACE_KEYS = ("cluster", "output_dir")
"""Overrides without which a command would look for the sweep in another folder."""
OF_JOBS = JOB_GROUPS - {"output_dir"}
MOST_CHARACTERS = 2000


OF_A_FINGERPRINT = "model, cluster, layout, batch, precision, data and training"


@dataclass(frozen=True)
class GivenCommand:
    """One command as it was given, as `launcher.provenance` wrote it then; older files may lack any of it."""

    content: dict[str, Any]

    @property
    def seconds(self) -> float:
        value = self.content.get("time_unix_seconds")
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def command(self) -> str:
        return command_line(self.texts("command"))

    def text(self, name: str) -> str:
        value = self.content.get(name)
        return value if isinstance(value, str) else ""

    def texts(self, name: str) -> list[str]:
        value = self.content.get(name)
        return [str(each) for each in value] if isinstance(value, list) else []

    @property
    def packages(self) -> dict[str, str]:
        value = self.content.get("packages")
        return {str(name): str(version) for name, version in value.items()} if isinstance(value, dict) else {}


def section(subject: ReportSubject) -> Section:
    given = commands_of(subject.sweep.folder)
    blocks = tuple(_blocks(subject, given))
    return Section("provenance", "Provenance, and how to reproduce it", None, _finding(subject, given), blocks)


def commands_of(folder: SweepFolder) -> list[GivenCommand]:
    """The commands on record, first to last; a file that cannot be read is passed over."""
    commands = []
    for path in sorted((folder.path / FOLDER).glob("*.json")):
        try:
            content = json.loads(path.read_text(errors="replace"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            commands.append(GivenCommand(content))
    return sorted(commands, key=lambda each: each.seconds)


def _finding(subject: ReportSubject, given: Sequence[GivenCommand]) -> str:
    commit = given[-1].text("git_sha") if given else subject.sweep.record.git_sha
    last = given[-1] if given else GivenCommand({})
    state = " with changes that were not committed" if last.text("uncommitted_changes") else ""
    where = f", given on {last.text('hostname')}" if last.text("hostname") else ""
    return f"The sweep is of commit `{commit}`{state}{where}; the command below continues it or makes it again."


def _blocks(subject: ReportSubject, given: Sequence[GivenCommand]) -> Iterator[Block]:
    yield Paragraph(f"The sweep: {_code(sweep_command(subject, given))}")
    if best := best_reading(subject.sweep.record, subject.results):
        had = "the code and the configuration" if best.planned.trainer.is_own else "the configuration"
        place = [each for each in _overrides(given) if Override.parse(each).key in PLACE_KEYS]
        again = ["trisweep", "rerun", subject.sweep.record.spec.name, best.trial.trial_id]
        command = command_line([*again, *place, *_config_words(given)])
        yield Paragraph(f"Its best trial once more, with {had} that it had: {_code(command)}")
    if given:
        yield FactList(tuple(_facts(given[-1])))
        if patch := given[-1].text("uncommitted_changes"):
            yield Paragraph(
                f"The commit alone does not make it again: apply `{FOLDER}/{patch}` of the sweep's folder to it, or use"
                " the sweep's own copy in `code`.",
                is_caution=True,
            )
        yield Heading("Commands")
        yield NamedTable("commands", _commands_table(given))
    if table := _trials_table(subject.results):
        yield NamedTable("fingerprints", table, folded_as=f"Fingerprints of {count_of(len(table.rows), 'trial')}")
        are_scripts = all(each.planned.trainer.is_script for each in subject.results if each.experiment)
        what = "the command, its values and seed, devices and cluster" if are_scripts else OF_A_FINGERPRINT
        yield Paragraph(
            f"A fingerprint is of all that changes a measurement: {what}. Equal fingerprints are one experiment, in"
            " whatever sweep.",
            is_note=True,
        )


def sweep_command(subject: ReportSubject, given: Sequence[GivenCommand]) -> str:
    """The command that plans and measures the same points, with what the last command on record overrode."""
    record = subject.sweep.record
    if by_words := [each.command for each in given if " --command" in each.command and _is_remembered(each)]:
        return by_words[-1]
    overrides = _overrides(given) or list(record.overrides)
    return command_line(["trisweep", "sweep", record.spec.name, *overrides, *_config_words(given)])


def job_words(folder: SweepFolder) -> list[str]:
    """The overrides of the last command on record that the sweep's record leaves out, but that of its folder."""
    given = commands_of(folder)
    if given and _is_remembered(given[-1]):
        return []
    return [each for each in _overrides(given) if Override.parse(each).group in OF_JOBS]


def folder_words(folder: SweepFolder) -> list[str]:
    """The words by which a command finds the sweep where the last command on record wrote it."""
    given = commands_of(folder)
    place = [each for each in _overrides(given) if Override.parse(each).key == "output_dir"]
    return [*place, *_config_words(given)]


def _config_words(given: Sequence[GivenCommand]) -> list[str]:
    """Return the `--config-dir`s of the last command, without which the next would not find a sweep of one's own."""
    return given[-1].texts("config_words") if given else []


def _overrides(given: Sequence[GivenCommand]) -> list[str]:
    """Return the overrides of the last command, without the choice of the sweep, which the command itself names."""
    last = given[-1].texts("overrides") if given else []
    return [each for each in last if Override.parse(each).key != "sweep"]


def _is_remembered(given: GivenCommand) -> bool:
    """True of a sweep without a file, which goes on by its name alone."""
    return Overrides.parse(given.texts("overrides")).is_without_file


def _facts(last: GivenCommand) -> Iterator[tuple[str, str]]:
    packages = [f"{name} {last.packages[name]}" for name in SHOWN_PACKAGES if name in last.packages]
    python = " ".join(filter(None, (last.text("python_version"), last.text("python"))))
    recorded = (
        ("commit", last.text("git_sha")),
        ("host", last.text("hostname")),
        ("system", last.text("system")),
        ("Python", python),
        ("packages", ", ".join(packages)),
        ("modules", ", ".join(last.texts("modules"))),
    )
    return ((name, value) for name, value in recorded if value)


def _commands_table(given: Sequence[GivenCommand]) -> Table:
    rows = [
        {
            "when (UTC)": text(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each.seconds))),
            "command": text(_shorten(each.command)),
            "commit": text(each.text("git_sha")),
            "host": text(each.text("hostname")),
        }
        for each in given
    ]
    return Table.of(rows)


def _trials_table(results: Sequence[TrialReading]) -> Table | None:
    """The trials that left something, with the code that each ran."""
    rows = [
        {
            "point" if result.planned.trainer.is_script else "layout": text(result.label),
            "trial": text(result.trial.trial_id),
            "fingerprint": text(result.experiment.fingerprint),
            "commit": text(result.measurement.environment.git_sha if result.measurement.environment else ""),
        }
        for result in results
        if result.experiment and result.measurement
    ]
    return Table.of(rows) if rows else None


def _code(command: str) -> str:
    return f"`{_shorten(command).replace('`', chr(39))}`"


def _shorten(command: str) -> str:
    return command if len(command) <= MOST_CHARACTERS else f"{command[:MOST_CHARACTERS]} ..."
