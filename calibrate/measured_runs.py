"""The sweep whose finished trials say something about a cluster, and rows of a table that somebody measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from calibrate.refit_cluster import FinishedTrial, finished_trials
from conf.compose.load import Composition, load_cluster
from conf.errors import ConfigError, TrisweepError, UsageError
from conf.types.cluster_spec import ClusterSpec
from conf.units import count_of
from launcher.where import existing_folder
from results.analysis.score import comparison
from sweeps.sweep import Sweep
from sweeps.table.clusters import cluster_of
from sweeps.table.prices import PricedRow, Record, price, read_table, unread_sentence
from sweeps.trial import SweepFolder


@dataclass(frozen=True)
class Evidence:
    """The measurements that constants are fitted to: trials or rows of an origin, such as `sweep 175b`."""

    cluster: ClusterSpec
    trials: Sequence[FinishedTrial]
    kind: str
    origin: str
    machines: str
    notes: Sequence[str] = ()

    @property
    def of_kind(self) -> str:
        """The number of measurements and their kind: `5 rows`, `1 trial`."""
        number = sum(trial.counts for trial in self.trials)
        return f"{number} {self.kind if number != 1 else self.kind.removesuffix('s')}"

    @property
    def in_words(self) -> str:
        return f"{self.of_kind} of {self.origin}"


def trials_of_sweep(composition: Composition) -> Evidence:
    """The finished trials of a sweep; raises UsageError where there is no such sweep, or no trial of it has ended."""
    sweep, name = _measured_sweep(composition)
    cluster = load_cluster(name)
    trials = finished_trials(sweep, cluster)
    origin = f"sweep {composition.overrides.stated_value('sweep')}"
    counted = [trial.environment for trial in trials if trial.counts and trial.environment]
    hosts = sorted({it.hostname for it in counted})
    versions = sorted({f"torch {it.torch_version}, Python {it.python_version}, {it.backend}" for it in counted})
    machines = f"measured on {', '.join(hosts)} with {'; '.join(versions)}"
    return Evidence(cluster, trials, "trials", origin, machines)


def _measured_sweep(composition: Composition) -> tuple[Sweep, str]:
    """The sweep whose trials ran on the chosen cluster, else the one that was planned last, and that cluster."""
    settings, chosen = composition.settings, composition.overrides.stated_value("cluster")
    if chosen is None:
        return _measured_sweep_in(existing_folder(composition))
    assert settings.sweep is not None
    root, name = Path(settings.output_dir).absolute(), settings.sweep.name
    # Folders are named for people: of a proxy only the record says on which cluster it ran.
    sweeps: list[tuple[Sweep, str]] = []
    unreadable: list[TrisweepError] = []
    for folder in SweepFolder.started_in(root, f"{name}-*"):
        try:
            sweeps.append(_measured_sweep_in(folder))
        except TrisweepError as error:  # of a folder that may be another sweep's
            unreadable.append(error)
    on_it = [(sweep, cluster) for sweep, cluster in sweeps if (sweep.record.name, cluster) == (name, chosen)]
    if not on_it:
        if unreadable:
            raise unreadable[0]
        problem = f"No sweep {name} with trials on cluster {chosen} has been started in {root}"
        raise UsageError(problem, f"Start it with `trisweep sweep {name} cluster={chosen}`.")
    return max(on_it, key=lambda each: (each[0].folder.is_own_of(each[0].record), each[0].folder.time_of_plan()))


def _measured_sweep_in(folder: SweepFolder) -> tuple[Sweep, str]:
    """The sweep, and the cluster on which its trials ran, which for a proxy is not the sweep's own."""
    sweep = Sweep.stored_in(folder)
    experiment = next((trial.experiment for trial in sweep.record.trials if trial.experiment), None)
    if experiment is None:
        raise UsageError(f"{folder.path} has no trial that can exist", "Start another sweep.")
    return sweep, experiment.cluster.name


def rows_of_table(path: Path, cluster: str | None) -> Evidence:
    """The rows of a table of configurations that hold a measured step.

    Args:
        cluster: the one whose rows are taken, and those of its device that name none; None takes the only one that the
            table names.

    Raises:
        UsageError: there is no such table, none of its rows can be used, or it is not said which cluster's are meant.
    """
    table = read_table(path)
    records = table.records if cluster is None else [_of_cluster(each, cluster) for each in table.records]
    (usable, refused), unread = _trials(price(records)), unread_sentence(table.columns)
    clusters = sorted({name for name, _ in usable})
    if not usable:
        first = refused[0] if refused else unread
        because = f": {first.removesuffix('.')}" if first else ""
        problem = f"No row of {path} holds a measured step that can be priced{because}"
        raise UsageError(problem, "Give iter_time_s, or a rate, in addition to the columns of docs/estimate.md.")
    if cluster is None and len(clusters) > 1:
        raise UsageError(f"{path} has rows of {', '.join(clusters)}", "Name one of them, such as cluster=NAME.")
    chosen = cluster or clusters[0]
    trials = tuple(trial for name, trial in usable if name == chosen)
    if not trials:
        problem = f"No row of {path} is of cluster {chosen}; its rows are of {', '.join(clusters)}"
        raise UsageError(problem, "Name the cluster in a column `cluster`, or choose one of those.")
    others = len(usable) - len(trials)
    notes = [f"Left out: {count_of(others, 'row')} of other clusters"] if others else []
    if refused:
        notes.append(f"Left out: {count_of(len(refused), 'row')}, the first because of {refused[0].removesuffix('.')}")
    if unread is not None:
        notes.append(unread.removesuffix("."))
    return Evidence(load_cluster(chosen), trials, "rows", path.name, "measured where the table says", notes)


def _of_cluster(record: Record, cluster: str) -> Record:
    """The row with the chosen cluster as its own, where it names none and its device is that of the chosen one."""
    row = record.row
    named = {**row, "cluster": cluster}
    if row.get("cluster", "").strip():
        return record
    try:
        cluster_of(named)
    except ConfigError:  # it has another device, or cannot be priced at all
        return record
    return replace(record, columns=tuple(named), cells=tuple(named.values()))


def _trials(rows: Sequence[PricedRow]) -> tuple[list[tuple[str, FinishedTrial]], list[str]]:
    """The rows that can be used, each with its cluster, and why others cannot."""
    usable, refused = [], []
    for row in rows:
        line = row.record.line
        try:
            compared = comparison(row)
        except ConfigError as error:
            refused.append(f"line {line}: {error}")
            continue
        if row.prediction is None:
            refused.append(f"line {line}: {row.reason}")
        elif compared is not None and compared.step_seconds is not None:
            configuration, seconds = row.prediction.configuration, compared.step_seconds
            setup, kind = configuration.setup, configuration.implementation
            trial = FinishedTrial(setup.label, setup, seconds, None, True, kind, configuration.practice)
            usable.append((setup.cluster.name, trial))
    return usable, refused
