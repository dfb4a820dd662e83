"""The rules for spreading experts over ranks."""

from __future__ import annotations

from conf.errors import InfeasiblePlan
from conf.nearest import largest_share
from conf.plan.setup_parts import SetupParts
from conf.types.model_spec import ExpertsSpec, ModelSpec
from conf.units import count_of

SIZE, TENSOR_SIZE = "parallel.expert_parallel_size", "parallel.expert_tensor_parallel_size"
DISPATCHER = "parallel.expert_dispatcher"
PLAIN = {SIZE: 1, TENSOR_SIZE: None, DISPATCHER: "alltoall"}
"""The values of a plan about experts where a model has none."""


def check_expert_axis(setup: SetupParts) -> None:
    """Refuse sizes without experts, and sizes that leave unequal shares of experts, of their matrices or of ranks.

    Raises InfeasiblePlan where the experts cannot be spread so.
    """
    experts, parallel = setup.model.experts, setup.parallel
    if experts is None:
        for key, plain in PLAIN.items():
            value = getattr(parallel, key.removeprefix("parallel."))
            if value not in (1, plain):
                remedy = f"Set {key}={'null' if plain is None else plain}, or choose a model with experts."
                raise InfeasiblePlan(key, value, f"spreads experts, and {setup.model.name} has none", remedy)
        return
    _check_shares(setup, experts)
    _check_ranks(setup)
    _check_order(setup)
    if parallel.expert_parallel_size > 1 and parallel.tensor_parallel_size > 1 and not parallel.sequence_parallel:
        problem = f"would send every token {parallel.tensor_parallel_size} times: its tensor ranks hold the same tokens"
        remedy = "Set parallel.sequence_parallel=true, or use parallel.expert_parallel_size=1."
        raise InfeasiblePlan(SIZE, parallel.expert_parallel_size, problem, remedy)


def _check_shares(setup: SetupParts, experts: ExpertsSpec) -> None:
    """Every rank holds as many experts as any other, and as large a part of each."""
    size, split = setup.parallel.expert_parallel_size, _tensor_size(setup)
    if experts.num_experts % size:
        problem = f"does not divide model.experts.num_experts = {experts.num_experts}"
        raise InfeasiblePlan(SIZE, size, problem, f"Use {SIZE}={largest_share([experts.num_experts], below=size)}.")
    width = experts.ffn_hidden_size
    if width % split:
        fitting = largest_share([width], below=split)
        problem = f"does not divide model.experts.ffn_hidden_size = {width}"
        raise InfeasiblePlan(TENSOR_SIZE, split, problem, f"Use {TENSOR_SIZE}={fitting}.")
    shared, t = experts.shared_ffn_hidden_size, setup.parallel.tensor_parallel_size
    if shared % t:
        problem = f"does not divide model.experts.shared_ffn_hidden_size = {shared}"
        remedy = f"Use parallel.tensor_parallel_size={largest_share([shared, t], below=t)}."
        raise InfeasiblePlan("parallel.tensor_parallel_size", t, problem, remedy)


def _check_ranks(setup: SetupParts) -> None:
    """The ranks of a stage are whole groups that hold all experts."""
    size, split = setup.parallel.expert_parallel_size, _tensor_size(setup)
    ranks = setup.parallel.world_size // setup.parallel.pipeline_parallel_size
    if ranks % (size * split):
        raise InfeasiblePlan(
            SIZE,
            size,
            f"does not go into the {count_of(ranks, 'rank')} of a stage with expert_tensor_parallel_size = {split}:"
            f" {size} x {split} = {size * split}",
            f"Choose sizes whose product divides {ranks}.",
        )


def _check_order(setup: SetupParts) -> None:
    """Check that experts are spread over just the ranks of one stage where a replica's stages are neighbours.

    Source: Megatron-LM, megatron/core/parallel_state.py, `initialize_model_parallel`.
    """
    parallel = setup.parallel
    ranks = parallel.tensor_parallel_size * parallel.context_parallel_size
    spread = parallel.expert_parallel_size * _tensor_size(setup)
    if parallel.pipeline_before_data and parallel.pipeline_parallel_size > 1 and spread != ranks:
        raise InfeasiblePlan(
            "parallel.pipeline_before_data",
            True,
            f"needs experts on all {count_of(ranks, 'rank')} of a replica's stage and on no others,"
            f" and they are on {spread}",
            "Set parallel.pipeline_before_data=false, or choose expert_parallel_size x expert_tensor_parallel_size"
            f" = {ranks}.",
        )


def require_own_experts(model: ModelSpec) -> None:
    """Refuse a model whose experts this package's own trainer does not have.

    Raises InfeasiblePlan, which names the key, and what the trainer has.
    """
    if model.experts is None:
        return
    if not model.gated_mlp or model.family != "llama":
        problem = "has experts without gates or with biases, which trainer trisweep does not run"
        remedy = "Use model.family=llama with model.gated_mlp=true, or choose another trainer."
        raise InfeasiblePlan("model.family", model.family, problem, remedy)
    if model.experts.top_k == 1 < model.experts.num_experts:
        # A token's weights are scaled to add up to one, as in the files of Mixtral and Qwen3-MoE.
        problem = "gives a token's only expert the weight 1 in trainer trisweep, so that its router would not learn"
        remedy = "Use model.experts.top_k=2 or more, or choose another trainer."
        raise InfeasiblePlan("model.experts.top_k", 1, problem, remedy)
    if (factor := model.experts.capacity_factor) is not None and factor < 1:
        problem = "drops tokens in trainer trisweep even where all experts have equally many"
        remedy = "Use 1 or more, null to drop none, or choose another trainer."
        raise InfeasiblePlan("model.experts.capacity_factor", factor, problem, remedy)


def check_own_experts(setup: SetupParts) -> None:
    """Refuse experts, and ways to spread them, that can be priced and that this package's own trainer does not have.

    Raises InfeasiblePlan as `require_own_experts`.
    """
    require_own_experts(setup.model)
    parallel = setup.parallel
    if setup.model.experts is None:
        return
    if parallel.tensor_parallel_size > 1 and not (parallel.sequence_parallel and _tensor_size(setup) == 1):
        problem = (
            "is not supported by trisweep with experts, unless sequences are sharded and each rank's experts are whole"
        )
        remedy = f"Use parallel.sequence_parallel=true and {TENSOR_SIZE}=1, or parallel.tensor_parallel_size=1."
        raise InfeasiblePlan("parallel.tensor_parallel_size", parallel.tensor_parallel_size, problem, remedy)


def _tensor_size(setup: SetupParts) -> int:
    stated = setup.parallel.expert_tensor_parallel_size
    return setup.parallel.tensor_parallel_size if stated is None else stated
