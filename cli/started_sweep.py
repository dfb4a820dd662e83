"""The sweep that a command is about, once it was started, by its name or its folder; and its state as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.arguments import composition_of, overrides_of
from cli.output.console import print_json
from conf.errors import UsageError
from conf.folders import options
from conf.nearest import listed
from conf.private_files import unreadable
from conf.units import count_of

if TYPE_CHECKING:
    from conf.compose.load import Composition
    from conf.overrides import Overrides
    from sweeps.reading import Reading, TrialReading
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepFolder


MOST_NAMED = 8


def started_sweep(name: str, overrides: Sequence[str] | None) -> tuple[SweepFolder, Composition]:
    """The folder of a sweep that was started, and the configuration of the command.

    The name is a path, a folder of output_dir, or a sweep's name. What was measured can be read by the record alone, so
    that a sweep whose file was renamed or removed is found by the name that it had. Raises UsageError where there is
    none.
    """
    from launcher.where import existing_folder

    if (folder := _folder_at(Path(name))) is None and name in options("sweep"):
        composition = composition_of(name, overrides)
        return existing_folder(composition), composition
    _require_no_output_dir(name)
    composition = composition_of(None, overrides)
    folder = folder or _folder_in(Path(composition.settings.output_dir), name)
    if folder is None and "/" not in name and name not in (".", ".."):
        return existing_folder(composition_of(name, overrides)), composition  # says which names there are
    if folder is None:
        raise UsageError(f"{name} holds no sweep", "Name a folder with a sweep.json, or a sweep that was started.")
    known = folder.read_record().name
    return folder, composition_of(known, overrides) if known in options("sweep") else composition


def further_overrides(overrides: Sequence[str] | None) -> Overrides:
    """The overrides but for the cluster, which chooses the folder and was said by the command that began the sweep."""
    return overrides_of(None, overrides).without_choice("cluster")


def refuse_trials_among(overrides: Sequence[str]) -> None:
    """Raises UsageError for a word that is not an override where trials are named by an option."""
    word = next((text for text in overrides if "=" not in text and not text.startswith(("+", "~"))), None)
    if word is not None:
        raise UsageError(f"{word} is not an override", f"If it names a trial, write --trial {word}.")


def _folder_at(path: Path) -> SweepFolder | None:
    from sweeps.trial import RECORD, SweepFolder

    try:
        return SweepFolder(path.absolute()) if (path / RECORD).is_file() else None
    except PermissionError as error:
        raise unreadable(path / RECORD, error) from None


def _folder_in(output_dir: Path, name: str) -> SweepFolder | None:
    """The folder of that name, else that of the sweep of that name which was planned last."""
    from sweeps.trial import SweepFolder

    folder = _folder_at(output_dir / name)
    return folder if folder is not None or "/" in name else SweepFolder.planned_last(output_dir, name)


def _require_no_output_dir(name: str) -> None:
    from sweeps.trial import RECORD

    if inside := sorted(str(path.parent) for path in Path(name).glob(f"*/{RECORD}")):
        which = inside[0] if len(inside) == 1 else f"one of them: {listed(inside, MOST_NAMED)}"
        raise UsageError(f"{name} is not a sweep, but holds {count_of(len(inside), 'sweep')}", f"Name {which}.")


def state_document(sweep: Sweep, trials: Sequence[TrialReading], trainings: Sequence[Reading]) -> dict[str, Any]:
    """The document of `status`, with the nodes that no further trial is given."""
    from launcher.control.attempts import bad_nodes
    from results.tables.documents import status_document
    from sweeps.folder.journal import History

    history = History.kept_in(sweep.folder)
    return status_document(sweep, trials, trainings, history, {bad.name: bad.cause for bad in bad_nodes(trials)})


def print_state(document: str, folder: SweepFolder, **done: Any) -> None:
    """Print the document of a command that has changed the sweep in this folder, and what it has done."""
    from launcher.slurm.reconcile import reconcile
    from sweeps.sweep import Sweep

    sweep = Sweep.stored_in(folder)
    print_json(document, state_document(sweep, reconcile(sweep.read()), []) | done)
