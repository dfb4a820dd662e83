"""The cost model against the trainer's own step at full size, rehearsed on fake tensors stage by stage."""

from __future__ import annotations

import pytest

from conf.plan.experiment import Experiment
from costs import estimate, hardware_flops
from costs.counts.traffic import stage_traffic
from costs.terms import HELD_KINDS
from costs.trainers import IMPLEMENTATIONS
from tests.composed import load
from train_core.rehearsal.stage import rehearse_stage

FEW = 1e-4
"""Share of a stage's memory below which a kind of it is a few values per token, and not compared by itself."""


def assert_equal(experiment: Experiment, stage: int) -> None:
    counted, predicted = rehearse_stage(experiment, stage), estimate(experiment).stages[stage]
    assert counted.traffic == stage_traffic(experiment, stage)
    for name in HELD_KINDS:
        held, expected = getattr(counted.memory, name), getattr(predicted, name)
        assert held == pytest.approx(expected, rel=0.02, abs=FEW * counted.memory.total_bytes), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "batch", "stages"),
    [
        pytest.param("22b", 6, (0, 4, 7), marks=pytest.mark.thorough),
        pytest.param("175b", 48, (0, 7, 15), marks=pytest.mark.thorough),
        ("1t", 12, (0, 31, 63)),
    ],
)
def test_collectives_equal_the_trainers_and_memory_is_within_2_percent(
    sweep: str, batch: int, stages: tuple[int, ...]
) -> None:
    """The recipes of the study with two or three micro-batches, on 16, 1,024 and 3,072 ranks."""
    experiment = load([f"sweep={sweep}", f"batch.global_batch_size={batch}"]).experiment()
    for stage in stages:
        assert_equal(experiment, stage)


@pytest.mark.slow
def test_sequence_parallelism_without_recomputation_on_the_last_stage() -> None:
    overrides = ["parallel.sequence_parallel=true", "parallel.recompute=none", "batch.global_batch_size=32"]
    assert_equal(load(["sweep=175b", "model.num_layers=16", *overrides]).experiment(), 15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        "parallel.recompute=none",
        "parallel.recompute=full",
        "parallel.recompute=pointwise",
        pytest.param("parallel.recompute=selective", marks=pytest.mark.thorough),
        pytest.param("batch.micro_batch_size=2", marks=pytest.mark.thorough),
        pytest.param("model.gated_mlp=false", marks=pytest.mark.thorough),
    ],
)
def test_a_stage_without_the_head_holds_both_gradients_of_a_gate(more: str) -> None:
    """Where a stage has the head, its logits hide them."""
    sizes = ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "batch.global_batch_size=4"]
    model = ["model=llama-2-7b", "model.num_layers=4", "model.hidden_size=1024", "model.ffn_hidden_size=4096"]
    heads = ["model.num_attention_heads=8", "model.num_query_groups=8", "model.seq_length=2048"]
    run = ["cluster=dgx-h100", "precision=bf16", "batch.micro_batch_size=1", "parallel.recompute=none", more]
    experiment = load([*model, *heads, *sizes, *run]).experiment()
    held = rehearse_stage(experiment, 0).memory.total_bytes
    assert estimate(experiment).stages[0].allocated_bytes == pytest.approx(held, rel=0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_micro_batches", "stage"), [(2, 1), (3, 2), pytest.param(6, 1, marks=pytest.mark.thorough)]
)
def test_a_zero_bubble_stage_of_experts_is_fullest_as_soon_as_all_are_in_flight(
    num_micro_batches: int, stage: int
) -> None:
    """What waits for weight gradients is less there than what a backward pass has yet to come to."""
    model = ["model=mixtral-8x7b", "model.num_layers=9", "model.hidden_size=1024", "model.experts.num_experts=16"]
    heads = ["model.num_attention_heads=16", "model.num_query_groups=8", "model.head_size=128", "model.seq_length=2048"]
    sizes = ["model.experts.ffn_hidden_size=512", "model.vocab_size=8192", "parallel.expert_parallel_size=1"]
    plan = ["parallel.world_size=4", "parallel.pipeline_parallel_size=4", "parallel.schedule=zero-bubble"]
    batch = [f"batch.global_batch_size={num_micro_batches}", "batch.micro_batch_size=1", "parallel.recompute=none"]
    run = ["cluster=dgx-h100", "precision=bf16", "parallel.expert_tensor_parallel_size=1", "parallel.zero_stage=0"]
    experiment = load([*model, *heads, *sizes, *plan, *batch, *run]).experiment()
    held = rehearse_stage(experiment, stage).memory.total_bytes
    assert estimate(experiment).stages[stage].allocated_bytes == pytest.approx(held, rel=0.01)


@pytest.mark.thorough  # than the uneven chunks above
@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_last_stage_of_an_interleaved_pipeline_keeps_the_outputs_of_all_chunks_but_the_last(recompute: str) -> None:
    """Four of them, without sequence parallelism: 3 % of what the stage holds."""
    overrides = [
        *("parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2", f"parallel.recompute={recompute}"),
        *("model.num_layers=8", "parallel.world_size=32", "parallel.pipeline_parallel_size=4"),
        *("parallel.tensor_parallel_size=8", "batch.global_batch_size=16", "batch.micro_batch_size=2"),
    ]
    assert_equal(load(["sweep=22b", *overrides]).experiment(), 3)


FOUR_STAGES = [
    "sweep=22b",
    "parallel.world_size=16",
    "parallel.pipeline_parallel_size=4",
    "parallel.tensor_parallel_size=4",
    "parallel.sequence_parallel=true",
    "batch.micro_batch_size=2",
]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, *(pytest.param(stage, marks=pytest.mark.thorough) for stage in (1, 3))])
@pytest.mark.parametrize(
    ("chunks", "layers", "num_micro_batches", "recompute"),
    [
        (2, "[1,2,2,1]", 8, "pointwise"),  # the embedding alone, and the head alone
        (2, "[3,3,3,3]", 8, "none"),
        # Groups of 5 and 4, whose losses wait.
        pytest.param(3, "[5,5,5,5]", 9, "full", marks=pytest.mark.thorough),
    ],
)
def test_uneven_chunks_hold_what_is_in_flight_of_the_heavier_ones(
    chunks: int, layers: str, num_micro_batches: int, recompute: str, stage: int
) -> None:
    overrides = [
        "parallel.schedule=interleaved",
        f"parallel.virtual_pipeline_size={chunks}",
        f"parallel.layers_per_stage={layers}",
        f"model.num_layers={sum(map(int, layers.strip('[]').split(',')))}",
        f"parallel.recompute={recompute}",
        f"batch.global_batch_size={2 * num_micro_batches}",
    ]
    experiment = load([*FOUR_STAGES, *overrides]).experiment()
    predicted, counted = estimate(experiment).stages[stage], rehearse_stage(experiment, stage)
    assert counted.traffic == stage_traffic(experiment, stage)
    assert counted.memory.total_bytes == pytest.approx(predicted.allocated_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("stage", [0, pytest.param(3, marks=pytest.mark.thorough)])
def test_pointwise_recomputation_holds_one_output_that_it_makes_again(sequence: bool, stage: int) -> None:
    overrides = [
        "model.num_layers=4",
        "parallel.recompute=pointwise",
        f"parallel.sequence_parallel={str(sequence).lower()}",
        "batch.global_batch_size=16",
    ]
    experiment = load([*FOUR_STAGES, *overrides]).experiment()
    predicted, counted = estimate(experiment).stages[stage], rehearse_stage(experiment, stage)
    assert counted.traffic == stage_traffic(experiment, stage)
    assert counted.memory.total_bytes == pytest.approx(predicted.allocated_bytes, rel=1e-3)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recompute", "sequence", "stage"), [("none", False, 0), ("full", True, 1), ("none", True, 2), ("full", False, 3)]
)
def test_a_zero_bubble_schedule_holds_what_weight_gradients_wait_for(
    recompute: str, sequence: bool, stage: int
) -> None:
    """As activations in the cost model; the rehearsal counts what a backward pass made as working memory."""
    overrides = [
        "parallel.schedule=zero-bubble",
        f"parallel.recompute={recompute}",
        f"parallel.sequence_parallel={str(sequence).lower()}",
        "model.num_layers=8",
        "parallel.world_size=32",
        "parallel.pipeline_parallel_size=4",
        "parallel.tensor_parallel_size=8",
        "batch.global_batch_size=10",
        "batch.micro_batch_size=2",
    ]
    experiment = load(["sweep=22b", *overrides]).experiment()
    predicted, held = estimate(experiment).stages[stage], rehearse_stage(experiment, stage).memory
    assert held.total_bytes == pytest.approx(predicted.allocated_bytes, rel=0.02)


@pytest.mark.slow
def test_gpipes_last_stage_keeps_every_loss_until_the_first_backward_pass() -> None:
    """Five micro-batches' logits, and what stands before them."""
    overrides = [
        "parallel.schedule=gpipe",
        "model.num_layers=4",
        "parallel.world_size=32",
        "parallel.pipeline_parallel_size=4",
        "parallel.tensor_parallel_size=8",
        "batch.global_batch_size=10",
        "batch.micro_batch_size=2",
    ]
    experiment = load(["sweep=22b", *overrides]).experiment()
    predicted, held = estimate(experiment).stages[3], rehearse_stage(experiment, 3).memory
    assert held.logits_bytes == pytest.approx(predicted.logits_bytes, rel=1e-3)
    assert held.activations_bytes == pytest.approx(predicted.activations_bytes, rel=1e-3)
    assert held.total_bytes == pytest.approx(predicted.allocated_bytes, rel=0.02)


@pytest.mark.thorough  # than rehearsal/test_rehearse
@pytest.mark.slow
def test_all_micro_batches_of_a_stage_are_counted_though_few_are_taken() -> None:
    """320 of them through eight stages of one layer of the 22B. Inner stages are alike, and the last holds one at a
    time.
    """
    experiment = load(["sweep=22b", "model.num_layers=8"]).experiment()
    assert experiment.num_micro_batches == 320
    first, inner, last = (rehearse_stage(experiment, stage) for stage in (0, 6, 7))
    assert last.traffic == stage_traffic(experiment, 7)
    flops = experiment.data_parallel_size * (first.flops + 6 * inner.flops + last.flops)
    assert flops == hardware_flops(experiment.model, 640, "full")


@pytest.mark.slow
def test_flops_of_fp32_have_the_weight_gradients() -> None:
    """Which are added to what has been summed so far in one operation, and not made first."""
    overrides = ["model=llama-3.1-8b", "model.num_layers=1", "parallel.world_size=2", "batch.global_batch_size=2"]
    experiment = load(
        [*overrides, "parallel.tensor_parallel_size=2", "cluster=frontier", "precision=fp32"]
    ).experiment()
    assert 2 * rehearse_stage(experiment, 0).flops == estimate(experiment).hardware_flops


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_layers", "stage"), [(16, 0), *(pytest.param(48, stage, marks=pytest.mark.thorough) for stage in (0, 3, 7))]
)
def test_zero_2_reduces_every_backward_pass_and_holds_two_buckets_whole(num_layers: int, stage: int) -> None:
    """One whose sum is on its way and one that is added to."""
    overrides = ["parallel.zero_stage=2", "parallel.world_size=64", "batch.global_batch_size=16"]
    experiment = load(["sweep=22b", f"model.num_layers={num_layers}", *overrides]).experiment()
    counted, predicted = rehearse_stage(experiment, stage), estimate(experiment).stages[stage]
    assert counted.traffic == stage_traffic(experiment, stage)
    assert predicted.gradients_bytes == pytest.approx(counted.memory.gradients_bytes, rel=0.07)
    everything = sum(getattr(predicted, name) for name in HELD_KINDS)
    assert everything == pytest.approx(counted.memory.total_bytes, rel=0.02)


LONG = ["model=llama-3.1-8b", "model.num_layers=2", "model.seq_length=32768", "cluster=frontier", "precision=bf16"]
CONTEXT_RANKS = [
    (
        "ring",
        ["parallel.context_parallel_size=8", "parallel.tensor_parallel_size=2", "parallel.sequence_parallel=true"]
        + ["batch.global_batch_size=2"],
    ),
    ("gather", ["parallel.context_parallel_size=4", "parallel.recompute=selective", "parallel.zero_stage=1"]),
    pytest.param(
        "ring",
        ["model=gpt-22b", "model.num_layers=12", "model.seq_length=4096", "parallel.world_size=64"]
        + ["parallel.context_parallel_size=2", "parallel.zero_stage=1", "parallel.tensor_parallel_size=4"]
        + ["parallel.pipeline_parallel_size=4", "parallel.schedule=zero-bubble", "batch.global_batch_size=20"],
        marks=pytest.mark.thorough,
    ),
    (
        "gather",
        ["model.num_layers=4", "parallel.recompute=full", "parallel.recompute_every=2"]
        + ["parallel.context_parallel_size=2", "parallel.pipeline_parallel_size=2"]
        + ["parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2", "batch.global_batch_size=8"],
    ),
    (
        "ring",
        ["model.seq_length=16384", "parallel.world_size=64", "parallel.zero_stage=3"]
        + ["parallel.context_parallel_size=2", "parallel.tensor_parallel_size=2", "parallel.sequence_parallel=true"],
    ),
    # Whole heads of keys, beside which the feed-forward layer is no longer the fullest moment.
    pytest.param(
        "gather",
        ["parallel.context_parallel_size=16", "model.num_query_groups=32", "model.ffn_hidden_size=4096"]
        + ["model.vocab_size=512"],
        marks=pytest.mark.thorough,
    ),
    pytest.param(
        "ring",
        ["parallel.context_parallel_size=16", "model.num_query_groups=32", "model.ffn_hidden_size=4096"]
        + ["model.vocab_size=512", "parallel.recompute=pointwise"],
        marks=pytest.mark.thorough,
    ),
]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(("exchange", "overrides"), CONTEXT_RANKS)
def test_context_ranks_exchange_and_hold_what_the_cost_model_says(exchange: str, overrides: list[str]) -> None:
    """On the last stage."""
    shared = ["parallel.world_size=16", "batch.micro_batch_size=1", "batch.global_batch_size=16"]
    experiment = load([*LONG, *shared, f"parallel.context_exchange={exchange}", *overrides]).experiment()
    last = experiment.parallel.pipeline_parallel_size - 1
    counted, predicted = rehearse_stage(experiment, last), estimate(experiment)
    assert counted.traffic == stage_traffic(experiment, last)
    assert counted.memory.total_bytes == pytest.approx(predicted.stages[last].allocated_bytes, rel=0.02)
    if last == 0:
        assert counted.flops * experiment.parallel.world_size == predicted.hardware_flops


LONG_LATENT = ["model=deepseek-v2", "model.experts=null", "model.num_layers=1", "model.seq_length=32768"]
LATENT_CONTEXT_RANKS = [
    (
        "ring",
        ["parallel.context_parallel_size=8", "parallel.tensor_parallel_size=2", "parallel.sequence_parallel=true"]
        + ["batch.global_batch_size=2"],
    ),
    ("ring", ["parallel.context_parallel_size=2"]),
    ("ring", ["parallel.context_parallel_size=3", "model.seq_length=24576", "parallel.world_size=3"]),
    ("gather", ["parallel.context_parallel_size=4", "batch.global_batch_size=8"]),
    ("gather", ["parallel.context_parallel_size=16", "parallel.recompute=full"]),
]
"""The core is the fullest moment of all of them, with a feed-forward layer and a head that are small beside it."""


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(("exchange", "overrides"), LATENT_CONTEXT_RANKS)
def test_values_narrower_than_keys_go_between_context_ranks_as_they_are(exchange: str, overrides: list[str]) -> None:
    """Nothing of a block is there any more beside the next one."""
    shared = ["parallel.world_size=16", "batch.micro_batch_size=1", "batch.global_batch_size=16"]
    shared += ["cluster=frontier", "precision=bf16", f"parallel.context_exchange={exchange}"]
    shared += ["model.ffn_hidden_size=1024", "model.vocab_size=512"]
    experiment = load([*LONG_LATENT, *shared, *overrides]).experiment()
    counted, predicted = rehearse_stage(experiment, 0), estimate(experiment)
    assert counted.traffic == stage_traffic(experiment, 0)
    assert counted.memory.total_bytes == pytest.approx(predicted.stages[0].allocated_bytes, rel=2e-3)
    assert counted.flops * experiment.parallel.world_size == predicted.hardware_flops


SPARSE = ["cluster=frontier", "precision=bf16", "batch.micro_batch_size=1", "model.num_layers=2"]
MIXTRAL, DEEPSEEK = "model=mixtral-8x7b", ["model=deepseek-v2", "model.latent_attention=null", "model.head_size=128"]
LATENT = ["model=deepseek-v2", "model.experts.balance_bias=0.001", "model.experts.scores=sigmoid"]
EXPERT_RANKS = [
    [MIXTRAL, "parallel.world_size=16", "parallel.expert_parallel_size=8", "batch.global_batch_size=32"],
    pytest.param(
        [MIXTRAL, "parallel.world_size=16", "parallel.expert_parallel_size=4", "parallel.recompute=full"]
        + ["batch.global_batch_size=32"],
        marks=pytest.mark.thorough,
    ),
    [MIXTRAL, "parallel.world_size=16", "parallel.expert_parallel_size=8", "parallel.context_parallel_size=4"]
    + ["model.seq_length=32768", "batch.global_batch_size=8", "model.experts.balance_loss=0.01"]
    + ["model.experts.balance_bias=0.001", "model.experts.scores=sigmoid", "model.experts.capacity_factor=1.25"],
    ["model=mixtral-8x22b", "parallel.world_size=64", "parallel.tensor_parallel_size=4", "parallel.zero_stage=1"]
    + ["parallel.pipeline_parallel_size=2", "parallel.sequence_parallel=true", "parallel.expert_parallel_size=8"]
    + ["parallel.expert_tensor_parallel_size=1", "batch.global_batch_size=64", "model.experts.balance_loss=0.01"],
    # A shared expert, and a first layer without experts.
    *(
        pytest.param([*DEEPSEEK, *plan], marks=pytest.mark.thorough)
        for plan in (
            ["parallel.world_size=64", "parallel.pipeline_parallel_size=2", "parallel.expert_parallel_size=32"]
            + ["parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2", "parallel.recompute=full"]
            + ["batch.global_batch_size=128", "model.num_layers=4"],
            ["parallel.world_size=64", "parallel.pipeline_parallel_size=2", "parallel.expert_parallel_size=32"]
            + ["parallel.schedule=zero-bubble", "batch.global_batch_size=128", "model.num_layers=4"],
            ["parallel.world_size=32", "parallel.tensor_parallel_size=4", "parallel.sequence_parallel=true"]
            + ["parallel.expert_parallel_size=16", "parallel.expert_tensor_parallel_size=1"]
            + ["batch.global_batch_size=32", "model.experts.capacity_factor=1.0"],
        )
    ),
    # With its latent attention.
    [*LATENT, "parallel.world_size=32", "parallel.tensor_parallel_size=4", "parallel.sequence_parallel=true"]
    + ["parallel.expert_parallel_size=16", "parallel.expert_tensor_parallel_size=1", "batch.global_batch_size=32"],
    pytest.param(
        [*LATENT, "parallel.world_size=64", "parallel.pipeline_parallel_size=2", "parallel.expert_parallel_size=32"]
        + ["parallel.recompute=full", "batch.global_batch_size=128"],
        marks=pytest.mark.thorough,
    ),
]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("overrides", EXPERT_RANKS)
def test_ranks_that_share_out_experts_exchange_and_hold_what_the_cost_model_says(overrides: list[str]) -> None:
    """On all stages, with as many tokens for each expert as for any other."""
    experiment = load([*SPARSE, *overrides]).experiment()
    predicted = estimate(experiment)
    for stage in range(experiment.parallel.pipeline_parallel_size):
        counted = rehearse_stage(experiment, stage)
        assert counted.traffic == stage_traffic(experiment, stage)
        assert counted.memory.total_bytes == pytest.approx(predicted.stages[stage].allocated_bytes, rel=0.02)
        if experiment.parallel.pipeline_parallel_size == 1:
            assert counted.flops * experiment.parallel.world_size == predicted.hardware_flops


@pytest.mark.parametrize(("recompute", "query_rank"), [("none", "1536"), ("full", "null")])
def test_tensor_ranks_that_each_make_the_short_vectors_do_as_many_flops_as_the_estimate_says(
    recompute: str, query_rank: str
) -> None:
    """Of this trainer alone; other estimates count what all ranks need together."""
    of_model = ["model=deepseek-v2", "model.experts=null", "model.num_layers=1", "model.seq_length=512"]
    of_model += [f"model.latent_attention.query_rank={query_rank}", "cluster=frontier", "precision=bf16"]
    plan = ["parallel.world_size=4", "parallel.tensor_parallel_size=4", f"parallel.recompute={recompute}"]
    experiment = load([*of_model, *plan, "batch.global_batch_size=2"]).experiment()
    predicted = estimate(experiment)
    assert rehearse_stage(experiment, 0).flops * 4 == predicted.hardware_flops
    assert predicted.hardware_flops > estimate(experiment, IMPLEMENTATIONS["megatron-core"]).hardware_flops


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            ["model=gpt-22b", "parallel.world_size=16", "batch.global_batch_size=32"],
            marks=pytest.mark.thorough,
            id="a layer's gradients",
        ),
        pytest.param(
            ["model=gpt-22b", "parallel.world_size=48", "parallel.recompute=full", "batch.micro_batch_size=4"]
            + ["parallel.tensor_parallel_size=2", "batch.global_batch_size=192", "precision.gradient_dtype=bf16"]
            + ["model.num_layers=2"],
            id="a layer that recomputes",
        ),
        pytest.param(
            ["model=llama-3.1-8b", "parallel.world_size=64", "parallel.recompute=full", "batch.global_batch_size=64"],
            marks=pytest.mark.thorough,
            id="the loss, once",
        ),
        pytest.param(
            ["model=llama-3.1-8b", "parallel.world_size=64", "parallel.tensor_parallel_size=2"]
            + ["parallel.sequence_parallel=true", "batch.global_batch_size=128"],
            marks=pytest.mark.thorough,
            id="sequence parallelism",
        ),
    ],
)
def test_zero_3_gathers_and_reduces_layer_by_layer(overrides: list[str]) -> None:
    """Of up to eight layers. Ids name the fullest moment; some rows are such as replicas do not share out evenly."""
    shared = ["cluster=frontier", "precision=bf16", "parallel.zero_stage=3", "model.num_layers=8"]
    experiment = load([*shared, *overrides]).experiment()
    counted, predicted = rehearse_stage(experiment, 0), estimate(experiment)
    assert counted.traffic == stage_traffic(experiment, 0)
    assert predicted.stages[0].allocated_bytes == pytest.approx(counted.memory.total_bytes, rel=0.02)
    ranks = experiment.parallel.world_size
    assert counted.flops * ranks == predicted.hardware_flops


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "stage"),
    [
        (
            ["model.num_layers=3", "precision.wide_layers=1"]
            + ["parallel.sequence_parallel=true", "parallel.recompute=full"],
            0,
        ),
        (["model.num_layers=2", "parallel.pipeline_parallel_size=2", "parallel.schedule=zero-bubble"], 1),
    ],
)
def test_exchanges_of_the_largest_values_of_tensors_are_rehearsed_and_counted(plan: list[str], stage: int) -> None:
    """One for each product forward and for each column product backward, in layers whose products are narrow."""
    shared = ["model=llama-2-7b", "cluster=dgx-h100", "precision=fp8", "model.seq_length=512"]
    ranks = ["parallel.world_size=4", "parallel.tensor_parallel_size=2", "batch.global_batch_size=4"]
    experiment = load([*shared, *ranks, *plan]).experiment()
    assert rehearse_stage(experiment, stage).traffic == stage_traffic(experiment, stage)
    wide = experiment.precision.model_copy(update={"matmul_recipe": None, "wide_layers": 0})
    assert (
        estimate(experiment).step_terms.tensor_seconds
        > estimate(experiment.model_copy(update={"precision": wide})).step_terms.tensor_seconds
    )


SINKS = "model.parts=[sinks,output_bias,mlp_bias,router_bias,capped_activation]"
OLMO2 = "model.parts=[wide_qk_norm,norms_behind,sinks]"
GEMMA2 = "model.parts=[gelu,scaled_embedding,post_norms]"


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("llama-2-7b", (OLMO2, "parallel.recompute=full", "parallel.sequence_parallel=true")),
        ("llama-2-7b", (OLMO2, "parallel.recompute=none", "parallel.sequence_parallel=false")),
        ("llama-2-7b", (OLMO2, "parallel.recompute=pointwise", "parallel.context_parallel_size=2")),
        ("llama-2-7b", (GEMMA2, "parallel.recompute=selective", "model.scores_cap=50.0")),
        ("llama-2-7b", (GEMMA2, "parallel.recompute=none", "parallel.sequence_parallel=true")),
        ("mixtral-8x7b", (SINKS, "parallel.recompute=selective", "parallel.sequence_parallel=true")),
        ("mixtral-8x7b", (SINKS, "parallel.recompute=full", "parallel.sequence_parallel=true")),
    ],
)
def test_parts_of_other_types_cost_what_is_counted(model: str, more: tuple[str, ...]) -> None:
    """Windows too, over which a rehearsal sees all tokens."""
    sizes = ["model.num_layers=4", "model.hidden_size=1024", "model.ffn_hidden_size=4096", "model.seq_length=2048"]
    heads = ["model.num_attention_heads=8", "model.num_query_groups=8", "model.head_size=128"]
    plan = ["parallel.world_size=8", "parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"]
    run = ["cluster=dgx-h100", "precision=bf16", "batch.micro_batch_size=1", "batch.global_batch_size=4"]
    window = "model.attention_window={size: 256, full_every: 2}"
    experts = ["model.experts.ffn_hidden_size=512", "parallel.expert_parallel_size=2", "model.qkv_bias=true"]
    experts += ["parallel.expert_tensor_parallel_size=1"]
    kind = [f"model={model}", *sizes, *heads, window, *(experts if model == "mixtral-8x7b" else ())]
    experiment = load([*kind, *plan, *run, *more]).experiment()
    for stage in range(2):
        predicted, counted = estimate(experiment).stages[stage], rehearse_stage(experiment, stage)
        assert counted.traffic == stage_traffic(experiment, stage)
        assert counted.memory.total_bytes == pytest.approx(predicted.allocated_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", pytest.param("full", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_stage_with_offloaded_activations_keeps_one_layer_and_the_inputs_of_chunks(
    stage: int, recompute: str
) -> None:
    more = [f"parallel.recompute={recompute}", "parallel.offload_activations=true", "batch.global_batch_size=12"]
    experiment = load([*FOUR_STAGES, "model.num_layers=12", *more]).experiment()
    assert_equal(experiment, stage)
    held = estimate(experiment).stages[0].activations_bytes
    model, ranks = experiment.model, experiment.parallel.tensor_parallel_size
    assert held == 5 * 2 * model.seq_length * experiment.batch.micro_batch_size * model.hidden_size // ranks


@pytest.mark.slow
def test_a_layer_of_small_experts_is_fullest_when_the_norm_before_them_runs_backward() -> None:
    model = ["model=mixtral-8x7b", "model.num_layers=2", "model.hidden_size=2048", "model.experts.num_experts=1"]
    heads = ["model.num_attention_heads=4", "model.num_query_groups=1", "model.head_size=64", "model.seq_length=2048"]
    sizes = ["model.experts.ffn_hidden_size=256", "model.vocab_size=4096", "parallel.expert_parallel_size=1"]
    plan = ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.expert_tensor_parallel_size=1"]
    batch = [
        "batch.global_batch_size=2",
        "batch.micro_batch_size=1",
        "parallel.recompute=none",
        "model.experts.top_k=1",
    ]
    experiment = load([*model, *heads, *sizes, *plan, *batch, "cluster=dgx-h100", "precision=bf16"]).experiment()
    held = rehearse_stage(experiment, 0).memory.total_bytes
    assert estimate(experiment).stages[0].allocated_bytes == pytest.approx(held, rel=0.02)
