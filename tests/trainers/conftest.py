"""Sweeps of real trainers on two CPU ranks: interrupted in the first trial, and gone on with by the same command.

Each needs its environment (`make trainers`); Megatron-LM also a checkout, which is the user's own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".trainers"
PAGE = ROOT / "docs" / "how-to" / "huggingface.md"
CHECKOUT = "MEGATRON_LM"
"""The variable that names a checkout of Megatron-LM."""

ADDRESS_SPACE = 16 << 30
"""No rank may have more, so that a table of so many words is refused on every machine, before it is touched."""

MANY_WORDS = 1_000_000_000
START_SECONDS = 1800
"""So long the first steps may take on a machine with other work, where the imports alone take minutes."""

LEAVE_SECONDS, SWEEP_SECONDS = 600, 3600
"""So long an interrupted sweep may take to leave, and one that goes on to end."""

Values = Mapping[str, object]


@dataclass(frozen=True)
class RealTrainer:
    """A trainer, and the layouts of a tiny model that its sweep tries.

    Attributes:
        environment: its folder in `.trainers`.
        baseline: the layout that is interrupted.
        others: further layouts.
        too_large: what the program is told so that it asks for more memory than there is.
        num_steps: so many that a command which is interrupted has some before it.
        saved_every: steps between checkpoints.
        overrides: of the sweep, beside those of all trainers.
        prepare: writes what the program needs into the folder in which the sweep is started.
    """

    preset: str
    environment: str
    baseline: Values
    others: Sequence[Values]
    too_large: Values
    num_steps: int = 60
    saved_every: int = 10
    overrides: Values = field(default_factory=dict)
    prepare: Callable[[Path], None] = lambda folder: None


def _write_program_of_the_page(folder: Path) -> None:
    (folder / "train.py").write_text(PAGE.read_text().split("```python\n")[1].split("```")[0])
    large = {"model_type": "gpt2", "vocab_size": MANY_WORDS, "hidden_size": 32, "num_hidden_layers": 1, "n_head": 1}
    (folder / "large.json").write_text(json.dumps(large))


def _write_words(folder: Path) -> None:
    """A text and a tokenizer of its words, and torchtitan's own debugging model as a model of the user's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = [" ".join(f"w{line * word % 97}" for word in range(40)) for line in range(400)]
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"]))
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "data").mkdir()
    (folder / "data" / "words.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def _path_of(environment: str) -> str:
    """The PATH on which a trainer that compiles finds its own tools, and `python3-config` of the same Python."""
    settings = ENVIRONMENTS / environment / "pyvenv.cfg"
    home = re.search(r"^home = (.*)$", settings.read_text(), re.MULTILINE) if settings.exists() else None
    folders = [str(ENVIRONMENTS / environment / "bin"), *([home[1]] if home else []), os.environ.get("PATH", "")]
    return os.pathsep.join(folders)


TITAN_MODEL = {
    **{"model.name": "titan-debug", "model.family": "llama", "model.num_layers": 6, "model.hidden_size": 256},
    **{"model.ffn_hidden_size": 768, "model.num_attention_heads": 16, "model.rotary_base": 500_000.0},
    **{"model.gated_mlp": True, "model.tied_embeddings": False, "model.vocab_size": 2048, "model.seq_length": 64},
}
MEGATRON_ON_CPU = {
    **{"distributed-backend": "gloo", "use-cpu-initialization": True, "transformer-impl": "local", "num-workers": 0},
    **dict.fromkeys(("no-persist-layer-norm", "no-gradient-accumulation-fusion", "no-masked-softmax-fusion"), True),
    **dict.fromkeys(("no-bias-gelu-fusion", "no-bias-dropout-fusion", "no-rope-fusion"), True),
}
HUGGINGFACE = RealTrainer(
    preset="hf-trainer",
    environment="huggingface",
    baseline={"parallel.zero_stage": 0},
    others=[{"parallel.zero_stage": 2}, {"parallel.zero_stage": 3}],
    too_large={"trainer.flags.config_name": "large.json"},
    prepare=_write_program_of_the_page,
)
DEEPSPEED_ON_CPU = str(ROOT / "tests" / "trainers" / "deepspeed_on_cpu.py")
TRAINERS = {
    "hf-trainer": HUGGINGFACE,
    "hf-deepspeed": replace(
        HUGGINGFACE,
        preset="hf-deepspeed",
        baseline={"parallel.zero_stage": 1},
        overrides={
            "trainer.command": ["{huggingface_starter}", DEEPSPEED_ON_CPU, "train.py"],
            "trainer.environment.DS_ACCELERATOR": "cpu",
            "trainer.environment.TORCH_EXTENSIONS_DIR": str(ENVIRONMENTS / "huggingface" / "extensions"),
            # Another ninja does not know what `make trainers` has compiled, and would compile it in the first trial.
            "trainer.environment.PATH": _path_of("huggingface"),
        },
    ),
    "torchtitan": RealTrainer(
        preset="torchtitan",
        environment="torchtitan",
        baseline={"parallel.zero_stage": 3},
        others=[{"parallel.tensor_parallel_size": 2}, {"parallel.pipeline_parallel_size": 2}],
        too_large={"trainer.values.flavor.to.titan-debug": "70B"},
        num_steps=12,
        saved_every=4,
        overrides={
            **TITAN_MODEL,
            "trainer.command": [str(ROOT / "tests" / "trainers" / "torchtitan_on_cpu.py")],
            "trainer.values.flavor.to.titan-debug": "debugmodel",
            "trainer.flags.model.hf_assets_path": "tokenizer",
            "trainer.flags.training.dataset_path": "data",
        },
        prepare=_write_words,
    ),
    "megatron-lm": RealTrainer(
        preset="megatron-lm",
        environment="megatron-lm",
        # Without Apex and Transformer Engine it cannot load the state of its distributed optimizer, which is ZeRO-1.
        baseline={"parallel.tensor_parallel_size": 2},
        others=[{"parallel.zero_stage": 1}, {"parallel.pipeline_parallel_size": 2}],
        too_large={"trainer.flags.vocab-size": MANY_WORDS},
        overrides={
            "trainer.command": [
                str(ROOT / "tests" / "trainers" / "megatron_lm_on_cpu.py"),
                os.environ.get(CHECKOUT, ""),
            ],
            "trainer.environment.TORCHDYNAMO_DISABLE": "1",
            "trainer.environment.PATH": _path_of("megatron-lm"),
            **{f"trainer.flags.{name}": value for name, value in MEGATRON_ON_CPU.items()},
        },
    ),
}


@dataclass(frozen=True)
class Swept:
    """A sweep that was interrupted, and gone on with to its end.

    Attributes:
        readings: of the baseline, of the other layouts, and of the trial that asks for too much memory.
        interrupted_at: steps that the baseline had made when it was interrupted.
        output: what the last command printed.
    """

    trainer: RealTrainer
    folder: SweepFolder
    output_dir: Path
    readings: list[TrialReading]
    interrupted_at: int
    output: str


@pytest.fixture(scope="module", params=list(TRAINERS))
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    trainer = TRAINERS[request.param]
    python = ENVIRONMENTS / trainer.environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment .trainers/{trainer.environment}: `make trainers` makes it")
    if trainer.preset == "megatron-lm" and not Path(os.environ.get(CHECKOUT, ""), "pretrain_gpt.py").is_file():
        pytest.skip(f"{CHECKOUT} names no checkout of Megatron-LM")
    place = tmp_path_factory.mktemp(trainer.preset)
    trainer.prepare(place)
    (place / "config" / "sweep").mkdir(parents=True)
    (place / "config" / "sweep" / "real.yaml").write_text(_sweep_file(trainer, python))
    folder = SweepFolder(place / "runs" / "real-local")
    interrupted_at = _interrupt_the_first_trial(_start_sweep(place), folder, trainer.saved_every + 2)
    last = _start_sweep(place)
    output, _ = last.communicate(timeout=SWEEP_SECONDS)
    readings = Sweep.stored_in(folder).read()
    return Swept(trainer, folder, place / "runs", readings, interrupted_at, output)


def _sweep_file(trainer: RealTrainer, python: Path) -> str:
    everywhere: dict[str, object] = {
        "training.num_steps": trainer.num_steps,
        "training.num_warmup_steps": 2,
        "checkpoint.every_steps": trainer.saved_every,
        "watch.hang_seconds": float(START_SECONDS),
        "trainer.python": str(python),
        "trainer.prefix": ["prlimit", f"--as={ADDRESS_SPACE}"],
        "trainer.environment.OMP_NUM_THREADS": "1",
        **trainer.overrides,
    }
    ranks = {"parallel.world_size": 2}
    points = [ranks | dict(point) for point in (*trainer.others, dict(trainer.baseline) | dict(trainer.too_large))]
    sweep = {
        "name": "real",
        "question": f"Is {trainer.preset} swept?",
        "baseline": ranks | dict(trainer.baseline),
        "axes": {},
        "points": points,
        "max_trials": 16,
        "published": [],
        "proxy": None,
    }
    groups = {"model": "tiny", "cluster": "local", "trainer": trainer.preset}
    tree: dict[str, object] = {"defaults": [{f"override /{group}": name} for group, name in groups.items()]}
    for key, value in everywhere.items():
        _set_value(tree, key.split("."), value)
    return "# @package _global_\n" + yaml.safe_dump(tree | {"sweep": sweep}, sort_keys=False)


def _set_value(tree: dict[str, object], path: Sequence[str], value: object) -> None:
    *outer, last = path
    for name in outer:
        inner = tree.setdefault(name, {})
        assert isinstance(inner, dict)
        tree = inner
    tree[last] = value


def _start_sweep(place: Path) -> subprocess.Popen[str]:
    trisweep = str(Path(sys.executable).with_name("trisweep"))
    words = [trisweep, "sweep", "real", "--config-dir", "config", "--here"]
    return subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _interrupt_the_first_trial(command: subprocess.Popen[str], folder: SweepFolder, num_steps: int) -> int:
    """End the sweep as Ctrl-C does, once its first trial has made so many steps; return how many they were."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and command.poll() is None:
        lines = [len(path.read_text().splitlines()) for path in folder.path.glob("trials/*/metrics.jsonl")]
        if lines and max(lines) >= num_steps:
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=LEAVE_SECONDS)
            return max(lines)
        time.sleep(0.05)
    command.kill()
    output, _ = command.communicate()
    logs = [path.read_text()[-3000:] for path in folder.path.glob("trials/*/logs/rank-0.log")]
    pytest.fail(f"the first trial made no {num_steps} steps:\n{output}\n{logs}")


def words_of(text: str) -> str:
    """The text in one line, as a table may break it anywhere."""
    return re.sub(r"\s+", " ", text)
