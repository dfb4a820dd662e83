"""The views of a sweep on MLflow's page, kept as tags of the experiment, and links that open them.

A view is what MLflow writes where a person saves one under "Views": a name, and the state of its table and charts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from conf.types.sweep_spec import Objective
from results.mlflow.metric_keys import objective_key
from results.mlflow.run_content import RunContent, milliseconds
from results.mlflow.stored_runs import SWEEP_ID
from sweeps.points.objectives import is_better_when_larger
from sweeps.trial import SweepRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient

VIEW = "mlflow.sharedViewState."
MOST_VIEWS = 40
"""MLflow's page lets nobody save a view of their own beyond so many."""

METRICS = (
    "meas/TFLOPS",
    "pred/TFLOPS",
    "scale/weak_pct",
    "scale/strong_pct",
    "meas/MFU_pct",
    "meas/step_s",
    "error/step_pct",
    "meas/mem_GiB",
    "pred/mem_GiB",
)
KNOBS = ("tp", "pp", "dp", "mb", "gb", "zero", "recompute", "devices")
TRAINING_COLUMNS = ("metrics.`meas/TFLOPS`", "metrics.`step/loss`", "metrics.`step/held_out_loss`", "tags.`outcome`")
LAYOUT = ("parallel.", "batch.", "cluster.")
NAME, PIXELS_PER_LETTER, PIXELS_BESIDE = "attributes.`Run Name`", 8, 36
WIDE = {NAME: 260, "tags.`outcome`": 130, "tags.`cause`": 400}
LAST = ("runDateAndNestInfo", "duration")

CARD_PIXELS = 380
SECTION, COORDINATES, RATES = "trisweep-charts", "trisweep-coordinates", "trisweep-rates"
TRAININGS = "trisweep-trainings"


def view_key(sweep_id: str) -> str:
    return f"trisweep-{sweep_id[:12]}"


class RunsSeen:
    """What the runs of a sweep hold, which pass by one after the other: their keys, metrics, and values of params."""

    def __init__(self) -> None:
        self.keys, self.metrics = set[str](), set[str]()
        self.values: dict[str, set[str]] = {}

    def add(self, content: RunContent) -> None:
        self.keys.add(content.key)
        self.metrics.update(metric.key for metric in content.metrics)
        for key, value in content.params.items():
            self.values.setdefault(key, set()).add(value)

    @property
    def varied(self) -> list[str]:
        """The parameters in which the trials differ: those beside layout and batch have dotted names."""
        others = sorted(key for key in self.values if "." in key and not key.startswith(LAYOUT))
        return [key for key in (*KNOBS, *others) if len(self.values.get(key, ())) > 1]


def keep_view(client: MlflowClient, experiment_id: str, sweep_id: str, record: SweepRecord, seen: RunsSeen) -> None:
    """Have the experiment offer a sweep's trials, the best first, and long trainings apart from them."""
    made_ms, objectives = milliseconds(record.created), record.objective
    clusters = [trial.experiment.place for trial in record.trials if trial.experiment is not None]
    where = "proxy" if record.mode == "proxy" else next(iter(clusters), record.mode)  # as its folder is called
    tags = client.get_experiment(experiment_id).tags
    trials = f"tags.kind = 'trial' AND tags.in_sweep = 'true' AND tags.`{SWEEP_ID}` = '{sweep_id}'"
    table = _table(trials, _columns(seen, objectives), ascending=not is_better_when_larger(objectives[0]))
    charts = _charts(seen.varied, objectives)
    wanted = {
        view_key(sweep_id): _view(f"{record.name} {where}: trials", made_ms, table | charts),
        TRAININGS: _view("Long trainings", 0, _table("tags.kind = 'training'", TRAINING_COLUMNS)),
    }
    ours = [key for key in tags if key.startswith(VIEW)]
    for key, view in wanted.items():
        is_new = VIEW + key not in tags
        if tags.get(VIEW + key) != view and not (is_new and len(ours) >= MOST_VIEWS):
            client.set_experiment_tag(experiment_id, VIEW + key, view)


def runs_page(experiment_id: str, view: str | None = None, *, charts: bool = False) -> str:
    """The table of runs, or their charts, on the page's side for trained models."""
    mode = "&compareRunsMode=CHART" if charts else ""
    shown = f"&viewStateShareKey={view}" if view else ""
    return f"/#/experiments/{experiment_id}/runs?workflowType=machine_learning{mode}{shown}"


def run_page(experiment_id: str, run_id: str, artifact: str) -> str:
    path = f"/artifacts/{quote(artifact)}" if artifact else ""
    return f"/#/experiments/{experiment_id}/runs/{run_id}{path}?workflowType=machine_learning"


def _view(name: str, made_ms: int, state: dict[str, Any]) -> str:
    return json.dumps({"name": name, "createdAt": made_ms, "updatedAt": made_ms, "state": json.dumps(state)})


def _columns(seen: RunsSeen, objectives: Sequence[Objective]) -> tuple[str, ...]:
    """The columns of what is sought, then of what any trial has; without those that hold one value alone."""
    metrics = [key for key in METRICS if key in seen.metrics or key == METRICS[0]]
    sought, varied = list(map(objective_key, objectives)), seen.varied
    others = [key for key in varied if key not in KNOBS]
    first = [*(f"metrics.`{key}`" for key in sought), *(f"params.`{key}`" for key in others)]
    rest = [f"metrics.`{key}`" for key in metrics if key not in sought]
    knobs = [f"params.`{key}`" for key in varied if key in KNOBS]
    return (*first, *rest, *knobs, "tags.`outcome`", "tags.`cause`")


def _table(search: str, columns: tuple[str, ...], *, ascending: bool = False) -> dict[str, Any]:
    """Every run that the search finds, the best by the first column at the top and those without it last."""
    return {
        "searchFilter": search,
        "orderByKey": columns[0],
        "orderByAsc": ascending,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns),
        "columnOrder": [NAME, *columns, *LAST],
        "columnWidths": {
            column: WIDE.get(column, PIXELS_BESIDE + PIXELS_PER_LETTER * len(column.split("`")[1]))
            for column in (NAME, *columns)
        },
        "runsHiddenMode": "SHOW_ALL",
        "viewMaximized": False,
        "runListHidden": False,
        "groupBy": None,
        "groupsExpanded": {},
        "hideEmptyCharts": True,
        "useGroupedValuesInCharts": True,
    }


def _charts(knobs: list[str], objectives: Sequence[Objective]) -> dict[str, Any]:
    """Parallel coordinates from the knobs to what is sought, and bars of it, of rates also as they were predicted."""
    sought = list(map(objective_key, objectives))
    common = {"runsCountToCompare": 100, "metricSectionId": SECTION, "deleted": False, "isGenerated": False}
    coordinates = common | {
        "uuid": COORDINATES,
        "type": "PARALLEL",
        "displayName": f"From knobs to {' and '.join(sought)}",
        "selectedParams": knobs,
        "selectedMetrics": sought,
        "showAllRuns": False,
    }
    both = ["meas/TFLOPS", "pred/TFLOPS"]
    shown = both if sought == both[:1] else sought
    rates = [
        common | {"uuid": f"{RATES}-{key.replace('/', '-')}", "type": "BAR", "metricKey": key, "displayName": key}
        for key in shown
    ]
    section = {"uuid": SECTION, "name": "Trials", "display": True, "isReordered": False, "deleted": False}
    return {
        "compareRunCharts": [coordinates, *rates],
        # A chart a row: three beside each other leave parallel coordinates no room.
        "compareRunSections": [section | {"isGenerated": False, "columns": 1, "cardHeight": CARD_PIXELS}],
        "isAccordionReordered": True,
    }
