"""What printed figures tell: the device by its peak and its memory, the batch or the sequence by rates."""

from __future__ import annotations

import pytest

from diagnose.readers import missing_of
from diagnose.runs import SaidBy
from tests.diagnose.made_up import CORE, Write, dump, megatron_steps, titan_steps
from tests.diagnose.readers.columns.test_megatron import the_run
from tests.diagnose.readers.columns.test_torchtitan import CONFIG, MESH, changed, printed


@pytest.mark.parametrize(
    ("peak", "capacity", "device"),
    [
        (989.0, 79.1, "H100-80GB-SXM"),
        (989.0, 139.7, "H200-141GB"),
        (312.0, 79.15, "A100-80GB-SXM"),
        (312.0, 39.4, "A100-40GB-SXM"),
        (2250.0, 178.4, "B200-180GB"),
        (1300.0, 191.7, "MI300X-192GB"),
    ],
)
def test_the_device_is_in_the_line_about_a_step(write: Write, peak: float, capacity: float, device: str) -> None:
    run = the_run(write("titan.log", printed(CONFIG) + MESH + titan_steps([6793, 6800], peak=peak, capacity=capacity)))
    assert (run.columns["gpu"].value, run.columns["gpu"].said_by) == (device, SaidBy.COMPUTED)
    assert run.columns["gpu"].at is not None
    assert "step:" in run.columns["gpu"].at.text


def test_a_peak_that_no_device_has_names_none(write: Write) -> None:
    run = the_run(write("titan.log", printed(CONFIG) + MESH + titan_steps([6793], peak=700.0)))
    assert "gpu" not in run.columns
    assert [each.column for each in missing_of(run)] == ["gpu"]


def test_a_device_that_is_said_is_not_computed(write: Write) -> None:
    said = "CUDA capacity: NVIDIA H200 with 139.72GiB memory\n"
    run = the_run(write("titan.log", printed(CONFIG) + MESH + said + titan_steps([6793], peak=312.0)))
    assert (run.columns["gpu"].value, run.columns["gpu"].said_by) == ("H200-141GB", SaidBy.RESOLVED)


def test_a_device_that_no_file_has_keeps_its_name(write: Write) -> None:
    run = the_run(write("titan.log", "CUDA capacity: NVIDIA L40S with 44.40GiB memory\n" + printed(CONFIG)))
    assert (run.columns["gpu"].value, run.columns["gpu"].note) == ("NVIDIA L40S", "no cluster file has it")


def test_the_sequence_follows_from_rate_and_time(write: Write) -> None:
    arguments = {name: value for name, value in CORE.items() if name != "seq_length"}
    steps = megatron_steps([8.0, 8.0]).replace("loss scale", "tokens per gpu per second (tgs): 8192.0 | loss scale")
    run = the_run(write("train.log", dump(arguments) + steps))
    assert (run.columns["seq"].value, run.columns["seq"].said_by) == ("8192", SaidBy.COMPUTED)
    assert run.columns["seq"].note == "1,048,576 tokens a step of 128 sequences"


def test_the_batch_follows_from_rate_and_time(write: Write) -> None:
    arguments = {name: value for name, value in CORE.items() if name not in ("global_batch_size", "micro_batch_size")}
    steps = megatron_steps([8.0, 8.0]).replace("global batch size:   128 | ", "")
    steps = steps.replace("loss scale", "tokens per gpu per second (tgs): 8192.0 | loss scale")
    run = the_run(write("train.log", dump(arguments) + steps))
    assert (run.columns["global_batch"].value, run.columns["global_batch"].said_by) == ("128", SaidBy.COMPUTED)


def test_the_trainers_own_peak_names_the_device_too(write: Write) -> None:
    line = "Peak FLOPS used for computing MFU: 9.890e+14\n"
    assert the_run(write("titan.log", line + printed(changed()))).columns["gpu"].value == "H100-80GB-SXM"
