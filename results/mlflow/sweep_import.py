"""Put a sweep into MLflow.

Only this module writes to the store, one process at a time, and the folders stay the truth. There is one parent run per
sweep with one child per trial, and one run per long training; they are found again by tags. A run whose content has not
changed since the last import is left alone, so importing twice changes nothing; one that has progressed is brought up
to date.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from conf.credentials import hide_credentials
from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow.last_import import LastImport, StoredRun
from results.mlflow.reachable import remedy_of, require_writable
from results.mlflow.run_content import RunContent, log_sweep_files, log_trial_files, report_digest
from results.mlflow.store import artifact_dir, database_path, flush, journals_of, require_made_here, tracking_uri
from results.mlflow.sweep_content import sweep_runs, training_run
from results.mlflow.trackers import write_beside
from results.mlflow.writer import RunWriter
from sweeps.folder.journal import History
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord
from train_core.trial.atomic import write_atomically

LOCK_WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class ImportSummary:
    """The runs that an import created, updated and left unchanged, the parent included, and where they are."""

    uri: str
    experiment_id: str
    run_id: str
    created: int
    updated: int
    unchanged: int


def import_sweep(
    sweep: Sweep,
    tracking: TrackingSpec,
    output_dir: Path,
    read: Callable[[Sweep], Sequence[TrialReading]] = Sweep.read,
    *,
    anew: bool = False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> ImportSummary:
    """Bring the runs of this sweep up to date with its folder.

    Args:
        read: called once no other import runs, as an older state could undo a newer one.
        anew: delete what the store has of the sweep first.
        tell: is told of how many runs so many are done.

    Raises:
        UsageError: the server does not answer or refuses, or another import holds the store for two minutes.
        DamagedStore: the store was made in another folder.
    """
    with _lock_store(output_dir), _explain_failures(tracking, output_dir):
        sweep_id = _tracking_id(sweep.folder.tracking_id, tracking)
        last = None  # a server would have to be asked for all runs even so
        if tracking.kind == "sqlite":
            last = LastImport.of(sweep, database_path(output_dir), tracking.experiment, sweep_id)
            if last.was_elsewhere:
                require_made_here(tracking, output_dir)
        # What else is written may be asked for after the sweep, and wandb's runs are not while it runs.
        has_others = all(name != "wandb" and (sweep.folder.path / name).exists() for name in tracking.also)
        if last and not anew and has_others and (parent := last.parent_if_all_stored()):
            return _summary_of_no_change(parent, 1 + len(sweep.record.trials), tracking, output_dir)
        results = read(sweep)
        ended = History.kept_in(sweep.folder).why_cut_short([each.outcome for each in results])
        contents = partial(sweep_runs, sweep.record, results, report_digest(sweep.folder), ended)
        writer = RunWriter(tracking, output_dir, sweep_id, last.runs() if last else None, anew=anew)
        done = _write(sweep, results, contents(), writer, tell)
        write_beside(contents, tracking, sweep.folder.path, sweep_id)
        if last:
            last.remember(results, writer.stored)
            flush(database_path(output_dir))
    return done


def _write(
    sweep: Sweep,
    results: Sequence[TrialReading],
    contents: Iterable[RunContent],
    writer: RunWriter,
    tell: Callable[[int, int], None],
) -> ImportSummary:
    """The contents pass by one after the other, as thousands would not fit into memory."""
    keys, written = set[str](), dict[str, str]()  # a later stage is the child of what it follows
    for content, result in zip(contents, (None, *results), strict=True):
        keys.add(content.key)
        if result is None:
            parent = writer.write(content, None, partial(log_sweep_files, folder=sweep.folder))
            continue
        above = written.get(result.trial.after, parent)
        written[result.name] = writer.write(content, above, partial(log_trial_files, reading=result))
        tell(len(written), len(results))
    writer.leave(keys)
    return ImportSummary(writer.uri, writer.experiment_id, parent, **writer.counts)


def import_training(
    training: Reading,
    record: SweepRecord,
    from_trial: str,
    tracking: TrackingSpec,
    output_dir: Path,
    *,
    anew: bool = False,
) -> ImportSummary:
    """Bring the run of a long training up to date with its folder: losses, rates, and how it ended.

    Raises:
        UsageError: as `import_sweep`.
    """
    with _lock_store(output_dir), _explain_failures(tracking, output_dir):
        content = training_run(record, training, from_trial)
        training_id = _tracking_id(training.folder.tracking_id, tracking)
        write_beside(lambda: [content], tracking, training.folder.path, training_id)
        writer = RunWriter(tracking, output_dir, training_id, anew=anew)
        run_id = writer.write(content, None, partial(log_trial_files, reading=training))
        return ImportSummary(writer.uri, writer.experiment_id, run_id, **writer.counts)


def move_store_aside(output_dir: Path) -> list[Path]:
    """Rename the SQLite store and its artifacts, if they are there; their new paths. Journals go with their store."""
    now, database = int(time.time()), database_path(output_dir)
    with _lock_store(output_dir):
        for end, journal in journals_of(database).items():
            journal.rename(database.with_name(f"{database.name}.old-{now}{end}"))
        paths = (database, artifact_dir(output_dir))
        return [path.rename(path.with_name(f"{path.name}.old-{now}")) for path in paths if path.exists()]


def _summary_of_no_change(first: StoredRun, num_runs: int, tracking: TrackingSpec, output_dir: Path) -> ImportSummary:
    uri = tracking_uri(tracking, output_dir)
    return ImportSummary(uri, first.experiment_id, first.run_id, created=0, updated=0, unchanged=num_runs)


def _tracking_id(path: Path, tracking: TrackingSpec) -> str:
    """The name in MLflow of what the folder holds, made once and kept there; a copy of a folder gets one of its own."""
    # A path would not do: folders are moved, and two users may have sweeps of one name on one server.
    here = path.parent.resolve()
    tracking_id, home = _stored_id(path)
    if tracking_id and home == here:
        return tracking_id
    # A copy of the whole output folder has a store of its own, where nothing else bears the name.
    shares_store = tracking.kind != "sqlite" or (home is not None and home.parent == here.parent)
    is_copy = shares_store and home is not None and _stored_id(home / path.name)[0] == tracking_id
    if not tracking_id or is_copy:
        tracking_id = uuid.uuid4().hex
    write_atomically(path, f"{tracking_id}\n{here}\n")
    return tracking_id


def _stored_id(path: Path) -> tuple[str, Path | None]:
    """The name that a folder bears in MLflow, and where the folder was when it was given; empty where it has none."""
    try:
        tracking_id, *home = path.read_text().splitlines()
    except (OSError, ValueError):
        return "", None
    return tracking_id, Path(home[0]) if home else None


@contextmanager
def _lock_store(output_dir: Path) -> Iterator[None]:
    """Hold the store's lock: several processes that open an empty SQLite store at once destroy it."""
    output_dir.mkdir(parents=True, exist_ok=True)
    lock = output_dir / "mlflow.lock"
    require_writable(lock)
    try:
        with FileLock(lock, timeout=LOCK_WAIT_SECONDS):
            yield
    except Timeout:
        raise UsageError(f"Another import into MLflow holds {lock}", "Wait for it to end, then import again.") from None


@contextmanager
def _explain_failures(tracking: TrackingSpec, output_dir: Path) -> Iterator[None]:
    """Turn what MLflow raises into one message; its own traceback goes to the debug log."""
    try:
        yield
    except Exception as error:
        # Only here, where there is an error: importing mlflow costs 2 s, and must not precede the quiet settings.
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        if not isinstance(error, MlflowException | SQLAlchemyError | OSError):
            raise
        logging.getLogger(__name__).debug("import into MLflow failed", exc_info=True)
        first_line = hide_credentials(str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"tracking.kind = {tracking.kind!r}: MLflow refused the import ({first_line[:300]})",
            remedy_of(str(error), tracking_uri(tracking, output_dir))
            or "The sweep's folders keep everything: import again once the store works, or move a damaged store away.",
        ) from error
