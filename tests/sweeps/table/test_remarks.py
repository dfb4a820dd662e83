"""What a row's words, and recipes beside a published table, say becomes columns, which a user may set as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.table.configuration import DEVICE_COLUMNS, OPTIONAL_COLUMNS
from sweeps.table.remarks import REMARKS, with_columns
from sweeps.table.trainer import as_stated
from train_core.costs import IMPLEMENTATIONS, Implementation
from train_core.costs.trainers import FSDP

CORE = IMPLEMENTATIONS["megatron-core"]
DGXC = "NVIDIA/dgxc-benchmarking @v24.11.1 (35a9aecc8d)"
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge @067f987df"
QWEN_ON_GB200 = {"source": BRIDGE, "num_experts": "128", "gpu": "GB200", "model": "qwen3-30b-a3b"}


def run_as(**cells: str) -> Implementation:
    return as_stated(with_columns(cells), CORE)


def test_a_row_of_no_known_recipe_is_run_as_its_trainer_runs() -> None:
    assert run_as(source="mlcommons/training_results_v3.1", model="gpt3-175b") == CORE
    assert run_as(source=DGXC, model="llama3-70b") == CORE


def test_dgxcs_gpt_drops_values_and_has_the_attention_kernel_of_2023() -> None:
    trainer = run_as(source=DGXC, model="gpt3-175b")
    assert trainer.dropout
    assert trainer.attention_since_hopper == FSDP.attention_since_hopper < CORE.attention_since_hopper


def test_graphs_leave_the_host_nothing_to_launch() -> None:
    source = "NVIDIA/dgxc-benchmarking @v25.05.05 (c5c765f268)"
    trainer = run_as(source=source, model="nemotron4-340b", gpu="GB200")
    assert (trainer.launch_seconds, trainer.collective_call_seconds) == (0.0, 0.0)
    assert run_as(source=source, model="nemotron4-340b", gpu="H100-80GB-SXM") == CORE


@pytest.mark.parametrize(
    ("release", "precision", "overlap"),
    [
        ("26.02.01", "mxfp8", 0.0),
        ("26.04.01", "mxfp8", 0.0),
        ("26.06", "mxfp8", 1.0),
        ("26.08", "mxfp8", 1.0),
        ("27.02", "mxfp8", 1.0),
        ("26.08", "bf16", 0.0),
    ],
)
def test_exchanges_run_beside_another_micro_batch_since_a_release(release: str, precision: str, overlap: float) -> None:
    source = f"{BRIDGE} ({release} container)"
    trainer = run_as(source=source, num_experts="128", precision=precision)
    assert (trainer.experts_overlap, trainer.launch_seconds == 0.0) == (overlap, overlap == 1.0)


@pytest.mark.parametrize("denied", ["no OOM", "not out of memory", "without any deepep", "w/o deepep"])
def test_words_that_a_row_denies_say_nothing(denied: str) -> None:
    cells = {"notes": denied, "num_experts": "8"}
    assert with_columns(cells) == cells
    assert with_columns({"notes": f"{denied}; deepep elsewhere"})["dispatcher"] == "deepep"


@pytest.mark.parametrize(
    ("cells", "dispatcher"),
    [
        ({}, "alltoall"),
        ({"notes": "DeepEP + 1F1B all-to-all overlap; forced load balance"}, "deepep"),
        ({"notes": "HybridEP, CUDA graphs"}, "hybridep"),
        ({"notes": "all-to-all dispatcher"}, "alltoall"),
        ({"dispatcher": "DeepEP", "source": BRIDGE, "num_experts": "128"}, "deepep"),
        ({"source": BRIDGE, "num_experts": "128"}, "hybridep"),
        ({"source": BRIDGE, "num_experts": "1"}, "alltoall"),
        ({"source": BRIDGE, "num_experts": "256", "gpu": "B200", "model": "deepseek-v3", "vpp": "2.0"}, "hybridep"),
        (
            {
                **{"source": BRIDGE, "num_experts": "256", "gpu": "B200", "model": "deepseek-v3", "vpp": "2.0"},
                "precision": "mxfp8",
            },
            "deepep",
        ),
    ],
)
def test_tokens_are_dispatched_as_a_row_or_its_recipe_says(cells: dict[str, str], dispatcher: str) -> None:
    assert with_columns(cells).get("dispatcher", "alltoall").lower() == dispatcher


@pytest.mark.parametrize(
    ("release", "gpu", "precision", "dispatcher", "overlap", "is_fused"),
    [
        ("26.02", "B300", "bf16", "alltoall", 0.0, False),
        ("26.02", "GB200", "bf16", "alltoall", 0.0, False),
        ("26.04.01", "B200", "bf16", "alltoall", 0.0, False),
        ("26.04.01", "B300", "bf16", "hybridep", 0.0, False),
        ("26.04.01", "GB200", "bf16", "alltoall", 1.0, False),
        ("26.04.01", "GB300", "bf16", "alltoall", 0.0, False),
        ("26.04.01", "GB300", "mxfp8", "alltoall", 0.0, False),
        ("26.06", "H100", "fp8", "alltoall", 0.0, False),
        ("26.06", "B200", "mxfp8", "alltoall", 0.0, False),
        ("26.06", "B300", "mxfp8", "hybridep", 0.0, False),
        ("26.08", "GB300", "mxfp8", "hybridep", 1.0, True),
    ],
)
def test_gpt_oss_runs_as_its_own_recipes_of_a_release_say(
    release: str, gpu: str, precision: str, dispatcher: str, overlap: float, is_fused: bool
) -> None:
    cells = {"source": f"{BRIDGE} ({release} container)", "model": "gpt-oss-120b", "num_experts": "128"}
    trainer = run_as(**cells, gpu=gpu, precision=precision)
    assert with_columns({**cells, "gpu": gpu, "precision": precision})["dispatcher"] == dispatcher
    # Recipes whose step is one graph are those with Transformer Engine's fused experts.
    assert (trainer.launch_seconds == 0.0, not trainer.unfused_expert_biases) == (is_fused, is_fused)
    assert trainer.experts_overlap == overlap


def test_a_dense_row_says_nothing_about_experts() -> None:
    assert run_as(source=f"{BRIDGE} (26.08 container)", num_experts="", precision="mxfp8") == CORE
    assert run_as(source=f"{BRIDGE} (26.08 container)", num_experts="1", precision="mxfp8") == CORE


def test_the_megatron_of_april_2021_reduces_nothing_beside_weight_gradients_and_that_of_2022_does() -> None:
    megatron = IMPLEMENTATIONS["megatron-lm"]
    assert not as_stated(with_columns({"arxiv": "2104.04473"}), megatron).overlaps_weight_gradient
    assert as_stated(with_columns({"arxiv": "2205.05198"}), megatron).overlaps_weight_gradient


@pytest.mark.parametrize("column", sorted({remark.column for remark in REMARKS}))
def test_a_column_that_a_row_fills_is_never_replaced(column: str) -> None:
    said = {
        "notes": "AsyncTP, DeepEP, all-reduce excluded, out of memory, zero1=8, local batch 4, muon, no grouped gemm"
    }
    assert with_columns({**said, column: "mine"})[column] == "mine"


@pytest.mark.parametrize(
    ("words", "column", "cell"),
    [
        ({"notes": "no TP comm overlap"}, "async_tp", "no"),
        ({"source": "Megatron-LM"}, "async_tp", "no"),
        ({"notes": "userbuffers"}, "async_tp", "yes"),
        ({"notes": "no grouped GEMM"}, "grouped_gemm", "no"),
        ({"assumed": "4 x 100 Gb/s RoCE per node"}, "network_gbits_per_node", "4 x 100"),
        ({"assumed": "4 x 100 Gb/s RoCE per node", "cluster": "selene"}, "network_gbits_per_node", ""),
        ({"notes": "trained with Adafactor"}, "optimizer", "adafactor"),
        ({"assumed": "recompute not stated"}, "recompute", "unknown"),
        ({"source": "NeMo", "precision": "fp16"}, "gradient_dtype", ""),
        ({"source": "NeMo", "precision": "bf16"}, "gradient_dtype", "bf16"),
        ({"gpu": "B200", "notes": 'torch.compile; "power limited B200"'}, "power_limit_watts", "700"),
        ({"gpu": "B200", "notes": "power limited to 800 W"}, "power_limit_watts", "800"),
        ({"gpu": "B200", "notes": "power-limited at 0.9 kW"}, "power_limit_watts", ""),
        ({"gpu": "GB200", "notes": "power limited"}, "power_limit_watts", ""),
        ({"gpu": "B200", "source": "MooreThreads/SimuMax @4dcaae5"}, "cluster", "simumax-b200"),
        ({"gpu": "B200", "source": "ours, beside what SimuMax predicts"}, "cluster", ""),
        ({"gpu": "B200", "source": "NVIDIA-NeMo/Megatron-Bridge"}, "cluster", ""),
        ({"notes": "HybridEP; full-iteration CUDA graph; one node"}, "cuda_graphs", "yes"),
        ({"notes": "no CUDA graphs; one node"}, "cuda_graphs", "no"),
        ({"notes": "CUDA graphs off"}, "cuda_graphs", "no"),
        ({"notes": "CUDA graphs are disabled"}, "cuda_graphs", "no"),
        ({**QWEN_ON_GB200, "notes": "CUDA graphs not used"}, "graphs_layers", "no"),
        ({"notes": "CUDA graph of the whole step"}, "cuda_graphs", "yes"),
        ({"notes": "CUDA graphs of attention, router and preprocessing"}, "cuda_graphs", ""),
        ({"notes": "CUDA graphs of attention, router and preprocessing"}, "graphs_layers", "yes"),
        ({"assumed": "recompute / CUDA graph not in the table"}, "cuda_graphs", ""),
        ({**QWEN_ON_GB200, "notes": "all-to-all dispatcher"}, "dispatcher", "alltoall"),
        (QWEN_ON_GB200, "dispatcher", "hybridep"),
        (QWEN_ON_GB200, "graphs_layers", "yes"),
        ({**QWEN_ON_GB200, "gpu": "B200"}, "graphs_layers", ""),
        ({"notes": "capacity factor 1.25"}, "capacity_factor", ""),
        ({"notes": "capacity factor 1.25", "num_experts": "8"}, "capacity_factor", "1.25"),
    ],
)
def test_words_fill_a_column(words: dict[str, str], column: str, cell: str) -> None:
    assert with_columns(words).get(column, "") == cell


def test_a_user_sets_the_same_by_a_column() -> None:
    assert as_stated({"async_tp": "no"}, CORE).tensor_overlap == 0.0
    assert as_stated({"overlap_moe": "yes", "cuda_graphs": "yes"}, CORE) == as_stated(
        with_columns({"source": f"{BRIDGE} (26.08 container)", "num_experts": "8", "precision": "mxfp8"}), CORE
    )


@pytest.mark.parametrize("column", sorted({*OPTIONAL_COLUMNS, *(remark.column for remark in REMARKS)}))
def test_every_column_is_known_and_documented(column: str) -> None:
    page = Path("docs/estimate.md").read_text()
    tables = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    assert column in (*OPTIONAL_COLUMNS, *DEVICE_COLUMNS)
    assert any(f"`{column}`" in names for names in tables)
