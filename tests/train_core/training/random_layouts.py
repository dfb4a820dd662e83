"""Layouts, models and optimizers' settings drawn at random; each case follows from its number alone.

They are drawn so that most fit together. What does not, the configuration's own checks refuse, and the case is drawn
again: all but its split, schedule and model family, so that refusals do not make some of those rare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, pairwise, product
from math import prod
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from conf.compose.load import settings_of
from conf.compose.tree import with_values
from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from tests.composed import compose_tree

Values = dict[str, Any]
Further = Callable[[Random, Values], Values]
MOST_RANKS = 8
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
RECOMPUTATIONS = ("none", "selective", "full", "pointwise")
EXPERTS_OF_FOUR = 3
"""Of each four cases, the one whose model has experts, where its layout lets it."""
TEXT = Path(__file__).parents[3] / "LICENSE"


class Kind(NamedTuple):
    """What of a case is drawn once."""

    tensor: int
    pipeline: int
    data: int
    context: int
    schedule: str
    family: str

    @classmethod
    def drawn(cls, random: Random) -> Kind:
        splits = [sizes for sizes in product(range(1, MOST_RANKS + 1), repeat=4) if prod(sizes) <= MOST_RANKS]
        # Most splits have one axis alone; faults come where several meet.
        weights = [3 ** sum(size > 1 for size in sizes) for sizes in splits]
        ((tensor, pipeline, data, context),) = random.choices(splits, weights)
        schedule = random.choice(SCHEDULES) if pipeline > 1 else "1f1b"
        return cls(tensor, pipeline, data, context, schedule, random.choice(("gpt", "llama")))


class Case(NamedTuple):
    """An experiment, and how often it was drawn in vain before."""

    number: int
    experiment: Experiment
    num_refused: int

    @property
    def name(self) -> str:
        """Its id in pytest. The number makes the case; the rest tells people what it is."""
        experiment, parallel = self.experiment, self.experiment.parallel
        words = [
            f"{self.number:03}",
            f"tp{parallel.tensor_parallel_size}",
            f"pp{parallel.pipeline_parallel_size}",
            f"dp{experiment.data_parallel_size}",
            f"cp{parallel.context_parallel_size}",
            f"ep{parallel.expert_parallel_size}" if experiment.model.experts is not None else "",
            parallel.schedule,
            f"zero{parallel.zero_stage}",
            "sequence" if parallel.sequence_parallel else "",
            "" if parallel.recompute == "none" else f"{parallel.recompute}{parallel.recompute_every}",
            experiment.model.family,
        ]
        return "-".join(word for word in words if word)


def case_of(number: int, further: Further | None = None, base: Sequence[str] = ("model=tiny", "cluster=local")) -> Case:
    """The same case whenever it is drawn; `further` draws values beside and in place of those drawn here."""
    random, tree = Random(number), compose_tree(list(base))
    kind = Kind.drawn(random)
    for num_refused in count():
        values = _layout(random, kind) | _batch(random, kind) | _data(random, kind) | _training(random)
        values |= _model(random, kind, has_sequence_shards=values["parallel.sequence_parallel"])
        if number % 4 == EXPERTS_OF_FOUR:
            values |= _experts(random, kind)
        # With a generator of its own, so that what is drawn above stays as it was.
        values |= _parts_of_llamas(Random(f"{number}-{num_refused}"), values)
        if further is not None:
            values |= further(Random(f"{number}+{num_refused}"), values)
        try:
            experiment = settings_of(with_values(tree, values)).experiment()
        except ConfigError:
            continue
        return Case(number, experiment, num_refused)
    raise AssertionError("only a legal draw ends the loop")


def _layout(random: Random, kind: Kind) -> Values:
    num_chunks = random.randint(2, 3) if kind.schedule == "interleaved" else 1
    # With chunks the ends of the model may lack a layer; where others would, the case is refused.
    num_layers = kind.pipeline * num_chunks + (random.randrange(4) if num_chunks == 1 else random.randint(-2, 3))
    is_planned = random.random() < 0.5
    return {
        "model.num_layers": num_layers,
        "parallel.world_size": kind.tensor * kind.pipeline * kind.data * kind.context,
        "parallel.tensor_parallel_size": kind.tensor,
        "parallel.pipeline_parallel_size": kind.pipeline,
        "parallel.context_parallel_size": kind.context,
        "parallel.context_exchange": random.choice(("ring", "gather")),
        "parallel.virtual_pipeline_size": num_chunks,
        "parallel.schedule": kind.schedule,
        "parallel.layers_per_stage": _parts(random, num_layers, kind.pipeline) if is_planned else None,
        "parallel.sequence_parallel": kind.tensor > 1 and random.random() < 0.5,
        "parallel.zero_stage": random.choice((0, 1, 2) if kind.pipeline > 1 else (0, 1, 2, 3)),
        "parallel.recompute": random.choice(RECOMPUTATIONS),
        "parallel.recompute_every": random.randint(1, 3),
    }


def _experts(random: Random, kind: Kind) -> Values:
    """Experts in the later layers of a Llama, spread over some of the ranks of a stage."""
    num_ranks = kind.tensor * kind.data * kind.context
    size = random.choice([size for size in range(1, num_ranks + 1) if num_ranks % size == 0])
    num_experts = size * random.randint(1, max(1, 8 // size))
    return {
        "model.family": "llama",
        "model.gated_mlp": True,
        "parallel.expert_parallel_size": size,
        "parallel.expert_tensor_parallel_size": 1,
        "parallel.sequence_parallel": kind.tensor > 1,
        "parallel.zero_stage": random.randrange(3),
        "parallel.recompute": random.choice(("none", "selective", "full")),
        "model.head_size": random.choice((2, 4, 6)),
        "model.experts": {
            "num_experts": num_experts,
            "top_k": random.randint(min(2, num_experts), min(3, num_experts)),
            "ffn_hidden_size": random.randint(3, 24),
            "shared_ffn_hidden_size": kind.tensor * random.choice((0, 0, 5)),
            "num_dense_layers": random.choice((0, 0, 1)),
            "balance_loss": random.choice((0.0, 0.01, 0.1)),
        },
    }


def _parts_of_llamas(random: Random, values: Values) -> Values:
    """What only some Llamas have."""
    if values["model.family"] == "gpt":
        return {}
    parts: Values = {"model.qk_norm": random.random() < 0.3}
    if values["parallel.recompute"] != "pointwise" and random.random() < 0.25:
        parts = _latent_attention(random, values["model.num_attention_heads"])
    if (experts := values.get("model.experts")) is not None:
        balance = {"balance_bias": random.choice((0.0, 0.01)), "scores": random.choice(("softmax", "sigmoid"))}
        parts["model.experts"] = experts | balance | {"capacity_factor": random.choice((None, None, 1.0, 1.3))}
    return parts


def _latent_attention(random: Random, num_heads: int) -> Values:
    head_size = 2 * random.randint(2, 4)
    short = {
        "query_rank": random.choice((None, random.randint(3, 12))),
        "key_value_rank": random.randint(3, 12),
        "rotary_head_size": 2,
        "value_head_size": random.randint(2, head_size),
    }
    return {"model.num_query_groups": num_heads, "model.head_size": head_size, "model.latent_attention": short}


def _parts(random: Random, total: int, num_parts: int) -> list[int]:
    """Numbers of at least one that add up to `total`, mostly uneven."""
    cuts = sorted(random.sample(range(1, total), num_parts - 1))
    return [stop - start for start, stop in pairwise([0, *cuts, total])]


def _model(random: Random, kind: Kind, *, has_sequence_shards: bool) -> Values:
    num_groups = _multiple(random, kind.tensor, 8)
    pieces = 2 * kind.context if kind.context > 1 else 1
    return {
        "model.family": kind.family,
        "model.hidden_size": random.randint(5, 24),
        "model.head_size": random.randint(2, 7),  # a Llama with heads of odd size is refused
        "model.num_query_groups": num_groups,
        "model.num_attention_heads": num_groups * random.randint(1, 3),
        "model.ffn_hidden_size": _multiple(random, kind.tensor, 40),
        "model.gated_mlp": random.random() < 0.5,
        "model.tied_embeddings": random.random() < 0.5,
        "model.rotary_base": random.choice((None, 50.0, 500_000.0)),
        "model.seq_length": _multiple(random, pieces * (kind.tensor if has_sequence_shards else 1), 13),
    }


def _multiple(random: Random, unit: int, most: int) -> int:
    """A multiple of `unit`, up to `most` where that is possible; now and then a number that need not be one."""
    return random.randint(1, most) if random.random() < 0.1 else unit * random.randint(1, max(1, most // unit))


def _batch(random: Random, kind: Kind) -> Values:
    num_micro_batches, size = random.randint(1, 7), random.randint(1, 3)
    return {
        "batch.micro_batch_size": size,
        "batch.global_batch_size": size * num_micro_batches * kind.data,
    }


def _data(random: Random, kind: Kind) -> Values:
    """Random tokens of a small vocabulary, or a text so short that the training begins further epochs."""
    if random.random() < 0.5:
        vocabulary = {"model.vocab_size": kind.tensor * random.randint(2, 64 // kind.tensor)}
        return vocabulary | {"data.source": "synthetic", "data.tokenizer": None, "data.max_bytes": None}
    return {
        "model.vocab_size": kind.tensor * random.randint(-(-256 // kind.tensor), 300 // kind.tensor),
        "data.path": str(TEXT),
        "data.max_bytes": random.randint(300, 3000),
    }


def _training(random: Random) -> Values:
    return {
        "training.num_steps": 7,
        "training.num_warmup_steps": 1,
        "training.learning_rate": random.choice((1e-3, 3e-3)),
        "training.min_learning_rate": random.choice((0.0, 1e-4)),
        "training.learning_rate_warmup_steps": random.randrange(4),
        "training.weight_decay": random.choice((0.0, 0.1, 0.5)),
        "training.adam_beta1": random.choice((0.0, 0.8, 0.9)),
        "training.adam_beta2": random.choice((0.9, 0.95, 0.999)),
        "training.adam_epsilon": random.choice((1e-3, 1e-5, 1e-8)),
        "training.clip_gradient_norm": random.choice((None, 0.5, 0.05)),
        "training.seed": random.randrange(1000),
    }
