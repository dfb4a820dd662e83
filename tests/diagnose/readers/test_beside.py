"""Marks of what happens beside the steps, and memory and timers in their forms."""

from __future__ import annotations

import pytest

from diagnose.readers import read_runs
from diagnose.readers.beside import read_beside
from diagnose.readers.marks import MOST_OF_A_KIND, kinds_of
from diagnose.runs import LogLine, UserRun
from tests.diagnose.made_up import SIZES, Write, megatron_steps
from tests.diagnose.readers.columns.test_megatron import cells, the_run


def test_sizes_in_words_are_read_where_no_other_word_stands_before_them(write: Write) -> None:
    text = "[INFO] World size: 16\nGlobal batch size: 512 | Micro batch size = 2\nNumber of layers: 32\n"
    text += "Vocab size: 8,192\neval sequence length: 77\nworld size: 5% \n" + "step 1 loss 3.2 step_time 3.2s\n" * 2
    wanted = {"num_gpus": "16", "global_batch": "512", "micro_batch": "2", "layers": "32", "vocab": "8192"}
    assert cells(the_run(write("mine.log", text)), *wanted, "seq") == wanted


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("saving checkpoint at iteration   500 to /x in torch_dist format", "saving"),
        ("Saving model checkpoint to out/checkpoint-500", "saving"),
        ("Saving the checkpoint (or staging if async is enabled).", "saving"),
        ("***** Running Evaluation *****", "evaluation"),
        (" validation loss at iteration 500 | lm loss value: 2.1", "evaluation"),
        ("{'eval_loss': 1.2, 'eval_runtime': 30.5}", "evaluation"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("torch._dynamo hit config.cache_size_limit (8)", "recompilation"),
        (
            "[rank0]:V0301 torch/_dynamo/guards.py [__recompiles] Recompiling function forward in model.py",
            "recompilation",
        ),
        ("node-1:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", "socket"),
        ("node-1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB", "infiniband"),
        ("node-1:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "shared_memory"),
        ("WARNING: constraints for invoking optimized fused softmax kernel are not met.", "unfused_softmax"),
        (
            "5 pytorch allocator cache flushes since last step. this happens when there is high memory pressure",
            "fragmentation",
        ),
        ("Traceback (most recent call last):", "error"),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536", "skipped"),
    ],
)
def test_a_line_is_marked_as_what_it_tells(line: str, kind: str) -> None:
    assert kind in kinds_of(line)


@pytest.mark.parametrize(
    "line",
    ["step: 10  loss: 2.0  memory: 47.61GiB(60.15%)", "NCCL INFO NET/IB : No device found.", "loading the checkpoint"],
)
def test_a_plain_line_is_not_marked(line: str) -> None:
    assert kinds_of(line) == []


def test_marks_are_bounded_and_copies_count_once() -> None:
    run = UserRun("a")
    for number in range(3 * MOST_OF_A_KIND):
        read_beside(run, "", LogLine("a", number, f"saving checkpoint at {number // 2}"))
        text = f"saving checkpoint at {number // 2}"
        read_beside(run, text, LogLine("a", number, text))
    assert len(run.marks["saving"]) == MOST_OF_A_KIND
    assert len({line.text for line in run.marks["saving"]}) == MOST_OF_A_KIND


def test_timers_of_newer_versions_name_the_slowest_rank() -> None:
    run = UserRun("a")
    for text in ("(min, max) time across ranks (ms):", "    forward-compute ................: (1234.50, 1240.25)"):
        read_beside(run, text, LogLine("a", 1, text.strip()))
    assert run.timers == {"forward-compute": 1.24025}


def test_timers_of_a_log_are_those_of_its_last_lines(write: Write) -> None:
    timers = "    forward-compute ................: (1234.50, {0}.25)\n    batch-generator ...: (1.00, {0}.50)\n"
    steps = megatron_steps([9.5] * 40).splitlines(keepends=True)
    run = the_run(write("train.log", "".join(f"{step}{timers.format(1200 + n)}" for n, step in enumerate(steps))))
    assert run.timers == pytest.approx({"forward-compute": 1.23925, "batch-generator": 1.2395})
    assert "forward_compute" not in run.settings
    assert "forward-compute" not in run.settings
    assert len(run.steps) == 40


def test_timers_are_of_the_start_that_prints_them(write: Write) -> None:
    start = SIZES + megatron_steps([9.5] * 5) + "    forward-compute ....: (1.00, {0}.00)\n" * 5
    one, two = read_runs([write("train.log", start.format(1000) + start.format(2000))])
    assert (one.timers["forward-compute"], two.timers["forward-compute"]) == (1.0, 2.0)
