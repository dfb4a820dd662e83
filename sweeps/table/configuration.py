"""One row of a table of configurations as a `Setup` and the trainer that it is priced for.

Columns are those of published tables (docs/estimate.md). What a row leaves empty takes the usual default; what cannot
be priced raises a `ConfigError` whose key is the column, so that a reason can name it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.plan.knobs import KNOBS
from conf.plan.setup import Setup
from conf.plan.trainer_limits import limits_of, require_runnable
from conf.types.cluster_spec import ClusterSpec
from conf.types.trainer_spec import Practice
from conf.units import count_of
from costs import Implementation
from costs.counts.parameters import require_computable
from sweeps.practice import PRACTICES
from sweeps.table.cells import Row, choice_of, flag_of, index_of, text_of
from sweeps.table.clusters import cluster_of
from sweeps.table.columns import MEASURED_COLUMNS, MODEL_COLUMNS, require_read
from sweeps.table.layout import batch_of, model_of, parallel_of
from sweeps.table.trainer import precision_of, trainer_of


@dataclass(frozen=True)
class Configuration:
    """A row of a table as a setup and a trainer, ready to be priced.

    Attributes:
        stage: the pipeline stage whose memory is asked for; None asks for that of the worst stage.
        models_memory: false where the row leaves open what is held, so that only time is predicted: another optimizer
            than Adam, or nobody knows what is recomputed.
        practice: how well its runs are tuned, where the row says who measured it.
    """

    setup: Setup
    implementation: Implementation
    stage: int | None
    models_memory: bool = True
    practice: Practice | None = None


def configuration_of(row: Row, implementation: str | None = None) -> Configuration:
    """The configuration of a row, priced as `implementation` carries it out unless the row names one itself.

    Raises ConfigError, with the column as its key, where it cannot be priced.
    """
    require_read(row)
    try:
        return _configuration_of(row, implementation)
    except ConfigError as error:
        raise about_columns(error, row) from None


def _configuration_of(row: Row, implementation: str | None) -> Configuration:
    cluster, parallel = cluster_of(row), parallel_of(row)
    trainer = trainer_of(row, parallel.zero_stage, implementation)
    model, precision = model_of(row, parallel.tensor_parallel_size), precision_of(row, cluster, trainer.name)
    setup = Setup(
        model=model,
        cluster=_with_room_for(cluster, parallel.world_size),
        parallel=parallel,
        batch=batch_of(row, parallel),
        precision=precision,
    )
    require_computable(setup.model, setup.batch.micro_batch_size)
    stage = index_of(row, "stage")
    if stage is not None and stage >= parallel.pipeline_parallel_size:
        remedy = f"Choose 0 to {parallel.pipeline_parallel_size - 1}."
        problem = f"is not one of pp = {count_of(parallel.pipeline_parallel_size, 'stage')}"
        raise ConfigError("stage", stage, problem, remedy)
    # A row that was measured did run, and the usual trainer is a guess: neither is refused for what trainers can do.
    has_run = any(text_of(row, name) for name in MEASURED_COLUMNS) or flag_of(row, "out_of_memory", default=False)
    if (implementation is not None or text_of(row, "implementation")) and not has_run:
        require_runnable(setup, trainer.name, limits_of(trainer.name))
    practice = choice_of(row, "measured_by", PRACTICES, default=None) if text_of(row, "measured_by") else None
    return Configuration(setup, trainer, stage, not _leaves_memory_open(row), practice)


def _leaves_memory_open(row: Row) -> bool:
    """True if the row has another optimizer than Adam, or says that what it recomputes or offloads is not known."""
    return "adam" not in (text_of(row, "optimizer").lower() or "adam") or text_of(row, "recompute").lower() == "unknown"


def _with_room_for(cluster: ClusterSpec, num_devices: int) -> ClusterSpec:
    """The cluster with as many nodes as the row's devices fill, if it has fewer.

    A published table may come from a larger machine of the same kind than the one in conf/cluster.
    """
    nodes = -(-num_devices // cluster.devices_per_node)
    return cluster if nodes <= cluster.num_nodes else cluster.model_copy(update={"num_nodes": nodes})


WITHOUT = {"precision.matmul_recipe=null": "bf16"}
"""What a table writes where a configuration has none."""
KNOBS_IN_TEXT = {name: knob for knob in KNOBS for name in (knob.key, knob.name)}
"""Messages name a knob by its dotted key, or in the middle of a sentence by its name alone."""
NAMED = re.compile(
    r"(?P<joined>, and )?(?<![\w.])(?P<name>" + "|".join(map(re.escape, [*MODEL_COLUMNS, *KNOBS_IN_TEXT])) + r")\b"
    r"(?:=(?P<value>\w+))?"
)


def about_columns(error: ConfigError, row: Row) -> ConfigError:
    """The same complaint in the words of the table: columns and cells instead of dotted keys and their values."""
    # Only messages are rewritten: the checks stay those of the configuration and need not know of tables.
    key, problem, remedy = (NAMED.sub(_in_columns, text) for text in (error.key, error.problem, error.remedy))
    return ConfigError(key, text_of(row, key) or error.value, problem, remedy)


def _in_columns(match: re.Match[str]) -> str:
    """The replacement for one name and its value. In a list, what a table has no column for is left out."""
    joined, name, value = match["joined"] or "", match["name"], match["value"]
    if name in MODEL_COLUMNS:
        column, cell = MODEL_COLUMNS[name], WITHOUT.get(f"{name}={value}", value)
    else:
        knob = KNOBS_IN_TEXT[name]
        column, cell = knob.column, knob.value_columns.get(value or "", value)
    if not column:
        return "" if joined else match[0]
    return f"{joined}{column}={cell}" if cell else f"{joined}{column}"
