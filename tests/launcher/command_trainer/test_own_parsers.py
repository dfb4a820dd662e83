"""Plans through the trainers' own parsers, where these are: a checkout of Megatron-LM, a Python that has torchtitan.

Megatron-LM is named by TRISWEEP_MEGATRON_LM, a checkout of it, and TRISWEEP_MEGATRON_LM_PYTHON, a Python with what it
imports; torchtitan by TRISWEEP_TORCHTITAN_PYTHON. Without a Python named, this one is taken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from conf.plan.experiment import Experiment
from launcher.command_trainer.program_check import Refusal, UncheckedError, refusals_of
from tests.composed import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]  # the check itself gives up after 900 s

STAND_INS = {
    # What only a newer Python has is a mark on methods.
    "sitecustomize.py": 'import typing\ntyping.override = getattr(typing, "override", lambda method: method)\n',
}
JOB = ("batch.global_batch_size=128", "parallel.world_size=64")
LLAMA = ("model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", *JOB)
GPT = ("model=gpt-22b", "cluster=selene", "precision=bf16", *JOB)
QWEN = ("model=qwen3-30b-a3b", "cluster=dgx-h100", "precision=bf16", *JOB)
DEEPSEEK = ("model=deepseek-v3", "cluster=gb200-nvl72", "precision=bf16", "batch.global_batch_size=256")
DEEPSEEK_RANKS = ("parallel.world_size=256", "parallel.expert_parallel_size=16", "parallel.zero_stage=1")


def stages(number: int, chunks: int = 1, layers: str = "") -> tuple[str, ...]:
    listed = (f"parallel.layers_per_stage={layers}",) if layers else ()
    interleaved = ("parallel.schedule=interleaved", f"parallel.virtual_pipeline_size={chunks}") if chunks > 1 else ()
    return (f"parallel.pipeline_parallel_size={number}", *interleaved, *listed)


TENSOR = ("parallel.tensor_parallel_size=4", "parallel.sequence_parallel=true")
ZERO = tuple(f"parallel.zero_stage={stage}" for stage in range(4))
EXPERTS = ("parallel.expert_parallel_size=8", ZERO[1])
RECOMPUTED = tuple(f"parallel.recompute={kind}" for kind in ("none", "selective", "full"))
NARROW = tuple(f"precision.matmul_recipe={recipe}" for recipe in ("fp8-delayed", "fp8-tensorwise", "fp8-blockwise"))
PLANS_OF_MEGATRON_LM: list[tuple[str, ...]] = [
    *((*model, stage) for model in (LLAMA, GPT) for stage in ZERO),
    *((*model, *TENSOR, kind) for model in (LLAMA, GPT) for kind in RECOMPUTED),
    *((*LLAMA, *TENSOR, *stages(4, chunks), ZERO[1]) for chunks in (1, 2, 4, 8)),
    *((*LLAMA, *TENSOR, *stages(4, chunks), ZERO[0]) for chunks in (3, 5)),
    *((*LLAMA, *stages(4, 1, layers)) for layers in ("[7,9,9,7]", "[6,10,9,7]", "[7,8,8,9]", "[9,8,8,7]")),
    *((*LLAMA, *stages(4, 2, layers)) for layers in ("[7,9,9,7]", "[6,10,10,6]")),
    (*LLAMA, *TENSOR, *stages(4, 2), "batch.global_batch_size=76"),
    (*GPT, *stages(5, 1, "[9,10,10,10,9]"), "parallel.world_size=40", "batch.global_batch_size=80"),
    *((*LLAMA, f"parallel.context_parallel_size={size}", *more) for size in (2, 4) for more in ((), TENSOR, stages(2))),
    (*LLAMA, *TENSOR, "parallel.context_parallel_size=2", ZERO[3]),
    (*LLAMA, "parallel.pipeline_before_data=true", *stages(4)),
    (*LLAMA, "parallel.offload_optimizer=true", ZERO[1]),
    (*LLAMA, "parallel.zero_group_size=8", ZERO[1]),
    *((*LLAMA, recipe, stage) for recipe in NARROW for stage in ZERO[:2]),
    (*LLAMA, "cluster=gb200-nvl72", "precision.matmul_recipe=mxfp8", ZERO[1]),
    (*LLAMA, "model.qkv_bias=true", "model.norm_epsilon=1e-6"),
    (*GPT, "precision=fp16", *TENSOR),
    (*GPT, "precision=fp32"),
    (*QWEN, *EXPERTS),
    (*QWEN, *EXPERTS, *stages(4), *RECOMPUTED[2:]),
    (*QWEN, *EXPERTS, *stages(4, 4)),
    (*QWEN, *EXPERTS, "+model.experts.balance_loss=0.01"),
    (*QWEN, *EXPERTS, "model.experts.capacity_factor=1.5"),
    (*QWEN, *EXPERTS, "model.experts.top_k=1"),
    (*QWEN, *EXPERTS, "parallel.recompute=pointwise"),
    (*QWEN, *EXPERTS, *TENSOR, "parallel.expert_tensor_parallel_size=2"),
    *((*QWEN, *EXPERTS, f"parallel.expert_dispatcher={name}") for name in ("deepep", "hybridep")),
    (*DEEPSEEK, *DEEPSEEK_RANKS, *stages(8, 1, "[7,8,8,8,8,8,8,6]")),
    (*DEEPSEEK, *DEEPSEEK_RANKS, *stages(4, 4)),
]
PLANS_OF_TORCHTITAN: list[tuple[str, ...]] = [
    *((*LLAMA, stage) for stage in (ZERO[0], *ZERO[2:])),
    *((*LLAMA, *TENSOR, kind, ZERO[3]) for kind in RECOMPUTED),
    *((*LLAMA, *TENSOR, *stages(4, chunks), ZERO[2]) for chunks in (1, 2, 4)),
    *((*LLAMA, *stages(4, 1, layers), ZERO[2]) for layers in ("[7,9,9,7]", "[9,8,8,7]")),
    (*LLAMA, *stages(4), "parallel.schedule=gpipe", ZERO[2]),
    (*LLAMA, "parallel.context_parallel_size=2", ZERO[3]),
    (*LLAMA, "precision=fp32", ZERO[3]),
    (*LLAMA, "training.compile_layers=true", "batch.micro_batch_size=2", ZERO[3]),
    (*LLAMA, "model=llama-3.1-70b", *TENSOR, *stages(4), ZERO[2]),
]


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for what Megatron-LM imports of a newer Python, in front of what the caller's PYTHONPATH has."""
    for name, content in STAND_INS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))


def megatron_lm() -> list[str]:
    checkout = os.environ.get("TRISWEEP_MEGATRON_LM", "")
    if not Path(checkout, "pretrain_gpt.py").is_file():
        pytest.skip("TRISWEEP_MEGATRON_LM names no checkout of Megatron-LM")
    python = os.environ.get("TRISWEEP_MEGATRON_LM_PYTHON", sys.executable)
    of_the_place = [f"trainer.working_dir={checkout}", f"trainer.python={python}"]
    # Its configuration asks for Transformer Engine there, which no machine without a GPU has; NVFP4 is left out for it.
    return ["trainer=megatron-lm", *of_the_place, "+trainer.flags.no-rope-fusion=true"]


def torchtitan() -> list[str]:
    python = os.environ.get("TRISWEEP_TORCHTITAN_PYTHON")
    if python is None:
        pytest.skip("TRISWEEP_TORCHTITAN_PYTHON names no Python that has torchtitan")
    return ["trainer=torchtitan", f"trainer.python={python}"]


def refusals(experiments: Sequence[Experiment]) -> list[Refusal | None]:
    try:
        return refusals_of(experiments)
    except UncheckedError as reason:
        pytest.skip(f"the parser cannot be asked here: {reason}")


@pytest.mark.usefixtures("own_modules")
def test_megatron_lms_own_parser_takes_every_plan_that_is_printed_for_it() -> None:
    trainer = megatron_lm()
    experiments = [load([*plan, *trainer]).experiment() for plan in PLANS_OF_MEGATRON_LM]
    found = refusals(experiments)
    assert {str(plan): each for plan, each in zip(PLANS_OF_MEGATRON_LM, found, strict=True) if each} == {}


@pytest.mark.usefixtures("own_modules")
def test_megatron_lms_own_parser_names_a_flag_that_it_does_not_know() -> None:
    trainer = megatron_lm()
    wrong = ["+trainer.flags.overlap-grad-reduction=true"]
    (unknown,) = refusals([load([*LLAMA, *trainer, *wrong]).experiment()])
    assert unknown is not None
    assert unknown.flag == "--overlap-grad-reduction"
    assert "--overlap-grad-reduce" in unknown.known


def test_torchtitans_own_parser_takes_every_plan_that_is_printed_for_it() -> None:
    trainer = torchtitan()
    experiments = [load([*plan, *trainer]).experiment() for plan in PLANS_OF_TORCHTITAN]
    found = refusals(experiments)
    assert {str(plan): each for plan, each in zip(PLANS_OF_TORCHTITAN, found, strict=True) if each} == {}


def test_torchtitans_own_parser_names_a_flag_that_it_does_not_know() -> None:
    trainer = torchtitan()
    (unknown,) = refusals([load([*LLAMA, *trainer, "+trainer.flags.training.local_batch=2"]).experiment()])
    assert unknown is not None
    assert unknown.flag == "--training.local_batch"
    assert "--training.local_batch_size" in unknown.known
