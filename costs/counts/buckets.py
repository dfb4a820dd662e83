"""The flat buckets in which this trainer keeps one rank's parameters, as far as collectives need them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conf.plan.experiment import Experiment
from conf.types.model_spec import LatentAttentionSpec
from costs.axes import ENDS, EXPERT_REPLICAS, REPLICAS
from costs.counts.parameters import NUM_NORMS, attention_matrices, head_norm_size, norms_follow
from costs.shared_rules import Role, Treatment, bucket_members, kept_role, padded_length


class Parameter(NamedTuple):
    """A parameter of one tensor rank; all of a stage's have the same. A vector has one column.

    Attributes:
        split: the dim that tensor ranks share out, where they do.
    """

    treatment: Treatment
    rows: int
    columns: int = 1
    split: int = 0

    @property
    def length(self) -> int:
        return self.rows * self.columns


class PlacedBucket(NamedTuple):
    """A bucket, its members in order and its length, padding included."""

    treatment: Treatment
    members: list[Parameter]
    length: int


def buckets_of(experiment: Experiment, stage: int) -> list[PlacedBucket]:
    """The buckets of a stage, in the trainer's order."""
    buckets = bucket_members(parameters_of(experiment, stage), lambda each: each.treatment, lambda each: each.length)
    return [
        PlacedBucket(
            treatment,
            members,
            padded_length(sum(each.length for each in members), num_replicas(experiment, treatment)),
        )
        for treatment, members in buckets
    ]


def num_replicas(experiment: Experiment, treatment: Treatment) -> int:
    """The ranks over which gradients of such parameters are summed, and which share them out under ZeRO."""
    if treatment.reduced_over == REPLICAS:
        return experiment.num_replicas
    # Of experts, those of its stage that hold the same ones.
    return ranks_of_stage(experiment) // experiment.parallel.expert_parallel_size


def first_share(parameter: Parameter, num_replicas: int) -> int:
    """Elements of a parameter that ZeRO-3 gives the first replica, which has the most."""
    return -(-parameter.rows // num_replicas) * parameter.columns


def ranks_of_stage(experiment: Experiment) -> int:
    return experiment.parallel.world_size // experiment.parallel.pipeline_parallel_size


def parameters_of(experiment: Experiment, stage: int) -> Iterator[Parameter]:
    """The parameters of one tensor rank of a stage in model order, as the trainer makes them."""
    is_first, is_last = stage == 0, stage == experiment.parallel.pipeline_parallel_size - 1
    if is_first:
        embedding = _embedding(experiment, tied=experiment.model.tied_embeddings and not is_last)
        yield from _with_role(experiment, embedding, "embedding")
    for layers in experiment.chunk_ranges[stage]:
        for layer in layers:
            yield from _with_role(experiment, layer_parameters_of(experiment, layer), "hidden")
    if is_last:
        is_tied = experiment.model.tied_embeddings
        end = _end(experiment, tied=is_tied and not is_first)
        yield from _with_role(experiment, end, "embedding" if is_tied else "head")


def _with_role(experiment: Experiment, parameters: Iterable[Parameter], role: Role) -> Iterator[Parameter]:
    """The same, where the training tells matrices of this role apart, with it."""
    kept = kept_role(role, experiment.training, experiment.model.hidden_size)
    for each in parameters:
        yield each._replace(treatment=each.treatment._replace(role=kept)) if each.treatment.decays else each


def _embedding(experiment: Experiment, tied: bool) -> Iterator[Parameter]:
    model = experiment.model
    rows = model.vocab_size // experiment.parallel.tensor_parallel_size
    yield Parameter(_treatment_of_part(decays=True, tied=tied), rows, model.hidden_size)
    if model.family == "gpt":
        yield Parameter(_treatment_of_whole(experiment, decays=True), model.seq_length, model.hidden_size)


def layer_parameters_of(experiment: Experiment, layer: int = 0) -> Iterator[Parameter]:
    """The parameters of a layer; without experts all layers are alike."""
    model, t = experiment.model, experiment.parallel.tensor_parallel_size
    query, rest = model.query_size // t, 2 * model.key_value_size // t
    before = [] if "norms_behind" in model.parts else _norm(experiment)
    yield from before
    if model.latent_attention is None:
        yield from _pair(experiment, query + rest, query, biases=(model.has_qkv_bias, model.has_output_bias))
    else:
        yield from _latent_attention(experiment, model.latent_attention)
    if model.qk_norm:  # ranks have other heads, so that gradients are summands without sequence parallelism too
        yield from [Parameter(Treatment(False, _all_ranks(t), _all_ranks(t)), head_norm_size(model))] * 2
    if "wide_qk_norm" in model.parts:
        yield from (Parameter(_treatment_of_part(decays=False), width) for width in (query, rest // 2))
    if "sinks" in model.parts:
        yield Parameter(_treatment_of_part(decays=False), model.num_attention_heads // t)
    yield from before
    if layer < model.num_dense_layers:
        yield from _feed_forward(experiment, model.ffn_hidden_size)
    else:
        yield from _mixture(experiment)
    for _ in range(NUM_NORMS if norms_follow(model) else 0):
        yield from _norm(experiment)


def _latent_attention(experiment: Experiment, latent: LatentAttentionSpec) -> Iterator[Parameter]:
    """The way down to short vectors with the norms of these, which ranks hold whole, and the ways up and out."""
    t = experiment.parallel.tensor_parallel_size
    for matrix in attention_matrices(experiment.model):
        if matrix.split == "nothing":
            yield Parameter(_treatment_of_whole(experiment, decays=True), matrix.columns, matrix.depth)
            for width in filter(None, (latent.query_rank, latent.key_value_rank)):
                yield Parameter(_treatment_of_whole(experiment, decays=False), width)
        elif matrix.split == "columns":
            yield Parameter(_treatment_of_part(decays=True), matrix.columns // t, matrix.depth)
        else:
            yield Parameter(_treatment_of_part(decays=True), matrix.columns, matrix.depth // t, split=1)


def _feed_forward(experiment: Experiment, ffn_hidden_size: int) -> Iterator[Parameter]:
    model, f = experiment.model, ffn_hidden_size // experiment.parallel.tensor_parallel_size
    return _pair(experiment, (2 if model.gated_mlp else 1) * f, f, biases=(model.has_mlp_bias, model.has_mlp_bias))


def _pair(experiment: Experiment, columns: int, depth: int, *, biases: tuple[bool, bool]) -> Iterator[Parameter]:
    """A column product and the row product that follows it, with `columns` results and `depth` inputs on a rank."""
    h = experiment.model.hidden_size
    yield Parameter(_treatment_of_part(decays=True), columns, h)
    yield Parameter(_treatment_of_part(decays=True), h, depth, split=1)
    if biases[0]:
        yield Parameter(_treatment_of_part(decays=False), columns)
    if biases[1]:
        yield Parameter(_treatment_of_whole(experiment, decays=False), h)


def _mixture(experiment: Experiment) -> Iterator[Parameter]:
    """A router, the experts of a rank, and the expert that all tokens pass through where there is one."""
    experts, h = experiment.model.experts, experiment.model.hidden_size
    assert experts is not None
    yield Parameter(_treatment_of_whole(experiment, decays=True), experts.num_experts, h)
    if "router_bias" in experiment.model.parts:
        yield Parameter(_treatment_of_whole(experiment, decays=False), experts.num_experts)
    own, width = experts.num_experts // experiment.parallel.expert_parallel_size, experts.ffn_hidden_size
    held = Treatment(True, copied_over=(), summed_over=(), reduced_over=(EXPERT_REPLICAS,))
    yield Parameter(held, own * 2 * width, h)
    yield Parameter(held, own * h, width)
    if experiment.model.has_mlp_bias:
        yield from (Parameter(held._replace(decays=False), own * columns) for columns in (2 * width, h))
    if experts.shared_ffn_hidden_size:
        yield from _feed_forward(experiment, experts.shared_ffn_hidden_size)


def _end(experiment: Experiment, tied: bool) -> Iterator[Parameter]:
    """Final norm, and the head where its weight is not the embedding's on this stage."""
    model = experiment.model
    yield from _norm(experiment)
    # A tied head on a later stage is a second copy; the first stage counts it, so that the global norm has it once.
    if tied or not model.tied_embeddings:
        rows = model.vocab_size // experiment.parallel.tensor_parallel_size
        yield Parameter(_treatment_of_part(decays=True, tied=tied), rows, model.hidden_size)


def _norm(experiment: Experiment) -> list[Parameter]:
    vectors = 2 if experiment.model.family == "gpt" else 1
    return [Parameter(_treatment_of_whole(experiment, decays=False), experiment.model.hidden_size)] * vectors


def _treatment_of_part(*, decays: bool, tied: bool = False) -> Treatment:
    """Return the treatment of a parameter of which each tensor rank holds a part."""
    at_both_ends = (ENDS,) if tied else ()
    return Treatment(decays, copied_over=at_both_ends, summed_over=at_both_ends)


def _treatment_of_whole(experiment: Experiment, *, decays: bool) -> Treatment:
    """Return the treatment of a parameter that every tensor rank holds whole."""
    parallel = experiment.parallel
    on_all = _all_ranks(parallel.tensor_parallel_size)
    return Treatment(decays, copied_over=on_all, summed_over=on_all if parallel.sequence_parallel else ())


def _all_ranks(tensor_parallel_size: int) -> tuple[str, ...]:
    return ("tensor",) if tensor_parallel_size > 1 else ()
