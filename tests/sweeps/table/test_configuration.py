"""Rows of a table of configurations: what they mean, what they leave to the usual, and why some cannot be priced."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.folders import options
from costs import IMPLEMENTATIONS
from sweeps.table.clusters import clusters_by_gpu, known_gpus
from sweeps.table.configuration import Configuration, configuration_of
from tests.composed import load_cluster

ROW = {
    "layers": "96",
    "hidden": "12288",
    "heads": "96",
    "seq": "2048",
    "gpu": "A100-80GB-SXM",
    "num_gpus": "384",
    "tp": "8",
    "pp": "12",
    "micro_batch": "1",
    "global_batch": "1536",
}
LLAMA = {"kv_heads": "8", "gated_mlp": "yes", "ffn_hidden": "28672", "layers": "80", "hidden": "8192", "heads": "64"}


def read(**cells: str) -> Configuration:
    return configuration_of({**ROW, **cells})


def reason(**cells: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read(**cells)
    return str(refused.value)


def test_what_a_row_leaves_empty_takes_the_usual_value() -> None:
    configuration = configuration_of({**ROW, "vpp": "", "ffn_hidden": "", "zero_stage": " "})
    model, parallel = configuration.setup.model, configuration.setup.parallel
    assert (model.ffn_hidden_size, model.vocab_size, model.num_query_groups) == (4 * 12288, 51_200, 96)
    assert (model.family, model.gated_mlp, model.tied_embeddings) == ("gpt", False, True)
    assert (parallel.virtual_pipeline_size, parallel.schedule, parallel.zero_stage) == (1, "1f1b", 0)
    assert (parallel.recompute, parallel.sequence_parallel) == ("none", False)
    assert configuration.setup.data_parallel_size == 4
    assert configuration.setup.precision.dtype == "bf16"
    assert configuration.setup.cluster.name == "selene"
    assert configuration.implementation.flash_attention is False
    assert configuration.stage is None


def test_a_device_without_bf16_takes_fp16_where_the_row_does_not_say() -> None:
    assert read(gpu="V100-32GB", tp="1", pp="1", num_gpus="16", global_batch="16").setup.precision.dtype == "fp16"


def test_a_device_without_bf16_refuses_it_where_the_row_says_so() -> None:
    assert "precision = 'bf16': has no peak" in reason(gpu="V100-16GB", num_gpus="384", precision="bf16")


@pytest.mark.parametrize("written", ["yes", "Yes", "TRUE", "true", "1", "1.0"])
def test_flags_are_read_in_every_spelling_of_yes(written: str) -> None:
    assert read(sequence_parallel=written).setup.parallel.sequence_parallel is True


@pytest.mark.parametrize("written", ["no", "No", "FALSE", "0", "0.0", ""])
def test_flags_are_read_in_every_spelling_of_no(written: str) -> None:
    assert read(sequence_parallel=written).setup.parallel.sequence_parallel is False


@pytest.mark.parametrize(
    ("written", "flash"),
    [
        ("v2", True),
        ("v1", True),
        ("sdpa", True),
        ("flex", True),
        ("triton/flash", True),
        ("yes", True),
        ("no", False),
        ("", False),
    ],
)
def test_flash_attention_is_read_by_its_names(written: str, flash: bool) -> None:
    assert read(flash_attention=written).implementation.flash_attention is flash


@pytest.mark.parametrize(
    ("column", "written", "read_as"),
    [
        ("zero_stage", "1.0", 1),
        ("zero_stage", "2 (FSDP SHARD_GRAD_OP)", 2),
        ("recompute", "selective (per op)", "selective"),
        ("recompute", "Full", "full"),
    ],
)
def test_remarks_behind_a_value_are_left_out(column: str, written: str, read_as: object) -> None:
    assert getattr(read(**{column: written}).setup.parallel, column) == read_as


@pytest.mark.parametrize(
    ("written", "dtype"), [("amp_bf16", "bf16"), ("bf16 (fp32 grad accumulation)", "bf16"), ("fp16", "fp16")]
)
def test_precisions_are_read_by_their_leading_word(written: str, dtype: str) -> None:
    assert read(precision=written).setup.precision.dtype == dtype


def test_counts_may_be_written_with_a_decimal_point() -> None:
    assert read(layers="96.0", tp="8.0").setup == read().setup


def test_the_cluster_grows_to_the_devices_of_the_row_and_never_shrinks() -> None:
    selene = load_cluster("selene")
    assert read(num_gpus="19200", global_batch="19200").setup.cluster.num_nodes == 2400
    assert read().setup.cluster == selene


@pytest.mark.parametrize("name", ["A100-80GB-SXM", "V100-16GB", "V100-32GB", "GH200-96GB", "MI250X GCD", "mi250x gcd"])
def test_a_device_picks_its_cluster(name: str) -> None:
    cluster = read(gpu=name, tp="4", pp="12").setup.cluster
    assert name.lower() in {claimed.lower() for claimed in cluster.gpu_names}


@pytest.mark.slow
def test_every_device_name_of_every_cluster_file_is_known() -> None:
    claimed = {name: cluster for cluster in options("cluster") for name in load_cluster(cluster).gpu_names}
    assert set(known_gpus()) == set(claimed)
    assert {name: clusters_by_gpu()[name.lower()] for name in claimed} == {name: (c,) for name, c in claimed.items()}


def test_a_named_cluster_goes_before_the_devices_own() -> None:
    assert read(cluster="mosaicml-a100-80gb").setup.cluster.name == "mosaicml-a100-80gb"
    assert read(cluster="jean-zay", gpu="").setup.cluster.name == "jean-zay"


def test_grouped_keys_and_gated_layers_make_a_llama() -> None:
    model = read(**LLAMA, vocab="128256").setup.model
    assert (model.family, model.num_query_groups, model.gated_mlp, model.tied_embeddings) == ("llama", 8, True, False)


def test_tied_embeddings_are_as_the_row_says_where_it_says() -> None:
    assert read(**LLAMA, tied_embeddings="yes").setup.model.tied_embeddings is True
    assert read(tied_embeddings="no").setup.model.tied_embeddings is False


def test_heads_may_be_wider_than_the_hidden_size_divides() -> None:
    assert read(head_dim="256").setup.model.query_size == 96 * 256


def test_the_vocabulary_is_padded_to_128_rows_a_tensor_rank_as_in_megatron() -> None:
    assert read(vocab="50257").setup.model.vocab_size == 51_200
    assert read(vocab="51200").setup.model.vocab_size == 51_200
    assert read(vocab="50257", tp="1", pp="12").setup.model.vocab_size == 50_304


def test_interleaved_chunks_choose_the_interleaved_schedule() -> None:
    parallel = read(vpp="2").setup.parallel
    assert (parallel.virtual_pipeline_size, parallel.schedule) == (2, "interleaved")


def test_layers_that_do_not_divide_are_spread_as_evenly_as_possible() -> None:
    assert read(layers="78").setup.layers_per_stage == (7,) * 6 + (6,) * 6


def test_sequence_parallelism_without_tensor_ranks_is_off_as_in_megatron() -> None:
    assert read(tp="1", sequence_parallel="yes").setup.parallel.sequence_parallel is False


@pytest.mark.parametrize(
    ("zero_stage", "pp", "flash", "name"),
    [
        ("0", "12", "no", "megatron-lm"),
        ("1", "12", "no", "megatron-deepspeed"),
        ("3", "1", "no", "megatron-deepspeed"),
        ("3", "1", "yes", "fsdp"),
        ("3 (FSDP2)", "1", "no", "fsdp"),
    ],
)
def test_the_trainer_follows_from_the_sharding_and_the_attention(
    zero_stage: str, pp: str, flash: str, name: str
) -> None:
    configuration = read(zero_stage=zero_stage, pp=pp, flash_attention=flash)
    assert configuration.implementation == IMPLEMENTATIONS[name].model_copy(update={"flash_attention": flash == "yes"})


def test_a_given_trainer_goes_before_the_usual_and_a_rows_own_before_both() -> None:
    assert configuration_of(ROW, "trisweep").implementation.name == "trisweep"
    own = {**ROW, "implementation": "fsdp", "iter_time_s": "5"}  # it ran, whatever FSDP is said to run
    assert configuration_of(own, "trisweep").implementation.name == "fsdp"


def test_a_row_may_ask_for_one_stage() -> None:
    assert read(stage="0").stage == 0
    assert read(stage="11").stage == 11


@pytest.mark.parametrize(
    "cells",
    [
        {"model": "Mixtral 8x7B, dense part", "num_experts": "1"},
        {"notes": "no MTP"},
        {"source": "AI-Hypercomputer/maxtext", "implementation": "megatron-core"},
        {"expert_parallel": "1", "context_parallel": "1.0", "gradient_checkpointing": "false"},
        {"expert_parallel": "8", "ep": "1"},
        {"dp": "nan", "ffn_hidden": "N/A", "sequence_parallel": "-"},
        {"seq": "2,048"},
    ],
)
def test_what_changes_no_price_is_no_reason_against_one(cells: dict[str, str]) -> None:
    assert read(**cells).setup.model.seq_length == 2048


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"layers": ""}, "layers = '': is empty"),
        ({"hidden": "wide"}, "hidden = 'wide': is not a number. Write digits"),
        ({"heads": "96.5"}, "heads = '96.5': is not a whole number"),
        ({"seq": "0"}, "seq = '0': is out of range"),
        ({"micro_batch": "-1"}, "micro_batch = '-1': is out of range"),
        ({"hidden": "inf"}, "hidden = 'inf': is not a number up to"),
        ({"hidden": "nan"}, "hidden = '': is empty"),
        ({"hidden": "1e300"}, "hidden = '1e300': is not a number up to"),
        ({"hidden": "960000000"}, "hidden = '960000000': makes a model of"),
        ({"layers": "1000000"}, "layers = '1000000': is out of range. Give a count from 1 to 10,000"),
        ({"dp": "5"}, "dp = '5': times tp x pp = 8 x 12 is not num_gpus = 384"),
        ({"num_gpus": "100"}, "num_gpus = '100': is not a multiple of tp x pp = 8 x 12 = 96"),
        ({"global_batch": "1537"}, "global_batch = '1537': is not a multiple of micro_batch x dp = 1 x 4 = 4"),
        ({"heads": "95"}, "heads = '95': does not divide hidden = 12288"),
        ({"heads": "12", "tp": "32", "pp": "12"}, "tp = '32': does not divide heads = 12"),
        ({"kv_heads": "7"}, "kv_heads = '7': does not divide heads = 96"),
        ({"pp": "96", "layers": "48", "num_gpus": "768"}, "pp = '96': leaves stages without a layer"),
        ({"vpp": "9"}, "vpp = '9': leaves chunks without a layer"),
        ({"num_gpus": "12", "tp": "1", "pp": "12"}, "num_gpus = '12': does not fill whole nodes of 8"),
        ({"ep": "8"}, "ep = '8': needs num_experts, and the row names none"),
        ({"top_k": "2"}, "top_k = '2': needs num_experts, and the row names none"),
        ({"precision": "int8"}, "precision = 'int8': is not known here. Known: bf16"),
        ({"fp8_recipe": "delayed"}, "fp8_recipe = 'delayed': needs a narrow precision"),
        ({"precision": "fp8", "fp8_recipe": "homemade"}, "fp8_recipe = 'homemade': is not known here"),
        ({"precision": "fp8"}, "precision = 'fp8': has no peak for fp8"),
        ({"precision": "fp16", "gradient_dtype": "bf16"}, "gradient_dtype = 'bf16': is narrower than precision"),
        (
            {"model": "nemotronh-56b"},
            "model = 'nemotronh-56b': has layers without attention, and mamba_layers is empty",
        ),
        ({"model": "MiniMax-Text-01"}, "model = 'MiniMax-Text-01': has layers without attention"),
        ({"model": "MiniMax-M2.5"}, "model = 'MiniMax-M2.5': has experts, and num_experts is empty"),
        ({"model": "llama2-70b LoRA"}, "model = 'llama2-70b LoRA': has weights that are not trained"),
        ({"sliding_window": "4096"}, "sliding_window = '4096': is called attention_window here"),
        ({"attention_window": "wide"}, "attention_window = 'wide': cannot be read as a window"),
        ({"model": "Kimi-K2", "num_experts": "384"}, "model = 'Kimi-K2': has latent attention, and mla is empty"),
        ({"model": "gpt-oss-20b", "num_experts": "32"}, "model = 'gpt-oss-20b': has attention within a window, and at"),
        ({"zero_stage": "4"}, "zero_stage = '4': is not known here. Known: 0, none"),
        ({"usual_implementation": "colossal"}, "usual_implementation = 'colossal': is not known here. Known: trisweep"),
        ({"recompute": "every 0th layer"}, "recompute = 'every 0th layer': counts layers by no number"),
        ({"local_batch": "0", "micro_batch": "", "global_batch": ""}, "local_batch = '0': is out of range"),
        (
            {"mla": "128+64 / v 128, q_lora 0, kv_lora 512"},
            "mla = '128+64 / v 128, q_lora 0, kv_lora 512': cannot be read",
        ),
        ({"network_gbits_per_node": "4 x 0"}, "network_gbits_per_node = '4 x 0': is not above zero"),
        ({"recompute": "some"}, "recompute = 'some': is not known here. Known: none"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel = 'maybe': is not known here. Known: yes"),
        ({"model": "Mixtral 8x7B"}, "model = 'Mixtral 8x7B': has experts, and num_experts is empty"),
        ({"model": "Qwen3-30B-A3B"}, "model = 'Qwen3-30B-A3B': has experts, and num_experts is empty"),
        ({"model": "gpt_oss_20b"}, "model = 'gpt_oss_20b': has experts, and num_experts is empty"),
        ({"model": "GPT OSS 20B"}, "model = 'GPT OSS 20B': has experts, and num_experts is empty"),
        (
            {"model": "llama4-maverick", "num_experts": "9"},
            "model = 'llama4-maverick': has experts in every other layer alone",
        ),
        ({"model": "gemma3-27b"}, "model = 'gemma3-27b': has attention within a window"),
        ({"model": "T5-11B"}, "model = 'T5-11B': has parts that do not decode text"),
        ({"mtp_layers": "1"}, "mtp_layers = '1': changes the price, and is not modelled"),
        ({"num_query_groups": "8"}, "num_query_groups = '8': is called kv_heads here. Rename"),
        ({"gradient_checkpointing": "true"}, "gradient_checkpointing = 'true': is called recompute here"),
        ({"flash_attention": "v9"}, "flash_attention = 'v9': is not known here"),
        ({"implementation": "colossal"}, "implementation = 'colossal': is not known here. Known: trisweep"),
        ({"gpu": "TPU v5p"}, "gpu = 'TPU v5p': is not the device of a known cluster. Known: "),
        (
            {"gpu": "selene"},
            "gpu = 'selene': is not the device of a known cluster. It is a cluster's name: put it into",
        ),
        ({"gpu": ""}, "gpu = '': is empty, and no device is taken for granted"),
        ({"cluster": "nowhere"}, "cluster = 'nowhere': is not a known cluster. Known: a800, "),
        ({"cluster": "selen"}, "cluster = 'selen': is not a known cluster. Did you mean selene?"),
        ({"cluster": "frontier"}, "gpu = 'A100-80GB-SXM': is not the device of cluster = frontier"),
        ({"stage": "12"}, "stage = '12': is not one of pp = 12 stages. Choose 0 to 11"),
        ({"stage": "-1"}, "stage = '-1': is below zero"),
    ],
)
def test_a_row_that_cannot_be_priced_says_the_column_the_cell_and_what_would_do(
    cells: dict[str, str], said: str
) -> None:
    complaint = reason(**cells)
    assert complaint.startswith(said)
    assert complaint.endswith((".", "?"))
    assert "model." not in complaint
    assert "parallel." not in complaint
    assert "batch." not in complaint.replace("global_batch.", "").replace("micro_batch.", "")


def test_experts_in_every_other_layer_are_priced_where_all_layers_are_on_one_stage() -> None:
    experts = {"num_experts": "128", "top_k": "1", "dense_layers": "48"}
    row = {
        "model": "llama4-maverick",
        "moe_layer_freq": "2",
        "tp": "8",
        "dp": "",
        "num_gpus": "8",
        "global_batch": "8",
        **experts,
    }
    assert read(**row, pp="1.0").setup.model.num_dense_layers == 48
    assert reason(**row, pp="2").startswith("moe_layer_freq = '2': changes the price, and is not modelled")
    for nothing in ("", "0", "0.0"):
        assert reason(**{**row, "dense_layers": nothing}, pp="1").endswith("with pp = 1 fill in dense_layers.")


def test_an_unknown_device_lists_every_known_one() -> None:
    complaint = reason(gpu="TPUv4")
    for name in known_gpus():
        assert name in complaint


@pytest.mark.parametrize(
    ("cells", "models_memory"),
    [
        ({}, True),
        ({"optimizer": "adafactor"}, False),
        ({"optimizer": "Muon"}, False),
        ({"optimizer": "AdamW"}, True),
        ({"recompute": "unknown"}, False),
        ({"notes": "Adafactor; recompute not in the table"}, True),
    ],
)
def test_memory_is_predicted_unless_the_row_leaves_open_what_is_held(
    cells: dict[str, str], models_memory: bool
) -> None:
    assert read(**cells).models_memory is models_memory
