"""docs/plans.md: what the search answers to questions that others have answered in practice, and why they differ.

python -m benchmarks.expert_plans    searches them all, some minutes, and writes the page

Nobody's row is fitted here: the searches take the constants as they are. A plan of practice is priced by the same
arithmetic, so that the two differ in their knobs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from benchmarks import usual_jobs
from benchmarks.target import Target
from conf.compose.load import compose
from conf.overrides import Overrides
from conf.plan.knobs import KNOBS, KnobValue
from conf.units import GIBIBYTE, TERA
from costs import IMPLEMENTATIONS, Estimate, estimate
from sweeps.confidence import Interval, interval_of
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.plans.strategy import Strategy
from sweeps.planner.request import Request, search_request
from train_core.trial.atomic import write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "plans.md"
HEADER = """<!-- Written by `python -m benchmarks.expert_plans`; do not edit. -->
# Plans beside practice

Would an expert sign what the search proposes? This page is for readers who judge the method: the plan that the search
finds for a question, the plan that somebody has run, and what explains the difference. Both are predicted; *measured*
is what the source of the practice reports. In brackets: by how much the ratio of two predictions for one machine is off
in four pairs of five.
"""
IN_WORDS = {
    "compute_seconds": "computing",
    "tensor_seconds": "collectives inside layers",
    "pipeline_seconds": "sending between stages",
    "bubble_seconds": "waiting in the pipeline",
    "data_seconds": "collectives over replicas",
    "optimizer_seconds": "the update",
    "waiting_seconds": "waiting for the slowest device",
}
"""Terms of a step (`costs.terms.SecondsByTerm`)."""
LEAST_SHARE = 0.01
"""Terms that are a smaller share of both steps are not shown."""
LEAST_DIFFERENCE = 0.005  # what is smaller rounds to 0 %
PLAIN = {knob.name: knob.plain for knob in KNOBS if knob.has_plain}
WIDTH = 120


@dataclass(frozen=True)
class Question:
    """A model on a machine, and how somebody has trained it there.

    Attributes:
        practice: knobs of the plan that was run; the others are at their plain values.
        source: where that plan, and what was measured of it, are published.
        measured: in words, what the source reports of its speed; empty where it does not.
        remark: why an expert would choose the one or the other.
    """

    title: str
    overrides: str
    devices: int
    trainer: str
    practice: Mapping[str, KnobValue]
    source: str
    measured: str
    remark: str


LLAMA_PLAN: dict[str, KnobValue] = {
    "tensor_parallel_size": 8,
    "pipeline_parallel_size": 16,
    "micro_batch_size": 1,
    "zero_stage": 1,
    "sequence_parallel": True,
    "schedule": "interleaved",
    "virtual_pipeline_size": 8,
    "layers_per_stage": (7, *(8,) * 14, 7),
}
"""126 layers on 16 interleaved stages: the first and the last one less, as the paper says."""
QUESTIONS = (
    Question(
        "GPT-3 175B on 768 A100",
        "model=gpt-175b cluster=selene precision=bf16 batch.global_batch_size=1536",
        768,
        "megatron-lm",
        {"tensor_parallel_size": 8, "pipeline_parallel_size": 12, "micro_batch_size": 1, "recompute": "full"},
        "Narayanan et al., arXiv 2104.04473, Table 2 (taken as not interleaved, which it does not say)",
        "149 TFLOPS a GPU, recomputation counted, that is 38 s a step",
        "In 2021 Megatron-LM sharded neither the optimizer's state nor what norms keep, and recomputed whole layers.",
    ),
    Question(
        "Llama 3.1 405B on 16,384 H100, sequences of 8,192 tokens",
        "model=llama-3.1-405b cluster=dgx-h100 cluster.num_nodes=2048 precision=bf16 batch.global_batch_size=2048",
        16384,
        "megatron-core",
        LLAMA_PLAN,
        "The Llama 3 Herd of Models, arXiv 2407.21783, Table 4 (the number of chunks is assumed)",
        "400 TFLOPS a GPU, that is 6.2 s a step",
        "Meta's trainer shards weights and gradients too (FSDP), in nodes of its own network.",
    ),
    Question(
        "Llama 3.1 405B on 16,384 H100, sequences of 131,072 tokens",
        "model=llama-3.1-405b cluster=dgx-h100 cluster.num_nodes=2048 precision=bf16 batch.global_batch_size=128"
        " model.seq_length=131072",
        16384,
        "megatron-core",
        {**LLAMA_PLAN, "context_parallel_size": 16},
        "The Llama 3 Herd of Models, arXiv 2407.21783, Table 4 (the number of chunks is assumed)",
        "380 TFLOPS a GPU",
        "A replica has 16 micro-batches for 16 stages, so that the bubble is what a plan can save.",
    ),
    Question(
        "DeepSeek-V3 on 2,048 H800",
        "model=deepseek-v3 cluster=h800 cluster.num_nodes=256 precision=fp8 precision.matmul_recipe=fp8-blockwise"
        " batch.global_batch_size=15360",
        2048,
        "megatron-core",
        {
            "pipeline_parallel_size": 16,
            "expert_parallel_size": 64,
            "micro_batch_size": 1,
            "zero_stage": 1,
            "recompute": "selective",
        },
        "DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3",
        "180 thousand GPU-hours a trillion tokens, that is 20 s a step",
        "DualPipe hides the experts' exchange beside computation of another micro-batch; no trainer here has it.",
    ),
    Question(
        "Qwen3-30B-A3B on 8 GB200",
        "model=qwen3-30b-a3b cluster=gb200-nvl72 cluster.efficiency.launch=0.01 precision=mxfp8"
        " batch.global_batch_size=512",
        8,
        "megatron-core",
        {"expert_parallel_size": 8, "micro_batch_size": 4, "zero_stage": 1},
        "Megatron-Bridge's performance summary, 26.08",
        "6.56 s a step",
        "One CUDA graph launches the whole step, so that the hosts are priced with next to no time for launches.",
    ),
    Question(
        "A Llama of 70B on 192 tiles of Aurora",
        "model=llama-3.1-70b model.vocab_size=32000 cluster=aurora precision=bf16 batch.global_batch_size=192",
        192,
        "megatron-deepspeed",
        {"pipeline_parallel_size": 16, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
        "ALCF's notes on AuroraGPT-70B in argonne-lcf/Megatron-DeepSpeed",
        "59.9 TFLOPS a tile",
        "Twelve tiles share a node, so tensor ranks have to be 1, 2, 3, 4, 6 or 12 of them.",
    ),
)


@dataclass(frozen=True)
class PricedPlan:
    label: str
    predicted: Estimate
    interval: Interval

    @classmethod
    def of(cls, strategy: Strategy, wanted: Request, trainer: str) -> PricedPlan:
        """The plan at the costs of a trainer.

        Raises:
            InfeasiblePlan: there can be no such plan.
        """
        setup = strategy.setup(wanted.settings)
        predicted = estimate(setup, IMPLEMENTATIONS[trainer])
        label = strategy.label(wanted.settings.model.num_layers)
        return cls(label, predicted, interval_of(setup, trainer, predicted, "recipe"))


def main() -> list[Target]:
    """Write the page. Nothing is promised here, so there are no targets."""
    sections = (line for question in QUESTIONS for line in _section(question))
    write_atomically(PAGE, "\n".join((HEADER, *sections, *usual_jobs.table(), "")))
    return []


def _section(question: Question) -> Iterator[str]:
    wanted = search_request(
        compose(Overrides.parse(question.overrides.split())),
        devices=str(question.devices),
        implementation=question.trainer,
    )
    best = choose_plans(wanted.spaces, "time", Training(), 1).best[0]
    batch = wanted.settings.batch.global_batch_size
    run = Strategy.of({**PLAIN, **question.practice, "world_size": question.devices, "global_batch_size": batch})
    ours, theirs = (PricedPlan.of(each, wanted, question.trainer) for each in (best.strategy, run))
    yield f"\n## {question.title}\n"
    yield from wrap(
        f"`trisweep plan --search {question.overrides} --devices {question.devices} --implementation"
        f" {question.trainer}`",
        WIDTH,
    )
    yield "\n| | found | in practice |"
    yield "| --- | --- | --- |"
    yield from (f"| {' | '.join(row)} |" for row in _rows(ours, theirs))
    told = f"In practice: {question.source}; measured: {question.measured}. {_difference(ours, theirs)}"
    yield "\n" + "\n".join(wrap(f"{told} {question.remark}", WIDTH))


def _rows(ours: PricedPlan, theirs: PricedPlan) -> Iterator[tuple[str, ...]]:
    plans = (ours, theirs)
    yield "plan", *(f"`{each.label}`" for each in plans)
    yield "seconds of a step", *(f"{each.predicted.step_seconds:.3g}" for each in plans)
    yield (
        "interval of 80 %",
        *(f"{each.interval.low_seconds:.3g} to {each.interval.high_seconds:.3g}" for each in plans),
    )
    rates = (each.predicted.model_flops_per_second_per_device / TERA for each in plans)
    yield "model TFLOPS a device", *(f"{rate:.0f}" for rate in rates)
    yield "GiB a device", *(_memory(each.predicted) for each in plans)
    for term in IN_WORDS:
        shares = [getattr(each.predicted.step_terms, term) / each.predicted.step_seconds for each in plans]
        if max(shares) >= LEAST_SHARE:
            yield f"of it {IN_WORDS[term]}", *(f"{share:.0%}" for share in shares)


def _memory(predicted: Estimate) -> str:
    room = "" if predicted.fits else f", {predicted.shortfall_bytes / GIBIBYTE:.0f} more than there are"
    return f"{predicted.peak_memory_bytes / GIBIBYTE:.0f}{room}"


def _difference(ours: PricedPlan, theirs: PricedPlan) -> str:
    """A sentence on how much the one is faster on paper, and whether that is more than such predictions err."""
    ratio = theirs.predicted.step_seconds / ours.predicted.step_seconds - 1
    sure = "more" if abs(ratio) > ours.interval.rivals else "no more"
    if ours.label == theirs.label:
        return "It is the plan that the search finds."
    if abs(ratio) < LEAST_DIFFERENCE:
        return "On paper its step takes as long as that of the plan found."
    longer = "less" if ratio < 0 else "longer"
    return (
        f"On paper its step takes {abs(ratio):.0%} {longer} than that of the plan found, which is {sure} than two"
        f" predictions differ by ({ours.interval.rivals:.0%})."
    )


if __name__ == "__main__":
    main()
