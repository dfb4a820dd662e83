"""Commands that are printed to be copied: each names the folder that the command before it worked in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output.console import shown_path
from conf.credentials import has_hidden_variables, without_credentials
from conf.folders import OPTION, given_words, options, own_folders
from conf.overrides import Overrides, command_line, override_text, shell_word

if TYPE_CHECKING:
    from conf.types.sites import TrackingSpec
    from sweeps.sweep import Sweep

DEFAULT_FOLDER = "runs"


def next_command(command: str, sweep: Sweep, *words: str) -> str:
    """`trisweep COMMAND` about the same sweep in the same folder, whatever chose that."""
    record, folder = sweep.record, sweep.folder.path
    cluster = [f"cluster={folder.name.removeprefix(f'{record.name}-')}"] if record.mode == "cluster" else []
    return command_line(["trisweep", command, record.name, *words, *cluster, *folder_words(folder.parent)])


def command_by_name(sweep: Sweep, overrides: Overrides, *command: str) -> str:
    """`trisweep COMMAND` about the same sweep, with the overrides of a command that may have named it by its folder."""
    chosen = Overrides.parse(sweep.record.overrides).stated_value("cluster")
    cluster = [f"cluster={chosen}"] if chosen and overrides.stated_value("cluster") is None else []
    own = () if overrides.is_without_file else overrides.without({"output_dir"}).without_choice("sweep").texts
    words = [*own, *cluster, *folder_words(sweep.folder.path.parent)]
    return command_line(["trisweep", *command, sweep.record.name, *words])


def begun_command(sweep: Sweep) -> str | None:
    """The `trisweep sweep` command with which the sweep goes on; None where it is not known or not to be shown."""
    from launcher.where import slurm_answers
    from sweeps.folder.journal import History

    begun = History.kept_in(sweep.folder).begun
    if begun is None or any(map(has_hidden_variables, begun.overrides)):
        return None
    overrides = Overrides.parse(begun.overrides)
    # A sweep without a file remembers what it was begun with.
    own = () if overrides.is_without_file else overrides.without({"output_dir"}).without_choice("sweep").texts
    # A cluster sends a sweep to Slurm, and so does a machine that submits to it, unless this word keeps it here.
    is_one_of_slurms = sweep.folder.path.name.removeprefix(f"{sweep.record.name}-") in options("slurm")
    goes_to_slurm = is_one_of_slurms or overrides.stated_value("cluster") is not None or slurm_answers()
    is_kept_here = not begun.on_slurm and goes_to_slurm
    named = tuple(map(Path, begun.config_dirs))
    further = [] if named == own_folders() else [word for path in named for word in (OPTION, shown_path(path))]
    words = [*own, *(["--here"] if is_kept_here else []), *further, *folder_words(sweep.folder.path.parent)]
    return command_line(["trisweep", "sweep", sweep.record.name, *words])


def same_command(command: str, sweep: str | None, overrides: Overrides, *words: str) -> str:
    """`trisweep COMMAND SWEEP` with the overrides and folders of one's own that the present command was given."""
    named, own = [sweep] if sweep else [], overrides.without_choice("sweep").words
    if overrides.is_without_file:  # the sweep remembers the others
        own = overrides.of({"output_dir"}).texts
    return command_line(["trisweep", command, *named, *own, *words, *given_words(shown_path)])


def folder_words(output_dir: Path) -> list[str]:
    """The override that chooses an output folder, where a command would not by itself, and `--config-dir`s."""
    own = given_words(shown_path)
    if output_dir.absolute() == Path(DEFAULT_FOLDER).absolute():
        return own
    return [override_text("output_dir", shown_path(output_dir)), *own]


def ui_command(output_dir: Path, tracking: TrackingSpec) -> str:
    """The command that opens the MLflow UI on this store, by make where a person has come here by make."""
    uri = without_credentials(tracking.uri or "")
    store = [] if tracking.kind == "sqlite" else [f"tracking={tracking.kind}", override_text("tracking.uri", uri)]
    words = [*store, *folder_words(output_dir)]
    if "MAKELEVEL" not in os.environ:
        return command_line(["trisweep", "ui", *words])
    return f"make ui {shell_word(f'OVERRIDES={command_line(words)}')}" if words else "make ui"
