"""Random plans through other trainers' own parsers, optimizers, schedules and rates: each passes, or is refused here.

python -m benchmarks other_trainers

It needs the environments of `make trainers` and, in MEGATRON_LM, a checkout of Megatron-LM; it says what it leaves out.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any

from benchmarks.target import Target, at_most, figure
from conf.compose.load import compose, load_cluster
from conf.errors import ConfigError
from conf.grouped import grouped
from conf.overrides import Overrides, override_text
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, call_of
from launcher.command_trainer import program_check

ROOT = Path(__file__).parents[1]
PROBE = Path(__file__).with_name("other_trainers_probe.py")
SEED, NUM_PLANS, TIMEOUT_SECONDS = 7, 300, 3600.0
SHARES = {"megatron-lm": 0.6, "torchtitan": 0.25, "deepspeed": 0.05, "hf-trainer": 0.05, "hf-deepspeed": 0.05}
"""How many of the plans are for which trainer."""
PARSERS = {"deepspeed": "deepspeed", "hf-trainer": "deepspeed", "hf-deepspeed": "deepspeed"}
ENVIRONMENTS = {"megatron-lm": "megatron-lm", "torchtitan": "torchtitan", "deepspeed": "huggingface"}
LATENT = ("deepseek-v3",)
MODELS = {
    "megatron-lm": (
        "llama-3.1-8b",
        "llama-2-70b",
        "gpt-22b",
        "gpt-175b",
        "qwen3-30b-a3b",
        "mixtral-8x7b",
        "deepseek-v3",
    ),
    "torchtitan": ("llama-3.1-8b", "llama-3.1-70b"),
    "deepspeed": ("gpt-22b", "llama-2-7b"),
    "hf-trainer": ("llama-3.1-8b", "llama-2-7b"),
    "hf-deepspeed": ("llama-3.1-8b", "llama-2-7b"),
}
NUM_EXPERTS = {"qwen3-30b-a3b": 128, "mixtral-8x7b": 8, "deepseek-v3": 256}
NUM_LAYERS = {"llama-3.1-8b": 32, "llama-2-70b": 80, "llama-3.1-70b": 80, "gpt-22b": 48, "gpt-175b": 96}
STAGES = (1, 2, 3, 4, 6, 8, 16)
RECIPES = {
    "dgx-h100": ("fp8-delayed", "fp8-tensorwise", "fp8-blockwise"),
    "dgx-b200": ("fp8-delayed", "fp8-tensorwise", "mxfp8", "nvfp4"),
    "gb200-nvl72": ("fp8-delayed", "fp8-tensorwise", "mxfp8", "nvfp4"),
    "selene": (),
    "dgx1-v100": (),
}
"""By cluster, the recipes that its devices multiply in."""
RARE = 0.04
"""How often a key has a value that is meant to be refused, or that its trainer has no flag for."""


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


@dataclass
class RandomPlan:
    """One random plan for a trainer, key by key; most values go together, so that few plans are refused for a slip."""

    trainer: str
    random: random.Random

    def __post_init__(self) -> None:
        self.values: dict[str, object] = {}
        self.model = self.random.choice(MODELS[self.trainer])
        self.cluster = self.random.choice(("dgx-h100", *RECIPES)[: 5 if self.trainer == "torchtitan" else 6])
        self.is_megatron = self.trainer == "megatron-lm"

    def overrides(self) -> list[str]:
        self._sizes()
        self._placing()
        self._precision()
        self._training()
        if self.model in NUM_EXPERTS:
            self._experts()
        chosen = [f"trainer={self.trainer}", f"model={self.model}", f"cluster={self.cluster}"]
        chosen += ["+trainer.flags.no-rope-fusion=true"] if self.is_megatron else []  # it asks for Transformer Engine
        return chosen + [override_text(key, value) for key, value in self.values.items()]

    def _mostly(self, usual: object, *others: object, share: float = 0.3) -> Any:
        return self.random.choice(others) if others and self.random.random() < share else usual

    def _sizes(self) -> None:
        node = load_cluster(self.cluster).devices_per_node
        world = node * self.random.choice((1, 1, 2, 4, 8))
        plain = self.trainer.startswith("hf")
        tensor = 1 if plain else self.random.choice([size for size in divisors(gcd(node, 8)) if size <= 8])
        stages = 1 if plain else self.random.choice([size for size in divisors(world // tensor) if size in STAGES])
        if self.trainer == "torchtitan" and world == tensor * stages and self.random.random() > RARE:
            world *= 2  # as it shards among replicas alone
        left = world // (tensor * stages)
        context = self._mostly(1, *(size for size in (2, 4) if left % size == 0 and not plain), share=0.25)
        micro, number = self.random.choice((1, 2, 4)), self.random.choice((1, 3, 4, 5, 8, 16, 19, 32))
        self.replicas, self.ranks = left // context, left * tensor
        self.values |= {
            "parallel.world_size": world,
            "parallel.tensor_parallel_size": tensor,
            "parallel.pipeline_parallel_size": stages,
            "parallel.context_parallel_size": context,
            "parallel.sequence_parallel": tensor > 1 and (self.random.random() < 0.8 or self.trainer == "torchtitan"),
            "batch.micro_batch_size": micro,
            "batch.global_batch_size": micro * number * self.replicas,
        }
        if stages > 1:
            self._schedule(stages)

    def _schedule(self, stages: int) -> None:
        others = {"megatron-lm": (), "torchtitan": ("gpipe",), "deepspeed": ("zero-bubble",)}[self.trainer]
        chunked = () if self.trainer == "deepspeed" else ("interleaved",)
        schedule = self._mostly("1f1b", *chunked, *others, share=0.5)
        schedule = self._mostly(schedule, "gpipe", "zero-bubble", "interleaved", share=RARE)
        self.values["parallel.schedule"] = schedule
        if schedule == "interleaved":
            self.values["parallel.virtual_pipeline_size"] = self.random.choice((2, 2, 3, 4, 5))
        layers = NUM_LAYERS.get(self.model)
        if layers and stages in (2, 4) and self.random.random() < 0.25:
            even = layers // stages
            self.values["parallel.layers_per_stage"] = [even - 1, *[even + 1] * (stages - 2), even - 1 + stages % 4]

    def _placing(self) -> None:
        stages = self.values["parallel.pipeline_parallel_size"]
        zero = self.random.choice((0, 1, 1, 2, 3) if stages == 1 and self.is_megatron else (0, 1))
        if not self.is_megatron:
            zero = self.random.choice((2, 3) if stages == 1 else (2,) if self.trainer == "torchtitan" else (0, 1))
        offload = self.is_megatron and self.random.random() < 0.25
        pointwise = ("pointwise",) if self.is_megatron and self.model in ("qwen3-30b-a3b", "mixtral-8x7b") else ()
        groups = [size for size in divisors(self.replicas) if 1 < size < self.replicas]
        own = ("none", "full") if self.trainer.startswith("hf") else ("none", "selective", "full", *pointwise)
        if self.trainer == "deepspeed":
            self.values.pop("parallel.layers_per_stage", None)
            self.values["parallel.context_parallel_size"] = 1
        self.values |= {
            "parallel.zero_stage": self._mostly(zero, 0, 1, 2, share=RARE),
            "parallel.recompute": self._mostly(self.random.choice(own), "pointwise", share=RARE),
            "parallel.recompute_every": self._mostly(1, 2, share=RARE),
            "parallel.offload_optimizer": self._mostly(offload, True, share=RARE),
            "parallel.pipeline_before_data": self._mostly(False, True, share=0.15 if self.is_megatron else RARE),
            "parallel.zero_group_size": self._mostly(None, *groups, share=0.25 if self.is_megatron else RARE),
        }
        if offload:
            self.values["parallel.zero_stage"] = self._mostly(1, 0, 2, share=0.2)

    def _precision(self) -> None:
        is_old = self.cluster == "dgx1-v100"
        other = ("fp32",) if self.trainer == "torchtitan" else ("fp16", "fp32")
        dtype = self._mostly("fp16" if is_old else "bf16", *other, share=0.25)
        recipes = RECIPES[self.cluster] if self.is_megatron and dtype == "bf16" else ()
        narrow = ("bf16",) if dtype == "bf16" and self.trainer not in ("torchtitan", "hf-trainer") else ()
        powers = (1.0, 1024.0, 4294967296.0)
        self.values |= {
            "precision.dtype": dtype,
            "precision.gradient_dtype": self._mostly("fp32", *narrow, share=0.2),
            "precision.matmul_recipe": self._mostly(self._mostly(None, *recipes, share=0.5), "fp8-rowwise", share=RARE),
            "precision.initial_loss_scale": self._mostly(self._mostly(65536.0, *powers), 1000.0, share=RARE),
            "precision.loss_scale_window": self._mostly(1000, 1, 77),
        }

    def _training(self) -> None:
        steps, rate = self.random.choice((1, 2, 10, 300, 20000)), self.random.choice((1e-6, 1e-5, 3e-4, 1e-3))
        plain = RARE if self.trainer == "torchtitan" else 0.2
        self.values |= {
            "training.num_steps": steps,
            "training.num_warmup_steps": 0,
            "training.learning_rate": rate,
            "training.learning_rate_warmup_steps": min(steps, self.random.choice((0, 1, 2, 100, 20000))),
            "training.clip_gradient_norm": self._mostly(1.0, None, 0.5, share=plain),
            "training.dropout": self._mostly(0.0, 0.1, share=plain),
            "training.weight_decay": self._mostly(0.1, 0.0),
            "training.seed": self._mostly(1234, 0, share=RARE),
            "training.deterministic": self._mostly(False, True, share=0.1),
            "checkpoint.every_steps": self._mostly(None, 5),
        }
        if self.random.random() < 0.3:
            self.values["training.min_learning_rate"] = self.random.choice((0.0, rate / 10, rate))

    def _experts(self) -> None:
        tensor, experts = int(str(self.values["parallel.tensor_parallel_size"])), NUM_EXPERTS[self.model]
        split = self._mostly(1, None, tensor, share=0.4)
        ranks = self.ranks // (split or tensor)
        spread = self.random.choice([size for size in divisors(gcd(experts, ranks)) if size <= 64])
        self.values |= {
            "parallel.sequence_parallel": tensor > 1,
            "parallel.expert_parallel_size": spread,
            "parallel.expert_tensor_parallel_size": split,
            "parallel.expert_dispatcher": self._mostly("alltoall", "deepep", "hybridep", share=0.4),
            "model.experts.capacity_factor": self._mostly(None, 1.0, 1.5),
            "model.experts.top_k": self._mostly(2, 1, 8),
            "model.experts.balance_loss": self._mostly(0.0, 0.01, share=0.4),
        }


@cache
def drawn_plans(number: int = NUM_PLANS, seed: int = SEED) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Trainers and overrides; always the same ones."""
    source = random.Random(seed)
    names = [name for name, share in SHARES.items() for _ in range(round(share * number))]
    return tuple((name, tuple(RandomPlan(name, source).overrides())) for name in names)


@dataclass(frozen=True)
class PlanVerdict:
    """What became of a plan.

    Attributes:
        refusal: why it is refused here; None where it is printed.
        failure: why the program fails all the same; None where it passes, or was not asked.
        asked: the program was asked.
    """

    trainer: str
    overrides: tuple[str, ...]
    refusal: str | None = None
    failure: str | None = None
    asked: bool = False


def experiment_or_reason(overrides: Sequence[str]) -> Experiment | str:
    try:
        return compose(Overrides.parse(overrides)).settings.experiment()
    except ConfigError as reason:
        return str(reason)


def verdicts(plans: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[PlanVerdict]:
    """Ask each program about the plans that are not refused here."""
    composed = [(trainer, overrides, experiment_or_reason(overrides)) for trainer, overrides in plans]
    printed = []
    for trainer, overrides, found in composed:
        if isinstance(found, str):
            yield PlanVerdict(trainer, overrides, refusal=found)
        else:
            printed.append((trainer, overrides, found))
    for parser, alike in grouped(printed, lambda each: PARSERS.get(each[0], each[0])).items():
        answer = _answer(parser, [experiment for _, _, experiment in alike])
        for index, (trainer, overrides, _) in enumerate(alike):
            if isinstance(answer, str):
                yield PlanVerdict(trainer, overrides, failure=answer)
            else:
                entry = answer[index]
                yield PlanVerdict(trainer, overrides, failure=entry and entry["problem"], asked=True)


def _answer(parser: str, experiments: Sequence[Experiment]) -> list[Any] | str:
    """What the program says of each; why it could not be asked, else."""
    python = ROOT / ".trainers" / ENVIRONMENTS[parser] / "bin" / "python"
    named = os.environ.get(f"TRISWEEP_{ENVIRONMENTS[parser].replace('-', '_').upper()}_PYTHON", str(python))
    folder = os.environ.get("MEGATRON_LM") if parser == "megatron-lm" else tempfile.gettempdir()
    if not Path(named).is_file() or folder is None:
        return "not here"
    request = {"parser": parser, "calls": [_call(experiment) for experiment in experiments]}
    with tempfile.TemporaryDirectory() as temporary:
        answer = Path(temporary, "answer.json")
        ran = subprocess.run(
            [named, str(PROBE), str(program_check.PROGRAM), str(answer)],
            input=json.dumps(request),
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if not answer.is_file():
            return f"it ended with code {ran.returncode}: {ran.stderr[-2000:]}"
        found = json.loads(answer.read_text())
    return found["refusals"] if "refusals" in found else str(found["missing"])


def _call(experiment: Experiment) -> dict[str, Any]:
    job = {**dict.fromkeys(JOB_NAMES, "0"), "trial_folder": "."}
    return {
        **program_check._call_for_parser(experiment),
        "files": call_of(experiment.trainer, experiment, job).files,
        "num_micro_batches": experiment.num_micro_batches,
        "num_replicas": experiment.data_parallel_size,
    }


def main() -> list[Target]:
    found = list(verdicts(drawn_plans()))
    targets = []
    for trainer, alike in grouped(found, lambda verdict: verdict.trainer).items():
        refused = sum(verdict.refusal is not None for verdict in alike)
        failed = [verdict for verdict in alike if verdict.failure is not None and verdict.asked]
        unasked = next((str(verdict.failure) for verdict in alike if verdict.failure and not verdict.asked), None)
        what = f"{len(alike)} random plans for {trainer}"
        if unasked is not None:
            targets.append(figure(f"{what} ({unasked})", None))
            continue
        remark = f"{len(alike) - refused - len(failed)} pass, {refused} refused here"
        targets.append(at_most(f"{what}: printed, and refused there", 0, len(failed), remark=remark))
        for verdict in failed:
            print(f"{trainer}: {verdict.failure}\n  {' '.join(verdict.overrides)}", file=sys.stderr)
    return targets
