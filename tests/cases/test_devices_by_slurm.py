"""Names that sites give their devices in Slurm: which device of ours each is, or that it is none of them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands.init.files import FOLDER, texts
from cli.commands.init.machine import machine
from conf.compose.load import load_cluster
from conf.compose.plausible import PLACEHOLDER
from conf.folders import further_folders
from conf.overrides import Overrides
from launcher.slurm.executor import SlurmExecutor
from launcher.where import compose_for_slurm
from sweeps.folder.submission import JobShape
from tests.forked_command import run_forked

KNOWN = {
    "a100": "a100-80gb",
    "A100": "a100-80gb",
    "a100_80gb": "a100-80gb",
    "a100-40": "a100-40gb",
    "a100_40gb": "a100-40gb",
    "a100_64gb": "a100-64gb",
    "nvidia_a100-sxm4-80gb": "a100-80gb",
    "nvidia_a100-sxm4-40gb": "a100-40gb",
    "a800": "a800-80gb",
    "h100": "h100-80gb",
    "nvidia_h100_80gb_hbm3": "h100-80gb",
    "h20": "h20-96gb",
    "h200": "h200-141gb",
    "nvidia_h200": "h200-141gb",
    "gh200": "gh200-96gb",
    "nvidia_gh200_120gb": "gh200-96gb",
    "nvidia_gh200_480gb": "gh200-96gb",
    "b200": "b200-180gb",
    "gb200": "gb200-186gb",
    "nvidia_gb200": "gb200-186gb",
    "gb300": "gb300-279gb",
    "v100": "v100-32gb",
    "tesla_v100-sxm2-16gb": "v100-16gb",
    "mi250x": "mi250x-gcd",
    "amd_instinct_mi250x_oam": "mi250x-gcd",
    "mi300x": "mi300x-192gb",
    "amd_instinct_mi300x_oam": "mi300x-192gb",
    "mi355x": "mi355x-288gb",
}
OTHERS = (
    *(
        "a10",
        "a10g",
        "a30",
        "a40",
        "a6000",
        "a16",
        "a100l",
        "a100_4",
        "nvidia_a100_80gb_pcie",
        "h100_pcie",
        "h100-96gb",
    ),
    *("h100_nvl", "nvidia_h100_nvl", "h200_nvl", "nvidia_gh200_144g_hbm3e", "l4", "l40", "l40s", "nvidia_l40s"),
    *("3090", "rtx3090", "rtx_3090", "geforce_rtx_4090", "4090", "rtx_a6000", "rtx_6000_ada", "quadro_rtx_8000"),
    *(
        "t4",
        "p100",
        "k80",
        "v100s",
        "v100-pcie-32gb",
        "gtx1080ti",
        "mi50",
        "mi100",
        "mi210",
        "mi250",
        "mi300a",
        "mi300",
    ),
    *("pvc", "gaudi2", "3g.20gb", "1g.5gb", "a100_1g.5gb", "nvidia_a100_3g.20gb", "a100.mig.1g", "h100_1g.10gb"),
    *("h100-47", "1g.12gb", "nvidia_h100_80gb_hbm3_1g.20gb", "gpu", "tesla", "2", "x", "100", "on", "1e3"),
)
AMBIGUOUS = {"a100": ("a100-40gb", "a100-64gb"), "h100": ("h100-64gb", "h100-94gb"), "h200": ()}

Sinfo = Callable[[str], None]


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sinfo:
    """`sinfo(lines)`: what Slurm's tool of that name answers; nothing else of Slurm does."""

    def answers(lines: str) -> None:
        tool = tmp_path / "bin" / "sinfo"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
        (nothing_else := tool.with_name("scontrol")).write_text("#!/bin/sh\nexit 1\n")
        for each in (tool, nothing_else):
            each.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:/bin")

    return answers


@pytest.mark.parametrize(("name", "device"), KNOWN.items())
def test_a_name_that_means_one_of_our_devices_is_taken(name: str, device: str, sinfo: Sinfo) -> None:
    sinfo(f"gpu*|up|1-00:00:00|8|64|gpu:{name}:4(S:0-3)")
    found = machine(None, None)
    assert (found.is_known, found.device) == (True, device)


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_name_is_no_device_of_ours(name: str, sinfo: Sinfo) -> None:
    sinfo(f"gpu*|up|1-00:00:00|8|64|gpu:{name}:4(S:0-3)")
    assert not machine("mine", None).is_known


@pytest.mark.parametrize("name", ["nvidia_a100_80gb_pcie", "3090", "3g.20gb", "2", "on", "1e3"])
def test_a_device_of_any_name_is_a_placeholder_that_composes(name: str, sinfo: Sinfo, tmp_path: Path) -> None:
    sinfo(f"gpu*|up|1-00:00:00|8|64|gpu:{name}:4(S:0-3)")
    found = machine("mine", None)
    for path, text in texts(found, None).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with further_folders([tmp_path / FOLDER]):
        composition = compose_for_slurm(Overrides.parse(["cluster=mine"]))
    assert composition.settings.cluster.device.name == name.upper()
    assert composition.settings.slurm.partition == "gpu"
    (doubt,) = (doubt for doubt in composition.doubts if PLACEHOLDER in doubt)
    assert f"config/device/{found.device}.yaml" in doubt


@pytest.mark.parametrize(("name", "others"), AMBIGUOUS.items())
def test_what_else_a_name_may_mean_is_kept(name: str, others: tuple[str, ...], sinfo: Sinfo) -> None:
    sinfo(f"gpu*|up|1-00:00:00|8|64|gpu:{name}:4")
    assert set(others) <= set(machine(None, None).device_candidates)


@pytest.mark.parametrize("gres", ["gpu:a100:3,gpu:a100_1g.5gb:7", "gpu:1g.5gb:7,gpu:a100:3", "gpu:a100:no_consume:3"])
def test_whole_devices_come_before_parts_of_others(gres: str, sinfo: Sinfo) -> None:
    sinfo(f"gpu*|up|2-00:00:00|8|64|{gres}")
    found = machine(None, None)
    assert (found.device, found.devices_per_node) == ("a100-80gb", 3)
    assert (
        'gpu_type: "a100"' in texts(found, None)["config/slurm/my-cluster.yaml"]
    )  # some sites refuse a request without


@pytest.mark.parametrize("partition", ["3090", "on", "1e3", "no", "null", "gpu#1", "012", "12:30", "größe", "a'b"])
def test_a_partition_of_any_name_is_written_as_a_text(partition: str, sinfo: Sinfo, tmp_path: Path) -> None:
    sinfo(f"{partition}*|up|infinite|12|32|gpu:h100:8\n{partition}*|up|infinite|12|32|gpu:v100:8\nother|up|1:00|2|8|")
    for path, text in texts(machine("mine", partition), None).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with further_folders([tmp_path / FOLDER]):
        slurm = compose_for_slurm(Overrides.parse(["cluster=mine"])).settings.slurm
        assert (slurm.partition, slurm.gpu_type) == (partition, "h100")
        assert load_cluster("mine").device.name == "H100-80GB-SXM"


@pytest.mark.parametrize(
    ("line", "cores"),
    [
        ("gpu*|up|1-00:00:00|8|64|gpu:h100:4(S:0-3)", 16),
        ("gpu*|up|1-00:00:00|8|112+|gpu:h100:8", 14),
        ("gpu*|up|1-00:00:00|8|6|gpu:h100:4", 1),
        ("gpu*|up|1-00:00:00|8|2|gpu:h100:4", 1),
        ("cpu*|up|1-00:00:00|8|64|(null)", 1),
    ],
)
def test_jobs_get_cores_memory_and_a_stated_requeue(line: str, cores: int, sinfo: Sinfo, tmp_path: Path) -> None:
    sinfo(line)
    for path, text in texts(machine("mine", None), None).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with further_folders([tmp_path / FOLDER]):
        settings = compose_for_slurm(Overrides.parse(["cluster=mine"])).settings
    shape = JobShape(num_nodes=1, tasks_per_node=4, uses_gpus=True)
    script = SlurmExecutor(settings.slurm, "name", tmp_path / "SNAPSHOT", tmp_path).text(shape, 2)
    options = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script, re.MULTILINE)
    assert {("cpus-per-task", str(cores)), ("mem", "0"), ("requeue", "")} <= {*options}
    assert f"--cpus-per-task={cores}" in script.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        "3090*|up|infinite|12|32|gpu:3090:8",
        "gpu*|up|7-00:00:00|10|64|gpu:a10:4(S:0-3)",
        "mig*|up|1:00:00|1|64|gpu:3g.20gb:2",
        pytest.param("cpu*|up|1:00:00|4|64|(null)", marks=pytest.mark.thorough),  # it calibrates this machine
    ],
)
def test_every_command_that_init_prints_runs(lines: str, sinfo: Sinfo, tmp_path: Path) -> None:
    sinfo(lines)
    environment = {"PATH": f"{tmp_path / 'bin'}:/bin:{Path(sys.executable).parent}", "HOME": str(tmp_path)}
    made = run_forked(("init", "own"), tmp_path, environment)
    assert made.returncode == 0, made.stderr
    assert "A100" not in made.stdout.upper()
    enter, *commands = (shlex.split(line) for line in re.findall(r"^  (.*)$", made.stdout, re.MULTILINE))
    assert enter == ["cd", "own"]
    for _, *arguments in commands:
        done = run_forked(tuple(arguments), tmp_path / "own", environment)
        # The doctor's and the calibration's end says that there is no slurmctld here; nothing else is wrong.
        is_through_slurm = arguments[0] in ("doctor", "calibrate")
        assert done.returncode == 0 or is_through_slurm, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
