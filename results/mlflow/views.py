"""How MLflow's page shows a sweep: views that are kept as tags of the experiment, and links that open them.

A view is what MLflow writes where a person saves one under "Views": a name, and the state of its table and charts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from results.mlflow.run_content import RunContent
from results.mlflow.stored_runs import SWEEP_ID

if TYPE_CHECKING:
    from mlflow import MlflowClient

VIEW = "mlflow.sharedViewState."
MOST_VIEWS = 40
"""MLflow's page lets nobody save a view of their own beyond so many."""

COLUMNS = (
    "metrics.`meas/TFLOPS`",
    "metrics.`pred/TFLOPS`",
    "metrics.`meas/MFU_pct`",
    "metrics.`meas/step_s`",
    "metrics.`error/step_pct`",
    "metrics.`scale/weak_pct`",
    "metrics.`scale/strong_pct`",
    "metrics.`meas/mem_GiB`",
    "metrics.`pred/mem_GiB`",
    "params.`tp`",
    "params.`pp`",
    "params.`dp`",
    "params.`mb`",
    "params.`gb`",
    "params.`zero`",
    "params.`recompute`",
    "params.`devices`",
    "tags.`outcome`",
    "tags.`cause`",
)
TRAINING_COLUMNS = ("metrics.`meas/TFLOPS`", "metrics.`step/loss`", "metrics.`step/held_out_loss`", "tags.`outcome`")
NAME, PIXELS_PER_LETTER, PIXELS_BESIDE = "attributes.`Run Name`", 8, 36
WIDE = {NAME: 260, "tags.`outcome`": 130, "tags.`cause`": 400}
LAST = ("runDateAndNestInfo", "duration")
"""MLflow's own columns, of which it leaves out neither."""

SECTION, COORDINATES, RATES = "trisweep-charts", "trisweep-coordinates", "trisweep-rates"
TRAININGS = "trisweep-trainings"


def view_key(sweep_id: str) -> str:
    """The key of a sweep's view."""
    return f"trisweep-{sweep_id[:12]}"


def keep_view(
    client: MlflowClient, experiment_id: str, sweep_id: str, name: str, contents: Sequence[RunContent]
) -> None:
    """Have the experiment offer a sweep's trials, the best first, and long trainings apart from them.

    Args:
        contents: the sweep's runs, the parent first.
    """
    made_ms = contents[0].start_ms
    tags = client.get_experiment(experiment_id).tags
    trials = f"tags.kind = 'trial' AND tags.in_sweep = 'true' AND tags.`{SWEEP_ID}` = '{sweep_id}'"
    wanted = {
        view_key(sweep_id): _view(f"{name}: trials", made_ms, _table(trials, COLUMNS) | _charts(_varied(contents))),
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


def run_page(experiment_id: str, run_id: str, artifact: str = "") -> str:
    """The page of one run, or of one of its artifacts."""
    path = f"/artifacts/{quote(artifact)}" if artifact else ""
    return f"/#/experiments/{experiment_id}/runs/{run_id}{path}?workflowType=machine_learning"


def _view(name: str, made_ms: int, state: dict[str, Any]) -> str:
    return json.dumps({"name": name, "createdAt": made_ms, "updatedAt": made_ms, "state": json.dumps(state)})


def _table(search: str, columns: tuple[str, ...]) -> dict[str, Any]:
    """Every run that the search finds, those with the highest rate first and those without one last."""
    return {
        "searchFilter": search,
        "orderByKey": columns[0],
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns),
        "columnOrder": [NAME, *columns, *LAST],
        "columnWidths": {column: _width(column) for column in (NAME, *columns)},
        "runsHiddenMode": "SHOW_ALL",
        "viewMaximized": False,
        "runListHidden": False,
        "groupBy": None,
        "groupsExpanded": {},
        "hideEmptyCharts": True,
        "useGroupedValuesInCharts": True,
    }


def _width(column: str) -> int:
    """Wide enough for the column's name in bold."""
    return WIDE.get(column, PIXELS_BESIDE + PIXELS_PER_LETTER * len(column.split("`")[1]))


def _varied(contents: Sequence[RunContent]) -> list[str]:
    """The knobs in which the sweep's trials differ."""
    knobs = [column.split("`")[1] for column in COLUMNS if column.startswith("params.")]
    return [knob for knob in knobs if len({run.params[knob] for run in contents if knob in run.params}) > 1]


def _charts(knobs: list[str]) -> dict[str, Any]:
    """Parallel coordinates from the knobs to the measured rate, and the rates predicted and measured."""
    common = {"runsCountToCompare": 100, "metricSectionId": SECTION, "deleted": False, "isGenerated": False}
    coordinates = common | {
        "uuid": COORDINATES,
        "type": "PARALLEL",
        "displayName": "From knobs to measured TFLOPS",
        "selectedParams": knobs,
        "selectedMetrics": ["meas/TFLOPS"],
        "showAllRuns": False,
    }
    rates = [
        common
        | {"uuid": f"{RATES}-{kind}", "type": "BAR", "metricKey": f"{kind}/TFLOPS", "displayName": f"{kind}/TFLOPS"}
        for kind in ("meas", "pred")
    ]
    section = {"uuid": SECTION, "name": "Layouts", "display": True, "isReordered": False, "deleted": False}
    return {
        "compareRunCharts": [coordinates, *rates],
        "compareRunSections": [section | {"isGenerated": False}],
        "isAccordionReordered": True,
    }
