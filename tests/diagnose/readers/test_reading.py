"""Which files are of one run, what cannot be read, and that nothing of what can be read leaves a traceback."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import ConfigError
from diagnose.readers import missing_of, read_runs
from diagnose.runs import SaidBy
from tests.diagnose.made_up import CORE, SIZES, TITAN, Write, dump, megatron_steps, neox_dump, titan_steps
from tests.diagnose.readers.columns.test_devices import LISTED, QUERY, SKY, SMI, TOPOLOGY
from tests.diagnose.readers.columns.test_huggingface import (
    ARGUMENTS,
    AXOLOTL,
    BANNER,
    LLAMA,
    PRINTED,
    STATE,
    SUMMARY,
    ZERO,
    bars,
)
from tests.diagnose.readers.columns.test_megatron import OLD, SCRIPT, core_log, the_run
from tests.diagnose.readers.columns.test_nanotron import CONFIG as NANOTRON
from tests.diagnose.readers.columns.test_nanotron import STEP
from tests.diagnose.readers.columns.test_nemo import BRIDGE, DATACLASSES, NEMO_1, steps
from tests.diagnose.readers.columns.test_others import FOUNDRY, LIT, MAXTEXT, NANO, TUNE
from tests.diagnose.readers.columns.test_torchtitan import CONFIG, MESH, printed, toml
from tests.diagnose.readers.columns.test_verl import GRPO
from tests.diagnose.readers.test_formats import LINES as PRINTED_STEPS
from tests.diagnose.readers.test_general import LINES as UNKNOWN
from tests.diagnose.readers.test_python_files import RECIPE
from tests.messages import refused


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.log", b""),
        ("blank.log", b" \n\n"),
        ("empty.sh", b""),
        ("empty.json", b""),
        ("empty.yaml", b""),
        ("model.log", bytes(range(256)) * 64),
        ("model.sh", b"\0" * 64),
        ("run.log.gz", b"\x1f\x8b\x08\x00" + b"x" * 64),
        ("list.json", b"[1, 2]"),
        ("wrong.toml", b"[training\nseq"),
        ("wrong.yaml", b"model: {a: 1\n"),
        ("deep.json", b"[" * 100_000),
    ],
)
def test_what_cannot_be_read_is_one_message(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with refused(ConfigError, "run"):
        read_runs([path])


def test_a_folder_and_a_path_that_is_not_there_are_said(tmp_path: Path) -> None:
    with refused(ConfigError, "run"):
        read_runs([tmp_path])
    with refused(ConfigError, "run"):
        read_runs([tmp_path / "missing.log"])
    with refused(ConfigError, "run"):
        read_runs([])


@pytest.mark.parametrize("override", ["tp", "parallel.tensor_paralel_size=8", "model=no-such-model", "trainer=no-such"])
def test_an_override_that_means_nothing_is_refused(write: Write, override: str) -> None:
    with pytest.raises(ConfigError):
        read_runs([write("train.log", core_log())], [override])


def test_overrides_are_believed_before_all_files(write: Write) -> None:
    given = ("cluster=dgx-h100", "parallel.tensor_parallel_size=8", "micro_batch=2")
    run = the_run(write("train.log", core_log()), given=given)
    assert {name: run.row()[name] for name in ("cluster", "tp", "micro_batch")} == {
        "cluster": "dgx-h100",
        "tp": "8",
        "micro_batch": "2",
    }


def test_a_model_of_an_override_is_that_of_its_file(write: Write) -> None:
    path = write("config.json", json.dumps(LLAMA))
    run = the_run(write("train.log", BANNER), given=(f"model_from={path}", "model.seq_length=4096"))
    assert (run.row()["layers"], run.row()["kv_heads"], run.row()["seq"]) == ("32", "8", "4096")


def test_standard_input_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(core_log().encode())))
    run = the_run("-")
    assert (run.name, len(run.steps)) == ("standard input", 3)


def test_a_log_of_a_windows_shell_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(core_log().replace("\n", "\r\n").encode("utf-16"))
    assert len(the_run(str(path)).steps) == 3


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_log_without_a_mark_of_its_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "train.log").write_bytes(core_log().encode(encoding))
    assert len(the_run(str(tmp_path / "train.log")).steps) == 3


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_log_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path, packed = tmp_path / "train.log.z", pack((core_log() + "noise\n" * 40_000).encode())
    path.write_bytes(packed)
    assert the_run(str(path)).row()["tp"] == "4"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match="is compressed, and damaged or cut"):
        read_runs([path])


def test_events_of_tensorboard_are_named(write: Write) -> None:
    with pytest.raises(ConfigError, match="TensorBoard"):
        read_runs([write("events.out.tfevents.17.node.1", "\x18\0\0brain.Event:2")])


def test_out_and_err_of_a_job_are_one_run(write: Write) -> None:
    out, err = SIZES + dump(CORE), megatron_steps([9.5, 9.4])
    run = the_run(write("slurm-1.out", out), write("slurm-1.err", err))
    assert (run.columns["tp"].value, len(run.steps)) == ("4", 2)


def test_two_logs_are_two_runs(write: Write) -> None:
    one, two = read_runs([write("a.log", core_log()), write("b.log", core_log(micro_batch_size=2))])
    assert (one.name, one.columns["micro_batch"].value) == ("a.log", "1")
    assert (two.name, two.columns["micro_batch"].value) == ("b.log", "2")


def test_two_scripts_without_a_log_are_two_runs(write: Write) -> None:
    one, two = read_runs([write("a.sh", SCRIPT), write("b.sh", SCRIPT.replace("TP=2", "TP=4"))])
    assert (one.columns["tp"].value, two.columns["tp"].value) == ("2", "4")


def test_a_script_without_a_suffix_is_known_by_its_first_line(write: Write) -> None:
    assert the_run(write("pretrain", SCRIPT)).columns["hidden"].value == "2048"


def test_a_step_that_goes_on_after_a_restart_without_a_dump_is_another_start(write: Write) -> None:
    text = dump(CORE) + megatron_steps([9.5] * 6) + megatron_steps([9.5] * 3, first=20)
    one, two = read_runs([write("train.log", text)])
    assert [step.number for step in one.steps] == [10, 20, 30, 40, 50, 60]
    assert [step.number for step in two.steps] == [30, 40, 50]
    assert two.columns["tp"].value == "4"


TEXTS: dict[str, str] = {
    "core.log": core_log() * 2,
    "old.log": dump(OLD, width=32) + megatron_steps([9.5], decimal=","),
    "neox.log": neox_dump({"num_layers": 44, "pipe_parallel_size": 4, "model_parallel_size": 2}),
    "pretrain.sh": SCRIPT,
    "titan.log": printed(CONFIG) + MESH + titan_steps([2793, 6793], colour=True),
    "many.log": f"{TITAN.format(0, 0, 0)}Running with configs: {json.dumps(CONFIG, indent=2)}\n" + titan_steps([6793]),
    "titan.toml": toml(CONFIG),
    "train.log": BANNER + ARGUMENTS + bars() + SUMMARY,
    "deepspeed.log": PRINTED,
    "ds.json": json.dumps(ZERO, indent=1),
    "config.json": json.dumps(LLAMA, indent=1),
    "trainer_state.json": json.dumps(STATE, indent=1),
    "axolotl.yml": AXOLOTL,
    "nemo.yaml": NEMO_1,
    "nemo.log": DATACLASSES + steps(4.5),
    "bridge.yaml": BRIDGE,
    "nanotron.yaml": NANOTRON,
    "nanotron.log": STEP * 3,
    "nano.log": NANO,
    "foundry.yaml": FOUNDRY,
    "max.log": MAXTEXT,
    "tune.yaml": TUNE,
    "lit.yaml": LIT,
    **{f"{name}.log": "\n".join(lines) for name, lines in PRINTED_STEPS.items()},
    **{f"{name}.log": "\n".join(map(line.format, range(9), range(9))) for name, line in UNKNOWN.items()},
    "grpo.sh": GRPO,
    "recipe.py": RECIPE,
    "sky.yaml": SKY,
    "smi.csv": QUERY,
    "smi.txt": SMI + TOPOLOGY.format("PIX") + LISTED,
    "shell.sh": f"run() {{\n bash -c \"{SCRIPT.splitlines()[-1]} $1\"\n}}\nrun '--bf16 --num-layers 24'\n",
    "summary.json": json.dumps({"_step": 10, "perf/step_time": 3.4, "args": ["--num-layers", "24"]}),
}


def _cut(text: bytes, luck: random.Random) -> bytes:
    first, last = sorted((luck.randrange(len(text)), luck.randrange(len(text))))
    return text[first : last + 1]


def _garbled(text: bytes, luck: random.Random) -> bytes:
    signs = bytearray(text)
    for _ in range(1 + len(signs) // 50):
        signs[luck.randrange(len(signs))] = luck.choice(b"{}[]()'\"=:,.$\\\n\r 0129eE-+%|#\x1b\xff")
    return bytes(signs)


def _shuffled(text: bytes, luck: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    luck.shuffle(lines)
    return b"".join(lines)


def _doubled(text: bytes, luck: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(line * luck.choice((0, 1, 2, 8)) for line in lines)


def _swapped(text: bytes, luck: random.Random) -> bytes:
    """Numbers in the place of others: what is whole, negative, endless or none."""
    numbers = (b"0", b"-1", b"1e999", b"nan", b"9" * 40, b"0.5", b"None", b"auto", b"$X", b"true")
    words = text.split(b" ")
    return b" ".join(luck.choice(numbers) if word[:1].isdigit() and luck.random() < 0.3 else word for word in words)


@pytest.mark.parametrize("damage", [_cut, _garbled, _shuffled, _doubled, _swapped], ids=lambda each: str(each.__name__))
@pytest.mark.parametrize("name", TEXTS)
def test_damage_is_one_message_or_fewer_facts(tmp_path: Path, name: str, damage: Callable[..., bytes]) -> None:
    for seed in range(8):
        luck = random.Random(f"{name} {damage.__name__} {seed}")
        path = tmp_path / name
        path.write_bytes(damage(TEXTS[name].encode(), luck) or b"x")
        try:
            runs = read_runs([path])
        except ConfigError as error:
            assert len(str(error).splitlines()) <= 2  # noqa: PT017
            continue
        for run in runs:
            missing_of(run)
            assert all(fact.value for fact in run.columns.values())
            assert all(step.at.line is None or step.at.line >= 1 for step in run.steps)
            assert all(not step.seconds <= 0 for step in run.steps)


def test_the_batch_that_lines_about_steps_print_is_no_guess(write: Write) -> None:
    lines = megatron_steps([9.0, 8.0, 8.1], batch=64)
    (run,) = read_runs([write("run.log", SIZES + lines)], ["micro_batch=2", "seq=4096"])
    assert (run.columns["global_batch"].value, run.columns["global_batch"].said_by) == ("64", SaidBy.COMPUTED)


def test_selective_recomputation_with_a_method_beside_it_is_selective(write: Write) -> None:
    """As NeMo's configurations have both."""
    flags = "model.activations_checkpoint_granularity=selective model.activations_checkpoint_method=uniform"
    script = f"torchrun --nproc_per_node=8 megatron_gpt_pretraining.py model.num_layers=40 {flags}\n"
    (run,) = read_runs([write("run.sh", script)])
    assert run.columns["recompute"].value == "selective"


def test_older_lines_of_torchtitan_tell_the_batch_and_the_sequence(write: Write) -> None:
    sizes = (
        "Training starts at step 1, with local batch size 1, global batch size 32, sequence length 8192, total steps 9"
    )
    step = "step: 10  loss:  1.5568  memory: 26.47GiB(33.47%)  wps: 1,786  mfu: 10.46%"
    prefix = "0: [rank0]:2024-11-27 14:28:39,087 - root - INFO - "
    (run,) = read_runs([write("run.log", f"{prefix}{sizes}\n{prefix}{step}\n")], ["num_gpus=32"])
    assert {name: run.columns[name].value for name in ("seq", "global_batch")} == {"seq": "8192", "global_batch": "32"}
    assert run.steps[0].seconds == pytest.approx(32 * 8192 / (1786 * 32))


def test_a_script_that_was_pasted_beside_its_log_is_read(write: Write) -> None:
    script = SCRIPT.replace("#SBATCH --nodes=4\n", "").replace("NNODES=${SLURM_NNODES}", "NNODES=4")
    text = f"It's slow, why?\n```bash\n{script}```\nand it's log:\n{megatron_steps([9.5, 9.4])}"
    run = the_run(write("issue.md", text))
    assert {name: run.row()[name] for name in ("layers", "num_gpus", "tp", "global_batch")} == {
        "layers": "24",
        "num_gpus": "32",
        "tp": "2",
        "global_batch": "256",
    }
    assert len(run.steps) == 2
    where = run.columns["layers"].at
    assert where is not None
    assert where.line is not None
    assert "--num-layers 24" in text.splitlines()[where.line - 1]


@pytest.mark.parametrize(
    "text",
    [megatron_steps([9.5, 9.4]), titan_steps([6793, 6800]), BANNER + bars()],
    ids=["megatron", "torchtitan", "hf-trainer"],
)
def test_a_log_without_its_arguments_has_no_defaults(write: Write, text: str) -> None:
    run = the_run(write("tail.log", text))
    assert {"recompute", "precision", "compile"} & run.columns.keys() <= {"precision"}
    assert run.row().get("precision") in (None, "bf16")
    if run.program != "hf-trainer":
        assert {"tp", "pp"} <= {each.column for each in missing_of(run)}
