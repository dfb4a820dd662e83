"""Steps of programs that nobody here knows: their number, their time, rates and memory, in whatever words."""

from __future__ import annotations

import math

import pytest

from diagnose.measured import measured
from diagnose.readers import read_runs
from diagnose.readers.general import figure_of
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import cells, the_run

GIB = 2**30
ESC = "\x1b"
LINES = {
    "key=value": "[2025-06-11 09:12:0] step={0} loss=9.{0} lr=3.0e-06 step_time=2.0s tokens_per_sec=65536 mem=61.2GB",
    "key: value": "2025-06-11 09:12:09,1 INFO: step: {0}, loss: 9.{0}, iter_time: 2000 ms, throughput: 16 samples/s",
    "batches": "Epoch: 0 | Batch: {0}/4200 | Loss: 9.{0} | Time/Batch: 2.00s | Tokens/sec/GPU: 8192 | MFU: 43.1%",
    "brackets": "[train][iter {0}/1000] loss 9.{0} | 2.00 s/iter | 65.5k tokens/s | 41.2 TFLOPS | mem 61.2 GB",
    "count alone": "[{0}/1000] loss=9.{0} sec/iter=2.0",
    "seconds a step": "step {0} | loss 9.{0} | 2.000 sec/step",
    "steps a second": "step {0} | 0.5 it/s | loss 9.{0} | gpu_mem 61.2G | lr 1.0e-04",
    "names in front": "I0703 10:11:12.1 train.cc:88] global_step {0} loss 9.{0} secs_per_step 2.0 examples_per_sec 16",
    "meters": "Epoch: [0][ {0}/1251]\tTime  2.000 ( 2.301)\tData  0.012 ( 0.031)\tLoss 9.{0}e+00 (6.9e+00)",
    "clocks": "2025-06-11T09:12:0{0}Z | 1 | train | it={0} | loss=9.{0} | ms/it=2000 | mem(GiB)=61.2/79.1",
    "Chinese": "第 {0} 步, 损失: 9.{0}, 每步耗时: 2.000秒, 吞吐量: 65536 tokens/s, 显存: 61.2GB",
    "Chinese signs": "迭代\uff1a{0}\uff0c损失\uff1a9.{0}\uff0c单步时间\uff1a2000毫秒",
    "German": "Schritt {0}/5000  Verlust 9,{0}1  Zeit/Schritt 2,000 s  Durchsatz 65.536 Token/s",
    "colours": ESC + "[36m[INFO]" + ESC + "[0m step " + ESC + "[33m{0}" + ESC + "[0m/99 | loss 9.{0} | 2000.0 ms/step",
    "milliseconds": "2025-06-11 09:12:{1:02} step: {0} loss: 9.{0} step_time: 2001.5 lr: 1e-4",
    "cells": "[2025-06-11 09:05:00] it {0} | loss 9.{0} | 2.0 s | 65.536 ktok/s | 41.2 TFLOP/s/GPU",
    "slashes": "step:   {0}/ 1000, loss: 9.{0}, time/step: 2.0, samples/s: 16.0, gpu mem (GB): 61.2",
    "since the start": "Iteration {0}: loss = 9.{0}, elapsed = {1} s",
}


@pytest.mark.parametrize("form", LINES)
def test_a_step_of_two_seconds_is_read_in_any_words(write: Write, form: str) -> None:
    lines = [LINES[form].format(step, 2 * step) for step in range(1, 8)]
    run = the_run(write("train.log", "\n".join(lines) + "\n"))
    assert [step.number for step in run.steps] == list(range(1, 8))
    found = measured(run)
    assert found is not None
    assert found.step_seconds == pytest.approx(2.0, rel=0.01)
    assert run.program is None
    assert run.trainer is None
    assert all(9.0 < (step.loss or math.nan) < 9.8 for step in run.steps)
    for name, value in (("mem", 61.2 * GIB), ("TFLOP", 41.2), ("MFU", 0.431), ("65", 65536)):
        told = {"mem": found.reserved_bytes, "MFU": found.mfu, "65": found.tokens_per_second}
        told["TFLOP"] = found.flops_per_second and found.flops_per_second / 1e12
        is_there = name in LINES[form] or (name == "mem" and "\u663e\u5b58" in LINES[form])
        assert told[name] == (pytest.approx(value, rel=1e-3) if is_there else None)


@pytest.mark.parametrize(
    ("name", "unit", "quantity"),
    [
        ("val_loss", "", None),
        ("data_time", "s", None),
        ("forward", "ms", None),
        ("eta", "s", None),
        ("epoch_time", "s", None),
        ("cpu_mem", "GB", None),
        ("total_tflops", "", None),
        ("lr", "", None),
        ("step_time", "", "unitless"),
        ("tps", "", "tokens_of_some"),
        ("tokens_per_sec_per_gpu", "", "tokens_per_device"),
        ("samples_per_sec_per_gpu", "", None),
        ("allocated_memory", "GB", "allocated"),
        ("train/loss", "", "loss"),
        ("stepTimeMs", "", "seconds"),
    ],
)
def test_a_figure_is_what_its_name_says_or_nothing(name: str, unit: str, quantity: str | None) -> None:
    figure = figure_of(name, unit)
    assert (figure.quantity if figure else None) == quantity


def test_parts_of_a_step_are_not_its_time(write: Write) -> None:
    line = "Rank 0 | step {0} | loss 2.{0} | fwd 0.312s | bwd 0.633s | opt 0.051s | 64,212 tok/s\n"
    assert measured(the_run(write("train.log", "".join(map(line.format, (1, 2, 3)))))) is None


def test_flags_that_a_program_lists_are_read(write: Write) -> None:
    text = "Arguments:\n  --seq-length   4096\n  --micro-batch-size   2\n  --tensor-parallel  4\n  --num-gpus  64\n"
    run = the_run(write("train.log", text + "iter 10 | 8.2 s/iter | loss 9.8\n"))
    wanted = {"seq": "4096", "micro_batch": "2", "tp": "4", "num_gpus": "64"}
    assert cells(run, *wanted, "gpus_per_node") == wanted


def test_what_happens_at_a_step_beside_training_is_not_its_time(write: Write) -> None:
    lines = [f"step {step} loss 4.{step} took 1.5 s\nSaved checkpoint at step {step} in 32.1 s\n" for step in (1, 2, 3)]
    run = the_run(write("train.log", "".join(lines)))
    assert [step.seconds for step in run.steps] == [1.5, 1.5, 1.5]


def test_a_time_that_may_be_of_milliseconds_is_unknown_without_a_clock(write: Write) -> None:
    run = the_run(write("train.log", "".join(f"step: {step} loss: 3.2 step_time: 812.4\n" for step in (1, 2, 3))))
    assert measured(run) is None


def test_steps_that_begin_anew_with_every_epoch_are_one_run(write: Write) -> None:
    lines = [
        f"epoch {epoch} step {step}/5 loss {9 - epoch}.{step} time 0.20 s"
        for epoch in (1, 2, 3)
        for step in range(1, 6)
    ]
    run = the_run(write("train.log", "\n".join(lines)))
    assert [step.number for step in run.steps] == list(range(1, 16))


def test_a_rate_of_one_device_is_told_by_the_batch_and_the_time(write: Write) -> None:
    sizes = "world_size: 4 seq_len: 1024 global_batch_size: 32\n"
    for rate, said in ((16384, 16384), (4096, 16384), (9000, None)):
        text = sizes + "".join(f"step {step} loss 4.{step} step_time 2.0s tps {rate}\n" for step in (1, 2, 3))
        assert the_run(write("train.log", text)).steps[0].tokens_per_second == said


TABLE = """┌───────────────────┬──────┐
│ hidden_size         │ 2048 │
│ num_layers          │ 24   │
│ num_attention_heads │ 16   │
"""


def test_sizes_that_an_unknown_program_prints_are_columns(write: Write) -> None:
    text = (
        TABLE
        + "seq_len: 4096, global_batch=128 micro_batch=2 world_size=16 model=llama-9b\nstep 10 loss 9.1 0.5 it/s\n"
    )
    run = the_run(write("train.log", text))
    wanted = {"layers": "24", "hidden": "2048", "heads": "16", "seq": "4096", "num_gpus": "16"}
    wanted |= {"global_batch": "128", "micro_batch": "2"}
    assert cells(run, *wanted) == wanted
    assert run.program is None
    assert {"tp", "pp", "zero_stage", "precision"} & run.columns.keys() == set()


def test_short_names_are_sizes_where_several_stand_together(write: Write) -> None:
    step = "step 10 loss 9.1 0.5 it/s\n"
    run = the_run(
        write("train.log", "config: hidden=5120 layers=40 heads=40 seq=4096 mbs=1 gbs=512 tp=4 pp=2\n" + step)
    )
    wanted = {"hidden": "5120", "layers": "40", "heads": "40", "seq": "4096", "micro_batch": "1", "global_batch": "512"}
    wanted |= {"tp": "4", "pp": "2"}
    assert cells(run, *wanted) == wanted
    assert "tp" not in the_run(write("other.log", "engine with tp=2\n" + step)).columns


def test_sizes_of_a_tree_of_an_unknown_program_are_columns(write: Write) -> None:
    text = (
        "[model]\nn_layers = 32\nd_model = 4096\nn_heads = 32\nmax_seq_len = 8192\n[parallel]\ntp = 4\npp = 2\ndp = 8\n"
    )
    text += (
        '[train]\nglobal_batch_size = 256\nmicro_batch_size = 1\nprecision = "bf16"\nactivation_checkpointing = true\n'
    )
    run = the_run(write("job.toml", text))
    wanted = {"layers": "32", "hidden": "4096", "seq": "8192", "tp": "4", "pp": "2", "dp": "8", "num_gpus": "64"}
    wanted |= {"micro_batch": "1", "global_batch": "256", "precision": "bf16", "recompute": "full"}
    assert cells(run, *wanted) == wanted
    assert run.trainer is None


def test_a_namespace_is_read(write: Write) -> None:
    space = "Namespace(num_layers=24, hidden_size=1024, num_attention_heads=16, seq_length=2048, micro_batch_size=4, "
    space += "global_batch_size=256, tensor_model_parallel_size=2, fp16=True, recompute_granularity='selective')\n"
    run = the_run(write("train.log", f"args: {space}"))
    wanted = {"layers": "24", "tp": "2", "micro_batch": "4", "global_batch": "256", "precision": "fp16"}
    wanted |= {"recompute": "selective", "seq": "2048"}
    assert cells(run, *wanted) == wanted


def test_a_bar_with_a_name_is_of_no_trainer(write: Write) -> None:
    bars = [f"Epoch 0:   1%|          | {step}/10000 [03:21<5:31:39,  0.50it/s, v_num=1]" for step in (100, 200)]
    ranks = "All distributed processes registered. Starting with 16 processes\n"
    run = the_run(write("train.log", ranks + "\n".join(bars)))
    assert (run.program, run.trainer, run.row().get("tp"), run.row()["num_gpus"]) == (None, None, None, "16")
    assert [step.seconds for step in run.steps] == [2.0, 2.0]


@pytest.mark.parametrize("line", ["step: {0}, loss: 3.2, iter_time: 2.0 s", "step: {0} loss: 3.2 step_time: 2.0s"])
def test_what_looks_a_little_like_torchtitan_is_not_torchtitan(write: Write, line: str) -> None:
    (run,) = read_runs([write("train.log", "".join(line.format(step) + "\n" for step in (10, 20, 30)))])
    assert run.program is None
    assert [step.seconds for step in run.steps] == [2.0, 2.0, 2.0]
