"""The table of well-known jobs in docs/plans.md: what the search proposes, beside the sizes that are usual there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from conf.compose.load import compose
from conf.overrides import Overrides
from sweeps.planner.choosing.choice import Candidate, Choice, choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.request import search_request

TRAINER = "megatron-core"
HEADER = f"""
## Well-known jobs

What `trisweep plan --search` proposes for each with `--implementation {TRAINER}`, in bf16. The usual sizes are what
experts would take, from general knowledge and without a source of their own; a proposal with all sizes among them is
signed. MFU and memory are predicted.

| job | proposal | MFU | memory | usual sizes | signed |
| --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True)
class UsualJob:
    """A job that many people run.

    Attributes:
        usual: sizes of each axis that are usual; axes that are not named may have any.
        differs: why the proposal has other ones.
    """

    model: str
    devices: int
    cluster: str
    batch: int
    seq_length: int
    usual: dict[str, tuple[int, ...]]
    differs: str = ""

    @property
    def overrides(self) -> tuple[str, ...]:
        job = f"model={self.model} cluster={self.cluster} precision=bf16 parallel.world_size={self.devices}"
        sizes = f"model.seq_length={self.seq_length} batch.global_batch_size={self.batch}"
        return (*job.split(), "cluster.num_nodes=2048", *sizes.split())


def _sizes(tensor: str, pipeline: str, expert: str = "") -> dict[str, tuple[int, ...]]:
    axes = {"tensor": tensor, "pipeline": pipeline, "expert": expert}
    return {axis: tuple(map(int, words.split())) for axis, words in axes.items() if words}


H100, A100 = "dgx-h100", "selene"
FEW_EXPERT_RANKS = "more expert ranks leave the node; DualPipe, which hides their exchange, is in no trainer here"
NO_RECOMPUTATION = "BLOOM recomputed whole layers, which 24 stages with sequence parallelism need not"
JOBS = (
    UsualJob("llama-3.1-8b", 8, H100, 128, 8192, _sizes("1 2", "1")),
    UsualJob("llama-3.1-8b", 64, H100, 512, 8192, _sizes("1 2", "1")),
    UsualJob("llama-3.1-8b", 64, H100, 32, 131072, _sizes("1 2 4 8", "1")),
    UsualJob("llama-3.1-70b", 64, H100, 128, 8192, _sizes("4 8", "2 4 8")),
    UsualJob("llama-3.1-70b", 512, H100, 512, 8192, _sizes("4 8", "2 4 8")),
    UsualJob("llama-3.1-405b", 1024, H100, 512, 8192, _sizes("8", "8 16")),
    UsualJob("llama-3.1-405b", 16384, H100, 2048, 8192, _sizes("8", "16")),
    UsualJob("mixtral-8x7b", 64, H100, 256, 4096, _sizes("1 2", "1 2 4", "8")),
    UsualJob("mixtral-8x22b", 128, H100, 256, 4096, _sizes("1 2 4", "4 8", "8")),
    UsualJob("qwen3-30b-a3b", 8, "dgx-h200", 512, 4096, _sizes("1", "1", "8")),
    UsualJob("qwen3-235b-a22b", 256, H100, 1024, 4096, _sizes("1 2 4", "4 8 16", "8 16 32")),
    UsualJob("deepseek-v3", 2048, "h800", 15360, 4096, _sizes("1", "16", "32 64"), FEW_EXPERT_RANKS),
    UsualJob("gpt-175b", 1024, A100, 1536, 2048, _sizes("4 8", "8 16")),
    UsualJob("gpt-175b", 1024, "frontier", 1536, 2048, _sizes("2 4 8", "8 16")),
    UsualJob("gpt-1t", 3072, A100, 3072, 2048, _sizes("8", "16 32 64")),
    UsualJob("gpt-1t", 3072, "frontier", 3072, 2048, _sizes("8", "16 32 64")),
    UsualJob("bloom-176b", 384, "jean-zay", 2112, 2048, _sizes("4", "12"), NO_RECOMPUTATION),
    UsualJob("llama-2-7b", 8, A100, 256, 4096, _sizes("1 2", "1")),
    UsualJob("llama-2-13b", 16, "mosaicml-a100-40gb", 256, 4096, _sizes("1 2 4", "1 2 4")),
    UsualJob("gpt-1.4b", 8, A100, 512, 2048, _sizes("1", "1")),
)


def choice_of(job: UsualJob) -> Choice:
    wanted = search_request(compose(Overrides.parse(list(job.overrides))), implementation=TRAINER)
    return choose_plans(wanted.spaces, "time", Training(), 1)


def percent_longer(choice: Choice) -> float:
    """By how much the step of the plan that is proposed is longer than that of the fastest one."""
    return 100 * (choice.best[0].step_seconds / choice.fastest.step_seconds - 1)


def is_signed(job: UsualJob, plan: Candidate) -> bool:
    """True if every size of the plan is usual for such a job."""
    parallel = plan.strategy.parallel
    return all(getattr(parallel, f"{axis}_parallel_size") in sizes for axis, sizes in job.usual.items())


def table() -> Iterator[str]:
    yield HEADER
    longer = list[float]()
    for job in JOBS:
        choice = choice_of(job)
        plan = choice.best[0]
        longer.append(percent_longer(choice))
        memory = plan.peak_memory_bytes / plan.space.setting.cluster.device.memory_bytes
        usual = "; ".join(f"{axis} {', '.join(map(str, sizes))}" for axis, sizes in job.usual.items())
        cells = (
            f"{job.model}, {job.seq_length:,} tokens, {job.devices:,} of {job.cluster}",
            f"`{plan.strategy.label(plan.space.setting.model.num_layers)}`",
            f"{plan.model_flops_utilization:.0%}",
            f"{memory:.0%}",
            usual,
            "yes" if is_signed(job, plan) else f"no: {job.differs}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "Plain plans come first ([departures](planner.md#choosing) count 1 %), which costs of the predicted step"
    yield f"{fmean(longer):.1f} % in the mean and {max(longer):.1f} % at most."
