"""What the report says of a machine: its links, counted, and nobody's name or path."""

from __future__ import annotations

import socket
from pathlib import Path

from benchmarks.gpu_check.machine import links_in, machine_of
from benchmarks.gpu_check.probe import Probe
from benchmarks.gpu_check.report import anonymous

NVIDIA = """
	GPU0	GPU1	GPU2	GPU3	NIC0	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV18	NV18	SYS	PIX	0-15	0		N/A
GPU1	NV18	 X 	NV18	SYS	SYS	0-15	0		N/A
GPU2	NV18	NV18	 X 	SYS	SYS	0-15	0		N/A
GPU3	SYS	SYS	SYS	 X 	SYS	0-15	0		N/A
NIC0	PIX	SYS	SYS	SYS	 X

Legend:
  X    = Self
"""
AMD = """
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         XGMI
GPU1   XGMI         0            PCIE
GPU2   XGMI         PCIE         0
"""


def test_links_are_counted_by_kind_once_for_each_pair() -> None:
    assert links_in(NVIDIA) == "NV18 (3 pairs), SYS (3 pairs)"
    assert links_in(AMD) == "XGMI (2 pairs), PCIE (1 pair)"
    assert links_in("") == ""


def test_a_machine_without_gpus_is_described_by_its_ranks_and_processor() -> None:
    machine = machine_of(Probe(), 2)
    assert machine.device_text == "2 CPU ranks"
    assert {"Trisweep", "torch", "Python"} <= machine.versions.keys()


def test_paths_keep_their_last_part_and_names_of_hosts_are_gone() -> None:
    home = Path("/home/somebody/checkout/train_core/job/rank.py")
    text = f'File "{home}", line 3; http://10.1.2.3:80 on {socket.gethostname()}; and/or; 3/4'
    assert anonymous(text) == 'File ".../rank.py", line 3; http://[address]:80 on [host]; and/or; 3/4'
    assert anonymous({"a": [f"{home}", 1]}) == {"a": [".../rank.py", 1]}
