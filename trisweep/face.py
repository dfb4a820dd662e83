"""The functions of the Python face. The commands do the same with the same functions, and print what these return."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from conf.errors import EXIT_INTERRUPTED
from conf.errors import ConfigError as ConfigError
from conf.errors import InfeasiblePlan as InfeasiblePlan
from conf.errors import TrisweepError as TrisweepError
from conf.errors import UsageError as UsageError
from conf.folders import further_folders
from conf.overrides import override_text, value_text
from trisweep.rows import DiagnosedRun, MeasuredTrial, PredictedPlan, PredictedPlans, RankedPoint, SweepResults

if TYPE_CHECKING:
    import pandas as pd

    from conf.compose.load import Composition
    from sweeps.trial import SweepFolder

Numbers = int | str | Sequence[int]


def plan(
    *words: str,
    devices: Numbers | None = None,
    clusters: Sequence[str] = (),
    objective: Literal["time", "cost", "energy", "device-hours"] | None = None,
    tokens: float | None = None,
    steps: int | None = None,
    budget: float | None = None,
    deadline: float | None = None,
    headroom: str | None = None,
    implementation: str | None = None,
    top: int | None = None,
    flat: bool = False,
    search: bool = False,
    config_dirs: Iterable[str | Path] = (),
    **choices: object,
) -> PredictedPlans:
    """Predict the points of a sweep on paper, or search all plans of a model for the best, as `trisweep plan` does.

    Args:
        words: as the command takes them: a sweep's name first, then overrides such as `batch.micro_batch_size=2`.
        devices: how many devices: 512, [256, 512], "64-512" or "all"; clusters: choose among these.
        tokens, steps, budget, deadline: of the whole training; the budget in dollars, the deadline in hours.
        headroom: memory that plans leave free, such as "6GiB"; without it, plans are those that are 90 % likely to fit.
        implementation: the trainer to price for, such as "megatron-lm".
        top: so many plans are returned, 10 unless given: the best of each family (sizes, devices and cluster), or with
            `flat` the best whatever their families.
        search: search all plans; every argument above does, too, and so does leaving out the sweep.
        config_dirs: folders with your own clusters, models and sweeps.
        choices: groups of the configuration, such as model="gpt-175b", cluster="frontier", trainer="megatron-lm".

    Raises:
        ConfigError: a value is unknown or wrong; InfeasiblePlan: no plan fits.
        UsageError: nothing to plan was named.
    """
    from cli.arguments import composition_of
    from cli.commands.plan.command import asked_composition, is_search, sweep_and_overrides
    from cli.commands.plan.options import SearchOptions

    options = SearchOptions(
        search=search,
        objective=objective,
        budget=budget,
        deadline=deadline,
        tokens=None if tokens is None else round(tokens),
        steps=steps,
        devices=_in_words(devices),
        clusters=",".join(clusters) or None,
        implementation=implementation,
        top=top,
        flat=flat,
        headroom=headroom,
    )
    with further_folders(config_dirs):
        texts = [*words, *(override_text(key, value) for key, value in choices.items())]
        name, overrides = sweep_and_overrides(texts[0] if texts else None, texts[1:])
        composition = asked_composition(composition_of(name, overrides), options)
        return _searched(composition, options) if is_search(composition, options) else _points(composition)


def _in_words(devices: Numbers | None) -> str | None:
    if devices is None or isinstance(devices, str):
        return devices
    return str(devices) if isinstance(devices, int) else ",".join(map(str, devices))


def _searched(composition: Composition, options: Any) -> PredictedPlans:
    from cli.commands.plan.search import request_of, search
    from results.tables.search_rows import judged_row, layout, overrides

    request = request_of(composition, options)
    answer = search(composition, options, request)
    rows = [(each.candidate, judged_row(each, answer.training)) for each in answer.shown]
    return PredictedPlans([PredictedPlan.of(layout(one), row, "", overrides(one, request)) for one, row in rows])


def _points(composition: Composition) -> PredictedPlans:
    from results.analysis.findings.ranking import by_prediction
    from results.tables.trial_rows import plan_rows
    from sweeps.points.plan import plan_sweep

    record = plan_sweep(composition, proxy=False, git_sha="")
    rows = {row["trial_id"]: row for row in plan_rows(record)}
    ranked = [trial for trial in by_prediction(record.plan) if trial.experiment]
    ordered = [*ranked, *(trial for trial in record.plan if trial.experiment is None)]
    return PredictedPlans(
        [
            PredictedPlan.of(
                record.plan_label_of(trial),
                rows[trial.trial_id],
                trial.infeasible_reason or "",
                [override_text(key, value) for key, value in trial.point.items()],
            )
            for trial in sorted(ordered, key=lambda trial: trial.infeasible_reason is not None)
        ]
    )


def estimate(
    table: str | Path | pd.DataFrame | Iterable[Mapping[str, object]], *, implementation: str | None = None
) -> PredictedPlans:
    """Predict time and memory of every row of a table, in its order, as `trisweep estimate` does.

    Args:
        table: a CSV file, a frame of pandas, or mappings, with the columns of docs/estimate.md, such as `gpu`,
            `num_gpus`, `layers`, `hidden`, `heads`, `seq`, `global_batch`, `micro_batch`, `tp`, `pp`.
        implementation: the trainer to price for in rows that name none.

    Raises:
        UsageError: columns are missing, or the file cannot be read. A row that cannot be priced has a `why_not`.
    """
    from sweeps.planner.request import implementation_called
    from sweeps.table.prices import price, read_table, table_of

    if implementation is not None:
        implementation_called(implementation)
    if isinstance(table, str | Path):
        records = read_table(Path(table)).records
    else:
        rows: Any = table.to_dict("records") if hasattr(table, "to_dict") else table
        records = table_of(rows).records
    return PredictedPlans([_of_row(row) for row in price(records, implementation)])


def _of_row(row: Any) -> PredictedPlan:
    if row.prediction is None:
        return PredictedPlan.of("", row.record.row, row.reason)
    predicted, setup = row.prediction.estimate, row.prediction.configuration.setup
    interval, knows_memory = row.prediction.interval, row.prediction.configuration.models_memory
    memory = row.prediction.memory_bytes if knows_memory else None
    lacks = knows_memory and not row.prediction.fits
    columns = {
        **row.record.row,
        "world_size": setup.parallel.world_size,
        "predicted_step_seconds": predicted.step_seconds,
        "predicted_low_step_seconds": interval.low_seconds,
        "predicted_high_step_seconds": interval.high_seconds,
        "predicted_model_flops_per_second_per_device": predicted.model_flops_per_second_per_device,
        "predicted_model_flops_utilization": predicted.model_flops_utilization,
        "predicted_peak_memory_bytes": memory,
        "memory_capacity_bytes": predicted.memory_capacity_bytes,
        "outside": "; ".join(interval.outside),
    }
    return PredictedPlan.of(setup.label, columns, "lacks memory" if lacks else "")


def diagnose(*files: str | Path, config_dirs: Iterable[str | Path] = (), **choices: object) -> list[DiagnosedRun]:
    """What runs of yours were, what they should take, why they do not, and what to change, as `trisweep diagnose`.

    Args:
        files: logs, launch scripts and configuration files; words such as "parallel.tensor_parallel_size=8" too.
        config_dirs: folders with your own clusters and models.
        choices: what no file says, such as cluster="dgx-h100".

    Raises UsageError where no file is named, or one cannot be read.
    """
    from cli.commands.diagnose.command import diagnoses_of
    from cli.commands.diagnose.document import diagnosis_document

    with further_folders(config_dirs):
        words = [*map(str, files), *(override_text(key, value) for key, value in choices.items())]
        runs = diagnosis_document(diagnoses_of(words), [])["runs"]
    return [
        DiagnosedRun(
            row["name"],
            row["verdict"],
            row["measured_step_seconds"],
            row["predicted_step_seconds"],
            row["predicted_low_step_seconds"],
            row["predicted_high_step_seconds"],
            tuple(row["suspects"]),
            tuple(row["proposals"]),
            row,
        )
        for row in runs
    ]


def sweep(
    *words: str,
    command: str | None = None,
    objective: str | Sequence[str] = (),
    maximize: bool = False,
    trials: int | None = None,
    here: bool = False,
    retry_failed: bool = False,
    remeasure: bool = False,
    quiet: bool = False,
    config_dirs: Iterable[str | Path] = (),
    **choices: object,
) -> SweepResults:
    """Plan, measure and report, as `trisweep sweep` does: through Slurm with cluster="NAME", else on this machine.

    The same call goes on with a sweep that was interrupted. Through Slurm it returns once the jobs are submitted, and
    `load` tells later how they stand.

    Args:
        words: as the command takes them: a sweep's name first, then overrides such as `batch.micro_batch_size=2`.
        command: sweep this program without a file, such as "python fit.py --lr {lr}"; the values of its names in
            braces are words or keywords, such as lr="1e-4..1e-1:log", batch=[4, 8].
        objective: what is sought, the lowest unless `maximize`: "loss", or any name that the program prints.
        trials: at most so many.
        here: measure on this machine even where Slurm is.
        retry_failed: run again what failed or timed out.
        remeasure: measure again what is measured; earlier runs stay.
        quiet: print nothing but errors.
        config_dirs: folders with your own clusters, models and sweeps.
        choices: groups of the configuration, such as cluster="frontier", search="bayes".

    Raises:
        ConfigError, UsageError: the request is wrong, and nothing was started.
        KeyboardInterrupt: it was interrupted; what is measured is kept.
    """
    import typer

    from cli.commands.sweep.command import asked_overrides
    from cli.commands.sweep.run import run_sweep
    from launcher.where import choose_place

    with further_folders(config_dirs), _silence(quiet):
        said = _values_of_script(choices) if command else [override_text(*choice) for choice in choices.items()]
        sought = [objective] if isinstance(objective, str) else list(objective)
        own = asked_overrides([*words, *said], command, sought, trials, maximize=maximize)
        folder = choose_place(own, here=here, dry_run=False).folder
        try:
            run_sweep(own, dry_run=False, here=here, retry_failed=retry_failed, remeasure=remeasure, as_json=False)
        except typer.Exit as ended:  # where nothing was measured, the trials say why
            if ended.exit_code == EXIT_INTERRUPTED:
                raise KeyboardInterrupt from None
        return _results(folder)


def _values_of_script(choices: Mapping[str, object]) -> list[str]:
    """The words of the command line for a script's values, in which a list stands without brackets."""
    lists = {name: value if isinstance(value, list | tuple) else [value] for name, value in choices.items()}
    return [f"{name}={','.join(_word(each) for each in values)}" for name, values in lists.items()]


def _word(value: object) -> str:
    return value if isinstance(value, str) else value_text(value)


@contextmanager
def _silence(quiet: bool) -> Iterator[None]:
    from cli.output.console import console

    before, console.quiet = console.quiet, quiet
    try:
        yield
    finally:
        console.quiet = before


def load(sweep: str | Path, *, config_dirs: Iterable[str | Path] = ()) -> SweepResults:
    """What a sweep has measured so far, by its folder such as `runs/175b-proxy`, or by its name.

    Raises UsageError where there is no such sweep, or its record cannot be read.
    """
    from cli.started_sweep import started_sweep

    with further_folders(config_dirs):
        return _results(started_sweep(str(sweep), [])[0])


def _results(folder: SweepFolder) -> SweepResults:
    from conf.types.sweep_spec import figure_name
    from launcher.slurm.reconcile import reconcile
    from results.tables.sweep_tables import ranking_table
    from results.tables.trial_rows import collected
    from sweeps.ranking.points import places, sought_points
    from sweeps.sweep import Sweep, points_of

    stored = Sweep.stored_in(folder)
    gc.unfreeze()  # a command that ends soon keeps what it has read out of the collector's sight; a program must not
    readings = reconcile(stored.read())
    points = sought_points(stored.record, points_of(readings))
    ranked = [
        RankedPoint(
            place,
            point.name,
            dict(zip([figure_name(each) or each for each in stored.record.objective], point.values, strict=True)),
            point.interval,
            len(point.runs),
            point.reading.trial.point,
        )
        for place, point in zip(places(points), points, strict=True)
    ]
    trials = [
        MeasuredTrial(
            each.name,
            each.label,
            each.outcome.value if each.outcome else None,
            each.cause or "",
            each.trial.point,
            row.get("measured_step_seconds"),
            row.get("predicted_step_seconds"),
            {**each.metrics, **each.figures},
            each.folder.path,
            row,
        )
        for each, row in zip(readings, collected(stored.record, readings), strict=True)
    ]

    def steps() -> Iterator[dict[str, Any]]:
        for each in readings:
            names = [] if not each.steps else list(type(each.steps[0]).model_fields)
            for step in each.steps:
                yield {"trial_id": each.name, **{name: getattr(step, name) for name in names}}

    table = ranking_table(stored.record, points_of(readings))
    return SweepResults(
        stored.record.name, stored.record.spec.question, folder.path, tuple(ranked), tuple(trials), steps, table
    )
