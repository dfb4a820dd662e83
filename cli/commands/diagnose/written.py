"""What a diagnosis writes: a row for `trisweep estimate`, a calibrated cluster, and a sweep of the proposals."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from calibrate.measured_runs import rows_of_table
from cli.commands.calibrate.work import refine
from conf.compose.load import cluster_named
from conf.errors import UsageError
from conf.plan.setup import Setup
from conf.plan.trainer_call import flat
from conf.units import GIBIBYTE
from diagnose.changes import PROGRAMS, parts_of
from diagnose.diagnosis import Diagnosis, RunVerdict
from diagnose.runs import SaidBy
from sweeps.planner.plans.strategy import Strategy
from sweeps.table.columns import DEVICE_COLUMNS, MEASURED_COLUMNS, OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from train_core.trial.atomic import write_atomically

NAMES = ("source", *REQUIRED_COLUMNS, *DEVICE_COLUMNS)
BASES = {"gpt": "gpt-175b", "llama": "llama-3.1-8b"}
"""Files of conf/model whose keys a sweep's own model replaces."""
NO_FLAG_OF_A_MEASUREMENT = ("save", "load", "exit", "wandb", "tensorboard", "log", "train", "lr", "eval", "profile")
"""Beginnings of flags that a sweep says itself, or that have no place in a short measurement."""

OF_LAUNCHERS = (
    "nproc",
    "nnodes",
    "node_rank",
    "master",
    "rdzv",
    "tee",
    "role",
    "local_rank",
    "max_restarts",
    "standalone",
)
OF_PLANS = ("recompute", "checkpoint_activations", "num_layers", "distribute_saved", "model_parallel", "batch_size")
"""Beginnings of flags of launchers, and of other names for what a plan says."""


def row_text(diagnoses: Sequence[Diagnosis]) -> str:
    """The runs as a table for `trisweep estimate`, with what they measured."""
    rows = [_row(each) for each in diagnoses]
    known = (*NAMES, *OPTIONAL_COLUMNS, *MEASURED_COLUMNS)
    filled = {column for row in rows for column, cell in row.items() if cell}
    columns = [name for name in known if name in NAMES or name in filled]
    columns += sorted(filled - set(columns))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(diagnosis: Diagnosis) -> Mapping[str, str]:
    seen, row = diagnosis.measured, dict(diagnosis.understood.row)
    if seen is None:
        row.pop("iter_time_s", None)
    elif seen.reserved_bytes is not None:
        row["memory_gib"] = f"{seen.reserved_bytes / GIBIBYTE:.4g}"
    if "launch blocking" in (flag.name for flag, _ in diagnosis.understood.wrong_flags):
        row["launch_blocking"] = "yes"
    return {"source": diagnosis.run.name, **row}


def calibrate_on(diagnoses: Sequence[Diagnosis], name: str) -> dict[str, Any]:
    """Refine the cluster's constants on these runs, and write them as cluster `name`.

    Raises UsageError where none of them has a price and a measurement that can be true, or no constant predicts better.
    """
    usable = [each for each in diagnoses if each.factor is not None and each.verdict is not RunVerdict.IMPOSSIBLE]
    if not usable:
        problem = "None of these runs has both a measured step and a prediction to hold against it"
        raise UsageError(f"--calibrate {name}: {problem}", "The diagnosis says what is missing; give it as key=value.")
    with TemporaryDirectory() as folder:
        table = Path(folder) / "runs.csv"
        table.write_text(row_text(usable), encoding="utf-8")
        evidence = rows_of_table(table, None)
    origin = ", ".join(dict.fromkeys(each.run.name for each in usable))
    return refine(replace(evidence, kind="runs", origin=origin), name, dry_run=False)


def write_sweep(diagnosis: Diagnosis, path: Path) -> None:
    """Write a sweep that measures this run's plan and its proposals with its own trainer.

    Raises UsageError where the run has no price, or there is nothing to measure, or the file is there already.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"--sweep {path} is not the name of a YAML file", "Write sweep/NAME.yaml in a folder of yours."
        )
    if path.exists():
        raise UsageError(f"--sweep {path}: the file is there already", "Name another one, or move it away.")
    if diagnosis.understood.configuration is None or not diagnosis.advice:
        reason = diagnosis.understood.reason or "no plan is predicted to be faster"
        raise UsageError(f"--sweep {path}: there is nothing to measure: {reason}", "Look at the diagnosis itself.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, sweep_text(diagnosis, path.stem))


def sweep_text(diagnosis: Diagnosis, name: str) -> str:
    """The sweep's file: the run as it is, and a point for each proposal."""
    configuration = diagnosis.understood.configuration
    assert configuration is not None
    setup, trainer = configuration.setup, configuration.implementation.name
    program = PROGRAMS.get(trainer, trainer)
    base = Strategy(setup.parallel, setup.batch).settings()
    points = [_point(base, advice.proposal.configuration.setup) for advice in diagnosis.advice]
    content = {
        "defaults": [
            {"override /model": BASES[setup.model.family]},
            {"override /cluster": setup.cluster.name},
            {"override /precision": "bf16"},
            {"override /data": "synthetic"},
            {"override /trainer": program},
            "_self_",
        ],
        "model": setup.model.model_dump(mode="json") | {"name": name},
        "cluster": _cluster_values(setup),
        "parallel": setup.parallel.model_dump(mode="json") | {"tensor_parallel_across_nodes": True},
        "batch": setup.batch.model_dump(mode="json"),
        "precision": setup.precision.model_dump(mode="json"),
        "trainer": _own_command(diagnosis),
        "sweep": {
            "name": name,
            "question": f"Which change makes {diagnosis.run.name} faster?",
            "baseline": {},
            "axes": {},
            "points": [point for point in points if point],
            "max_trials": 16,
            "published": [],
            "proxy": None,
        },
    }
    kept = {key: value for key, value in content.items() if value}
    head = (
        "# @package _global_\n"
        f"# Proposals for {diagnosis.run.name}, from `trisweep diagnose`. Set trainer.working_dir to the folder in\n"
        "# which your training starts; flags of yours that no plan says are passed on below.\n"
    )
    return head + yaml.safe_dump(kept, sort_keys=False, width=110, default_flow_style=None)


def _point(base: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """The values of a plan that are not those of the run."""
    values = Strategy(setup.parallel, setup.batch).settings()
    changed = {key: value for key, value in values.items() if base[key] != value}
    changed.pop("parallel.tensor_parallel_across_nodes", None)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in changed.items()}


def _cluster_values(setup: Setup) -> dict[str, Any]:
    """What the run's cluster has otherwise than the file of its name."""
    own = setup.cluster.model_dump(mode="json")
    filed = cluster_named(setup.cluster.name).model_dump(mode="json")
    return {key: value for key, value in own.items() if filed[key] != value}


def _own_command(diagnosis: Diagnosis) -> dict[str, Any]:
    """The user's own program, where a script names it, and flags of theirs that no plan says."""
    program, flags = diagnosis.run.settings.get("program"), _own_flags(diagnosis)
    words = {"command": [program.value]} if program and program.value.endswith(".py") else {}
    return {**words, **({"flags": flags} if flags else {})}


def _own_flags(diagnosis: Diagnosis) -> dict[str, Any]:
    """The flags of the user's own command that say nothing of the plan: data, tokenizer, and what else there is."""
    run, configuration = diagnosis.run, diagnosis.understood.configuration
    if configuration is None or not configuration.implementation.name.startswith("megatron"):
        return {}
    of_plan = {name for name, _ in flat(parts_of(configuration).trainer.flags)}
    flags = {
        flag: True if fact.value.lower() == "true" else fact.value
        for name, fact in run.settings.items()
        if fact.said_by is SaidBy.FLAG and (flag := name.replace("_", "-")) not in of_plan and _is_own(name)
    }
    return flags | ({"mock-data": None, "tokenizer-type": None} if "data-path" in flags else {})


def _is_own(name: str) -> bool:
    is_plain = "." not in name and not name.isupper() and name != "program"
    return is_plain and not name.startswith((*NO_FLAG_OF_A_MEASUREMENT, *OF_LAUNCHERS, *OF_PLANS))
