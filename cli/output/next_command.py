"""Commands that are printed to be copied: each names the folder that the command before it worked in."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output.console import shown_path
from conf.credentials import has_hidden_variables, without_credentials
from conf.folders import OPTION, given_words, own_folders
from conf.overrides import Overrides

if TYPE_CHECKING:
    from conf.types.sites import TrackingSpec
    from sweeps.sweep import Sweep

DEFAULT_FOLDER = "runs"
PLAIN = re.compile(r"[\w./:+@%-]+", re.ASCII)
"""The values that Hydra reads without quotes."""


def next_command(command: str, sweep: Sweep, *words: str) -> str:
    """`trisweep COMMAND` about the same sweep in the same folder, whatever chose that."""
    record, folder = sweep.record, sweep.folder.path
    cluster = [f"cluster={folder.name.removeprefix(f'{record.name}-')}"] if record.mode == "cluster" else []
    return shlex.join(["trisweep", command, record.name, *words, *cluster, *folder_words(folder.parent)])


def command_by_name(sweep: Sweep, overrides: Overrides, *command: str) -> str:
    """`trisweep COMMAND` about the same sweep, with the overrides of a command that may have named it by its folder."""
    chosen = Overrides.parse(sweep.record.overrides).stated_value("cluster")
    cluster = [f"cluster={chosen}"] if chosen and overrides.stated_value("cluster") is None else []
    own = overrides.without({"output_dir"}).without_choice("sweep").texts
    words = [*own, *cluster, *folder_words(sweep.folder.path.parent)]
    return shlex.join(["trisweep", *command, sweep.record.name, *words])


def begun_command(sweep: Sweep) -> str | None:
    """The `trisweep sweep` command with which the sweep goes on; None where it is not known or not to be shown."""
    from launcher.where import slurm_answers
    from sweeps.folder.journal import History

    begun = History.kept_in(sweep.folder).begun
    if begun is None or any(map(has_hidden_variables, begun.overrides)):
        return None
    overrides = Overrides.parse(begun.overrides)
    own = overrides.without({"output_dir"}).without_choice("sweep").texts
    # A cluster sends a sweep to Slurm, and so does a machine that submits to it, unless this word keeps it here.
    is_kept_here = not begun.on_slurm and (overrides.stated_value("cluster") is not None or slurm_answers())
    named = tuple(map(Path, begun.config_dirs))
    further = [] if named == own_folders() else [word for path in named for word in (OPTION, shown_path(path))]
    words = [*own, *(["--here"] if is_kept_here else []), *further, *folder_words(sweep.folder.path.parent)]
    return shlex.join(["trisweep", "sweep", sweep.record.name, *words])


def same_command(command: str, sweep: str | None, overrides: Overrides, *words: str) -> str:
    """`trisweep COMMAND SWEEP` with the overrides and folders of one's own that the present command was given."""
    named, own = [sweep] if sweep else [], overrides.without_choice("sweep").texts
    return shlex.join(["trisweep", command, *named, *own, *words, *given_words(shown_path)])


def folder_words(output_dir: Path) -> list[str]:
    """The override that chooses an output folder, where a command would not by itself, and `--config-dir`s."""
    own = given_words(shown_path)
    if output_dir.absolute() == Path(DEFAULT_FOLDER).absolute():
        return own
    return [_override("output_dir", shown_path(output_dir)), *own]


def _override(key: str, text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}={text}" if PLAIN.fullmatch(text) else f"{key}='{quoted}'"


def ui_command(output_dir: Path, tracking: TrackingSpec) -> str:
    """The command that opens the MLflow UI on this store, by make where a person has come here by make."""
    uri = without_credentials(tracking.uri or "")
    store = [] if tracking.kind == "sqlite" else [f"tracking={tracking.kind}", _override("tracking.uri", uri)]
    words = [*store, *folder_words(output_dir)]
    if "MAKELEVEL" not in os.environ:
        return shlex.join(["trisweep", "ui", *words])
    return f"make ui {shlex.quote(f'OVERRIDES={shlex.join(words)}')}" if words else "make ui"
