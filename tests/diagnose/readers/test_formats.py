"""Lines about steps of programs whose lines alone are known: the number, the time, the rates and the memory."""

from __future__ import annotations

import pytest

from diagnose.runs import LoggedStep
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import the_run

GIB = 2**30
LINES = {
    "internlm": [
        f"2024-01-07 12:29:{12 + 4 * step},100\tINFO train.py:323 in f -- tflops=189.8,step={step},loss=9.{step},"
        f"tgs (tokens/gpu/second)=4251.5,lr=6.0e-07,micro_num=4,num_consumed_tokens={step + 1}000000,fwd_bwd_time=3.5"
        for step in range(3)
    ],
    "fairseq": [
        f"2024-06-28 16:11:33 | INFO | train_inner | epoch 001: {step} / 42117 loss=5.1, wps=156839, ups=0.25, "
        f"wpb=448862, bsz=20586, num_updates={step}, lr=0.0004, gnorm=0.19, train_wall=276, gb_free=11.6, wall=17835"
        for step in (100, 200, 300)
    ],
    "xtuner": [
        f"2024/05/24 20:17:36 - mmengine - INFO - Epoch(train)  [2][  {step}/1000]  lr: 9.0e-09  eta: 8 days, 4:44:34  "
        f"time: 4.0000  data_time: 0.0698  memory: 17929  loss: 7.63"
        for step in (10, 20, 30)
    ],
    "olmo": [
        line
        for step in (10, 11, 12)
        for line in (
            f"2024-12-06 10:00:00.123\thost:0\tolmo.train:600\tINFO\t[step={step}/739328,epoch=0]",
            "    train/CrossEntropyLoss=10.10",
            "    throughput/device/tokens_per_second=8,034",
            "    throughput/device/batches_per_second=0.2500",
        )
    ],
    "fms-fsdp": [
        line
        for step in (100, 200, 300)
        for line in (
            f"step: {step}",
            "loss: 5.21",
            "reserved memory: 63111692288",
            "current step time: 4.0",
            "overall step time: 9.7",
            "current token per gpu per sec: 9570",
        )
    ],
    "nemo-automodel": [
        f"2025-10-01 10:00:{10 + 4 * step} | INFO | root | step {step} | epoch 0 | loss 1.5514 | lr 1.00e-05 | "
        "mem 11.66 GiB | tps 6924.50(3462.25/gpu) | num_label_tokens 5216"
        for step in (1, 2, 3)
    ],
    "llm.c": [
        f"step   {step}/19560 | loss 9.1 (+nanz)| lr 1.2e-05 | 4000.00 ms | 41.4% bf16 MFU | 1506032 tok/s"
        for step in (1, 2, 3)
    ],
    "nanochat": [f"step    {step} | loss: 6.5 | norm: 1.2 | dt: 4000.0ms | tok/sec: 158600" for step in (1, 2, 3)],
    "nanogpt": [f"step:{step}/1750 train_time:{4000 * step}ms step_avg:4000.00ms" for step in (10, 20, 30)],
    "deepspeed-chat": [
        "Model Parameters: 6.738 B, Latency: 4.00s, TFLOPs: 101.21, Samples/sec: 16.0, Time/seq 0.05s, Batch Size: 64"
    ]
    * 3,
    "verl": [
        f"(TaskRunner pid=16292) step:{step} - perf/max_memory_reserved_gb:61.611 - timing_s/gen:2.0 - "
        "timing_s/step:4.0 - perf/throughput:2833.7"
        for step in (1, 2, 3)
    ],
    "paddlenlp": [
        f"[2024-03-01 10:00:00,123] [    INFO] - loss: 8.1, global_step: {step}, interval_runtime: 40.1, "
        "interval_tokens_per_second_per_device: 12345.1, interval_steps_per_second: 0.25"
        for step in (10, 20, 30)
    ],
    "mindformers": [
        f"2024-03-01 10:00:00,1 - INFO - {{ Epoch:[  1/  2], step:[   {step}/ 1000], per_step_time: 4000ms, "
        "lr: 1e-6, overflow cond: False, loss_scale: 65536.0, global_norm: [1.2], train_throughput_per_npu: 160.5T"
        for step in (2, 4, 6)
    ],
    "hf-trainer": [
        f"{{'loss': 2.2131, 'learning_rate': 1e-05, 'memory(GiB)': 52.31, 'train_speed(iter/s)': 0.25, 'epoch': 0.01, "
        f"'global_step/max_steps': '{step}/870', 'percentage': '0.11%', 'elapsed_time': '12s'}}"
        for step in (1, 5, 10)
    ],
}


@pytest.mark.parametrize("program", LINES)
def test_lines_of_each_program_tell_four_seconds(write: Write, program: str) -> None:
    run = the_run(write("train.log", "\n".join(LINES[program]) + "\n"))
    assert run.program == program
    assert len(run.steps) == 3
    assert [step.seconds for step in run.steps[1:]] == pytest.approx([4.0, 4.0])
    assert [step.number for step in run.steps] == sorted(step.number for step in run.steps)


def first(write: Write, program: str) -> LoggedStep:
    return the_run(write(f"{program}.log", "\n".join(LINES[program]) + "\n")).steps[0]


def test_steps_are_counted_on_over_epochs_and_from_one(write: Write) -> None:
    assert [first(write, program).number for program in ("xtuner", "internlm", "fms-fsdp")] == [1010, 1, 100]


def test_rates_and_memory_of_these_programs_are_read(write: Write) -> None:
    assert first(write, "internlm").tflops == 189.8
    assert first(write, "fairseq").tokens_per_second == 156839
    assert first(write, "nemo-automodel").tokens_per_second == 6924.5
    assert first(write, "llm.c").mfu == pytest.approx(0.414)
    assert first(write, "mindformers").tflops == pytest.approx(160.5)
    assert first(write, "fms-fsdp").memory_bytes == 63111692288
    assert first(write, "verl").memory_bytes == pytest.approx(61.611 * GIB)
    assert first(write, "hf-trainer").memory_bytes == pytest.approx(52.31 * GIB)


PRIMUS = (
    " iteration       10/      50 | consumed samples: 1280 | elapsed time per iteration (ms): 5421.1/5467.7 | "
    "hip mem usage/free/total/usage_ratio: 120.1GB/71.9GB/192.0GB/62.6% | "
    "throughput per GPU (TFLOP/s/GPU): 512.3/508.7 | "
    "tokens per GPU (tokens/s/GPU): 12088.5/11985.2 | global batch size:   128 | lm loss: 9.9E+00 |\n"
)
NEOX = (
    " samples/sec: 16.254 | iteration       10/  320000 | elapsed time per iteration (ms): 31500.1 | "
    "approx flops per GPU: 47.5TFLOPS | lm_loss: 1.012345E+01 | loss scale: 65536.0 |\n"
)
OLD = (
    " iteration        1/  320000 | elapsed time per iteration (ms): 512345.6 | lm loss: 1.1E+01 |\n"
    "Effective Tera Flops per GPU: 1.53 and total parameters 10.3 B\n"
)


@pytest.mark.parametrize(
    ("line", "seconds", "tflops"), [(PRIMUS, 5.4211, 512.3), (NEOX, 31.5001, 47.5), (OLD, 512.3456, 1.53)]
)
def test_forks_of_megatron_are_read(write: Write, line: str, seconds: float, tflops: float) -> None:
    (step,) = the_run(write("train.log", line)).steps
    assert [step.seconds, step.tflops] == pytest.approx([seconds, tflops])


def test_a_program_that_is_not_priced_gets_no_trainer_and_no_layout(write: Write) -> None:
    run = the_run(write("train.log", "\n".join(LINES["internlm"])))
    assert run.trainer is None
    assert {"tp", "pp", "zero_stage", "recompute", "precision"} & run.columns.keys() == set()
    sizes = "INFO launch.py:228 in f -- data parallel size: 64, pipeline parallel size: 2, tensor parallel size: 4\n"
    run = the_run(write("sizes.log", sizes + "\n".join(LINES["internlm"])))
    assert {name: run.row()[name] for name in ("tp", "pp", "dp", "num_gpus")} == {
        "tp": "4",
        "pp": "2",
        "dp": "64",
        "num_gpus": "512",
    }
