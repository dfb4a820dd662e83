"""The command line of a program for one plan: names put in, flags in order, and the files that it wants.

Names are the dotted keys of the experiment's groups, what follows from them (`plan_names`), what a trainer looks up for
itself (`trainer.values`), the program's own (`trainer.params`), and in a job the place of the process (`JOB_NAMES`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conf.errors import ConfigError
from conf.plan.chunks import group_sizes, pipeline_layout
from conf.plan.setup import Setup
from conf.plan.templates import Names, Plain, fill_text, template_value, text_of
from conf.types.model_spec import ExpertsSpec, ModelSpec
from conf.types.schema import ROTARY_BASE, TrainingPlan, Value
from conf.types.trainer_spec import OF_A_RANK, Limit, LookUp, TrainerSpec

JOB_NAMES = ("node_rank", "master_addr", "master_port", "trial_folder", "python", *OF_A_RANK, "huggingface_starter")
"""The names whose values only a job knows; the last is the script that starts programs with Hugging Face's Trainer."""

GROUPS = ("model", "cluster", "parallel", "batch", "precision", "data", "training", "checkpoint", "watch", "profile")

EXPERT_NAMES = (
    *("num_experts", "experts_per_token", "expert_width", "shared_expert_width", "expert_layers", "capacity"),
    "balance_loss",
)

LATENT_NAMES = (
    *("has_latent_attention", "query_rank", "key_value_rank", "plain_head_size", "rotary_head_size"),
    "value_head_size",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A program's call.

    Attributes:
        words: of its command line, without what starts it.
        training: those of them that a training needs as well.
        measuring: the others, flags that serve a measurement alone.
        files: contents by their path inside the trial's folder.
        environment: what it adds to the environment.
    """

    words: tuple[str, ...]
    training: tuple[str, ...]
    measuring: tuple[str, ...]
    files: dict[str, str]
    environment: dict[str, str]


def call_of(trainer: TrainerSpec, setup: Setup, job: Names) -> Call:
    """The call of a program for a plan.

    Args:
        setup: an experiment.
        job: values of JOB_NAMES.

    Raises:
        ConfigError: a text names a value that there is not, or that is null where a word is needed.
    """
    names = names_of(trainer, setup, job)
    places = {f"trainer.command[{index}]": template for index, template in enumerate(trainer.command)}
    program = [
        word
        for place, template in places.items()
        for word in _words(template_value(template, names, place), template, place)
    ]
    flags = list(_flags(trainer.flags, names))
    return Call(
        words=(*program, *(word for _, words in flags for word in words)),
        training=(*program, *(word for name, words in flags for word in words if name not in trainer.measuring)),
        measuring=tuple(word for name, words in flags for word in words if name in trainer.measuring),
        files={name: _content(content, names, f"trainer.files.{name}") for name, content in trainer.files.items()},
        environment={
            name: fill_text(text, names, f"trainer.environment.{name}") for name, text in trainer.environment.items()
        },
    )


def names_of(trainer: TrainerSpec, setup: Setup, job: Names) -> dict[str, Plain]:
    """Every name that the trainer's texts may hold, with its value."""
    names: dict[str, Plain] = {**plan_names(setup), "trainer.name": trainer.name, "trainer.start": trainer.start, **job}
    names |= _flavor_names(trainer.flavors, names)
    if twice := next((name for name in trainer.params if name in job), None):
        problem = "is the name of a value that the job has already"
        raise ConfigError("trainer.params", twice, problem, "Choose another name, there and in braces.")
    names |= trainer.params
    for name, look_up in trainer.values.items():
        if name in names:
            problem = "is the name of a value of the plan already"
            raise ConfigError("trainer.values", name, problem, "Choose another name.")
        names[name] = _look_up(look_up, names, f"trainer.values.{name}")
    return names


def plan_names(setup: Setup) -> dict[str, Plain]:
    """The values of an experiment by their dotted keys, and what follows from them by plain names."""
    tree = setup.model_dump(mode="json", include=set(GROUPS))
    model, parallel, layers = setup.model, setup.parallel, setup.layers_per_stage
    num_groups = setup.num_replicas // parallel.zero_group_size if parallel.zero_group_size else None
    base, scaling = model.rotary_base or ROTARY_BASE, model.rotary_scaling
    scaling = None if scaling is None or scaling.kind == "yarn" else scaling  # which is said beside the flags
    return dict(flat(tree)) | {
        "world_size": parallel.world_size,
        "num_nodes": setup.num_nodes,
        "devices_per_node": setup.tasks_per_node,
        "data_parallel_size": setup.data_parallel_size,
        "gradient_accumulation": setup.num_micro_batches,
        "sequences_per_replica": setup.batch.global_batch_size // setup.data_parallel_size,
        "tokens_per_step": setup.batch.global_batch_size * model.seq_length,
        "layers_per_stage": layers,
        "layers_per_chunk": layers[0] // parallel.virtual_pipeline_size,
        "layer_split": layer_split(layers),
        "has_uneven_chunks": any(count % parallel.virtual_pipeline_size for count in layers),
        "has_unequal_chunks": has_unequal_chunks(setup),
        "has_uneven_groups": has_uneven_groups(setup),
        "pipeline_layout": _layout_of(setup),
        "micro_batch_group": _micro_batch_group(setup),
        "first_stage_layers": layers[0],
        "last_stage_layers": layers[-1],
        **_less_layers(layers),
        "head_size": model.query_size // model.num_attention_heads,
        "has_split_query_groups": bool(model.num_query_groups % parallel.tensor_parallel_size),
        "has_grouped_queries": model.num_query_groups < model.num_attention_heads,
        "rotary_frequency_base": int(base) if base.is_integer() else base,
        "rotary_scaling_factor": scaling.factor if scaling else None,
        "rotary_low_freq_factor": scaling.low_freq_factor if scaling else None,
        "rotary_high_freq_factor": scaling.high_freq_factor if scaling else None,
        "rotary_original_length": scaling.original_max_position_embeddings if scaling else None,
        "rotary_bounds": scaling.bounds if scaling else None,
        "model.attention_window": model.narrow_window,
        "model.linear_attention": "given" if model.linear_attention else None,
        "last_token": model.vocab_size - 1,
        **_learning_rate_names(getattr(setup, "training", None)),
        "loss_scale_power": _power_of_two(setup.precision.initial_loss_scale),
        # Each shares out a whole state; None where all replicas are one group.
        "num_zero_groups": num_groups,
        "zero_group_data_size": setup.data_parallel_size // (num_groups or 1),
        **_expert_names(model.experts, model.num_layers),
        **_latent_names(model),
    }


def _learning_rate_names(training: TrainingPlan | None) -> dict[str, Plain]:
    """The schedule as programs take it that check its order; nothing of a plan that is not trained.

    The least rate is no higher than the highest, and `decay_steps` is null, or ends a decay that the warm-up outlasts.
    """
    if training is None:
        return {}
    highest, warmup, num_steps = training.learning_rate, training.learning_rate_warmup_steps, training.num_steps
    least = min(training.min_learning_rate, highest)
    return {
        "least_learning_rate": least,
        "min_learning_rate_share": least / highest,
        "decay_steps": warmup + 1 if warmup >= num_steps else None,
        "wsd_decay_steps": training.num_decay_steps,
        "wsd_decay_share": training.num_decay_steps / num_steps,
    }


def _power_of_two(value: float) -> int | None:
    """The exponent of a power of two from 1 on; None of any other number."""
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 and exponent > 0 else None


def _expert_names(experts: ExpertsSpec | None, num_layers: int) -> dict[str, Plain]:
    """The names that follow from the model's experts, all null where it has none."""
    if experts is None:
        return dict.fromkeys(EXPERT_NAMES)
    dense = experts.num_dense_layers
    layers = f"([0]*{dense}+[1]*{num_layers - dense})" if dense else None
    width, shared = experts.ffn_hidden_size, experts.shared_ffn_hidden_size or None
    values = (experts.num_experts, experts.top_k, width, shared, layers, experts.capacity_factor)
    return dict(zip(EXPERT_NAMES, (*values, experts.balance_loss or None), strict=True))


def _latent_names(model: ModelSpec) -> dict[str, Plain]:
    """The names that follow from the model's latent attention, all null where it has none."""
    latent = model.latent_attention
    if latent is None:
        return dict.fromkeys(LATENT_NAMES)
    plain = model.query_size // model.num_attention_heads - latent.rotary_head_size
    ranks = (latent.query_rank, latent.key_value_rank)
    return dict(zip(LATENT_NAMES, (True, *ranks, plain, latent.rotary_head_size, latent.value_head_size), strict=True))


def layer_split(layers: Sequence[int]) -> str:
    """`even`; `ends` where the first and the last stage alone differ from the others; else `uneven`."""
    if len(set(layers)) == 1:
        return "even"
    return "ends" if len(set(layers[1:-1])) <= 1 else "uneven"


def has_unequal_chunks(setup: Setup) -> bool:
    """True if the chunks of an interleaved pipeline differ in layers, within a stage or between stages."""
    num_chunks, layers = setup.parallel.virtual_pipeline_size, setup.layers_per_stage
    return num_chunks > 1 and (len(set(layers)) > 1 or bool(layers[0] % num_chunks))


def has_uneven_groups(setup: Setup) -> bool:
    """True if the last group of an interleaved pipeline's micro-batches has not as many as there are stages."""
    remainder = setup.num_micro_batches % setup.parallel.pipeline_parallel_size
    return setup.parallel.schedule == "interleaved" and bool(remainder)


def has_irregular_groups(setup: Setup) -> bool:
    """True if no one size of the groups but the last makes those that are priced; fewer micro-batches are one group."""
    sizes = group_sizes(setup.num_micro_batches, setup.parallel.pipeline_parallel_size)
    return has_uneven_groups(setup) and len(set(sizes[:-1])) > 1


def has_torn_zero_groups(setup: Setup) -> bool:
    """True if a group of ZeRO holds some of the context ranks that share out a sequence, and not the others."""
    return bool((setup.parallel.zero_group_size or 0) % setup.parallel.context_parallel_size)


def has_few_micro_batches(setup: Setup) -> bool:
    """True if a replica has fewer micro-batches than the pipeline has stages."""
    return setup.num_micro_batches < setup.parallel.pipeline_parallel_size


def _layout_of(setup: Setup) -> str | None:
    """The pipeline's parts in Megatron-Core's notation; None where all of them have as many layers."""
    layers, num_chunks = setup.layers_per_stage, setup.parallel.virtual_pipeline_size
    is_even = len(set(layers)) == 1 and not layers[0] % num_chunks
    return None if is_even else pipeline_layout(layers, num_chunks)


def _micro_batch_group(setup: Setup) -> int | None:
    """The size of all groups of interleaved micro-batches but the last, null where it is the number of stages."""
    if not has_uneven_groups(setup):
        return None
    return group_sizes(setup.num_micro_batches, setup.parallel.pipeline_parallel_size)[0]


def _less_layers(layers: Sequence[int]) -> dict[str, int]:
    """The layers of the stages between the ends, and how many less the first and the last stage have.

    With two stages nothing is between them, and the fuller one counts; an end that has more layers has a number below 0
    less. These say a whole spread only where it is even, or `layer_split` is `ends`.
    """
    inner = layers[1] if len(layers) > 2 else max(layers)
    names = ("inner_stage_layers", "first_stage_less_layers", "last_stage_less_layers")
    return dict(zip(names, (inner, inner - layers[0], inner - layers[-1]), strict=True))


def met_limits(limits: Iterable[Limit], names: Names, key: str) -> list[Limit]:
    """Those of the limits that the plan meets; raises ConfigError where a limit is of a value that there is not."""
    pairs = ((limit, template_value(f"{{{limit.of}}}", names, f"{key}[{i}].of")) for i, limit in enumerate(limits))
    met = [limit for limit, value in pairs if limit.meets(value)]
    return [limit.model_copy(update={"because": fill_text(limit.because, names, key)}) for limit in met]


def _flavor_names(flavors: Mapping[str, Mapping[str, Value]], names: Names) -> dict[str, Plain]:
    """The program's own name for a model of this shape, null where it has none, and the nearest one in words."""
    differences = {name: _differences(shape, names, f"trainer.flavors.{name}") for name, shape in flavors.items()}
    fitting = next((name for name, different in differences.items() if not different), None)
    nearest = min(differences, key=lambda name: _distance(differences[name]), default=None)
    lacks = [f"{key} {text_of(its)} and not {text_of(ours)}" for key, its, ours in differences.get(nearest or "", ())]
    return {"fitting_flavor": fitting, "nearest_flavor": nearest and f"{nearest}, has {', '.join(lacks)}"}


def _differences(shape: Mapping[str, Value], names: Names, key: str) -> list[tuple[str, Plain, Plain]]:
    """Keys in which the model differs from a flavor, with the flavor's value and the model's."""
    whole = {name if name in names else f"model.{name}": value for name, value in shape.items()}
    pairs = ((name, value, template_value(f"{{{name}}}", names, key)) for name, value in whole.items())
    return [(name, value, ours) for name, value, ours in pairs if text_of(value) != text_of(ours)]


def _distance(differences: Sequence[tuple[str, Plain, Plain]]) -> float:
    """The sum of the differences: of two numbers the logarithm of their ratio, at most that of 10, else the latter."""
    pairs = ((its, ours) for _, its, ours in differences)
    return sum(min(math.log(10), _log_ratio(its, ours)) for its, ours in pairs)


def _log_ratio(one: Plain, other: Plain) -> float:
    if isinstance(one, int | float) and isinstance(other, int | float) and min(one, other) > 0:
        return abs(math.log(one / other))
    return math.inf


def _look_up(look_up: LookUp, names: Names, key: str) -> Plain:
    text = text_of(template_value(f"{{{look_up.of}}}", names, f"{key}.of"))
    # Every entry is filled in, so that a misspelt name is found by the first plan and not by the one that needs it.
    entries = {value: _entry(entry, names, f"{key}.to.{value}") for value, entry in look_up.to.items()}
    otherwise = _entry(look_up.otherwise, names, f"{key}.otherwise")
    return entries.get(text, otherwise)


def _entry(entry: Plain, names: Names, key: str) -> Plain:
    return template_value(entry, names, key) if isinstance(entry, str) else entry


def _flags(flags: Mapping[str, Any], names: Names, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Every flag that is passed on: its name with those of the mappings around it, and its words."""
    for name, stated in flags.items():
        key = f"trainer.flags.{prefix}{name}"
        if isinstance(stated, dict):
            yield from _flags(stated, names, f"{prefix}{name}.")
            continue
        value = _flag_value(stated, names, key)
        # An identity test, for 0 is equal to False and is a value that is passed on.
        if value is None or value is False:
            continue
        flag = f"{prefix}{name}" if name.startswith("-") else f"--{prefix}{name}"
        yield f"{prefix}{name}", [flag, *([] if value is True else _words(value, stated, key))]


def _flag_value(stated: object, names: Names, key: str) -> Plain:
    if isinstance(stated, str):
        return template_value(stated, names, key)
    if isinstance(stated, list):
        return tuple(_scalar(_flag_value(entry, names, key), stated, key) for entry in stated)
    assert stated is None or isinstance(stated, bool | int | float)
    return stated


def _scalar(value: Plain, stated: object, key: str) -> bool | int | float | str | None:
    if isinstance(value, tuple):
        raise ConfigError(key, stated, "holds a list in a list", "Give the inner list alone.")
    return value


def _words(value: Plain, stated: object, key: str) -> list[str]:
    """A list is as many words as it has entries; anything else is one."""
    if value is None:
        remedy = "Move it to trainer.flags, where null leaves a flag out, or give it a value."
        raise ConfigError(key, stated, "is null here, which is not a word", remedy)
    return [text_of(entry) for entry in value] if isinstance(value, tuple) else [text_of(value)]


def _content(stated: object, names: Names, key: str) -> str:
    """A file's content: a text as it is, a mapping as JSON."""
    if isinstance(stated, str):
        return fill_text(stated, names, key)
    return json.dumps(_tree(stated, names, key), indent=2) + "\n"


def _tree(stated: object, names: Names, key: str) -> object:
    if isinstance(stated, dict):
        entries = {name: _tree(entry, names, f"{key}.{name}") for name, entry in stated.items()}
        # A name whose value is null leaves its entry out, as it does a flag; a null that is stated is the program's.
        return {name: entry for name, entry in entries.items() if entry is not None or stated[name] is None}
    if isinstance(stated, list):
        return [_tree(entry, names, key) for entry in stated]
    return template_value(stated, names, key) if isinstance(stated, str) else stated


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Plain]]:
    """The values of a tree by their dotted names; lists as tuples, and no lists of groups."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            if not any(isinstance(entry, dict | list) for entry in value):
                yield f"{prefix}{name}", tuple(value)
        else:
            yield f"{prefix}{name}", value


def torchrun_words(
    python: str, num_nodes: int, ranks_per_node: int, program: str, meeting: tuple[str, ...]
) -> tuple[str, ...]:
    """The words before a program that torchrun starts on every node.

    Args:
        program: its first word; torchrun takes a script or `-m`, and anything else as a program of its own.
        meeting: torchrun's words for which node this is and where they meet; of no use where there is one node.
    """
    one_node = num_nodes == 1  # which finds a free port itself
    nodes = ("--standalone",) if one_node else (f"--nnodes={num_nodes}", *meeting)
    own = () if program.endswith(".py") or program == "-m" else ("--no-python",)
    return (python, "-m", "torch.distributed.run", *nodes, f"--nproc-per-node={ranks_per_node}", *own)
