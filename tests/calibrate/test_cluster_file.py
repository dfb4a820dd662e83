"""Rates become values of a cluster file, and the file says where each comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.calibration import draft_of_rates
from calibrate.cluster_file import Change, cluster_path, replace_cluster_file, require_writable, rewrite
from conf.compose.load import load_cluster
from conf.errors import ConfigError, UsageError
from conf.folders import conf_dir, draft_first
from tests.calibrate.conftest import rates_of
from tests.messages import refused

CPU = {"product": 8e10, "attention": 1e10, "memory": 9e9, "kernel_seconds": 7e-6, "bandwidth": 2e9, "latency": 3e-5}
GPU = {"product": 100e12, "attention": 60e12, "memory": 1.2e12, "kernel_seconds": 4e-6, "bandwidth": 9e9}


def test_on_a_cpu_the_measured_rates_are_the_peaks(conf_copy: Path) -> None:
    local = load_cluster("local")
    draft_of_rates(local, "local", rates_of(local, "cpu", 2, **CPU)).write()
    new = load_cluster("local")
    assert new.device.peak_flops_per_second == {"fp32": 8e10, "bf16": 8e10}
    assert new.device.memory_bandwidth_bytes_per_second == 9e9
    assert (new.efficiency.matmul, new.efficiency.attention, new.efficiency.memory) == (0.5, 0.125, 1.0)
    assert new.efficiency.kernel_seconds == 7e-6
    assert new.links[0].bandwidth_bytes_per_second == pytest.approx(2e9, rel=0.01)
    assert new.links[0].latency_seconds == pytest.approx(3e-5, rel=0.01)
    assert new.efficiency.source == (
        "matmul, attention, memory, kernel_seconds, link: measured by trisweep calibrate, 2027-01-15 08:00 UTC;"
        " before: assumptions"
    )
    assert new.cores_per_node == 4
    measured = {"cores_per_node", "device", "efficiency", "links"}
    assert new.model_dump(exclude=measured) == local.model_dump(exclude=measured)
    assert new.device.peak_source == "measured"  # utilization is still stated against a peak of the same run


def test_a_remark_that_names_its_own_file_names_the_other_one_there(conf_copy: Path) -> None:
    """As `trisweep init` writes it. It told to calibrate the file from which it was copied."""
    path = cluster_path("local")
    said = "`trisweep calibrate cluster={}` writes into this file"
    path.write_text(f"# {said.format('local')}, and cluster=local-2 is another.\n{path.read_text()}")
    local = load_cluster("local")
    text = draft_of_rates(local, "ours", rates_of(local, "cpu", 2, **CPU)).text
    assert f"# {said.format('ours')}, and cluster=local-2 is another.\n" in text


def test_on_a_gpu_rates_become_shares_of_the_data_sheet(conf_copy: Path) -> None:
    frontier = load_cluster("frontier")
    draft_of_rates(frontier, "frontier", rates_of(frontier, "gpu", 16, **GPU)).write()
    new = load_cluster("frontier")
    assert (new.device, new.cores_per_node) == (frontier.device, frontier.cores_per_node)
    assert new.efficiency.matmul == pytest.approx(100 / 191.5, rel=0.01)
    assert new.efficiency.attention == pytest.approx(60 / 191.5, rel=0.01)
    assert new.efficiency.memory == pytest.approx(1.2 / 1.6, rel=0.01)
    assert new.efficiency.link == 1.0
    assert [link.bandwidth_bytes_per_second for link in new.links] == pytest.approx([9e9] * 3, rel=0.01)


def test_a_tier_that_the_job_did_not_reach_keeps_what_collectives_reach_on_it(conf_copy: Path) -> None:
    frontier = load_cluster("frontier")
    new = draft_of_rates(frontier, "frontier", rates_of(frontier, "gpu", 8, **GPU))
    assert "link slingshot: left as it was, because no two of the 8 ranks on 1 host meet only through it" in new.notes
    new.write()
    composed = load_cluster("frontier")
    before, after = frontier.links[-1], composed.links[-1]
    effective = before.bandwidth_bytes_per_second * frontier.efficiency.link
    assert after.bandwidth_bytes_per_second * composed.efficiency.link == pytest.approx(effective, rel=1e-3)
    assert after.latency_seconds == before.latency_seconds


def test_every_measured_value_says_what_when_and_within_which_range(conf_copy: Path) -> None:
    local = load_cluster("local")
    text = draft_of_rates(local, "local", rates_of(local, "cpu", 2, **CPU)).text
    assert text.splitlines()[0] == (
        "# Calibrated 2027-01-15 08:00 UTC: node1 (a device, 2 ranks, 4 cores a host), torch 2.9.9, Python 3.12.1,"
        " gloo; medians of 5 samples"
    )
    assert (
        """\
  # matmul was 0.6
  # matmul measured: median of 8 products in fp32 over the peak, 0.49 to 1.03, 2027-01-15 08:00 UTC
  matmul: 0.5
"""
        in text
    )
    stamps = [line for line in text.splitlines() if "2027-01-15 08:00 UTC" in line]
    assert len(stamps) == 1 + 11 + 2  # the top, eleven values, two sources
    old = [line for line in cluster_path("local").read_text().splitlines() if line.startswith("#")]
    assert all(line in text for line in old)


def test_calibrating_again_changes_dates_and_values_and_adds_no_line(conf_copy: Path) -> None:
    local = load_cluster("local")
    rates = rates_of(local, "cpu", 2, **CPU)
    first = draft_of_rates(local, "local", rates)
    first.write()
    later = rates_of(local, "cpu", 2, **{**CPU, "kernel_seconds": 8e-6}).model_copy(update={"finished": 1.9e9})
    second = draft_of_rates(load_cluster("local"), "local", later)
    second.write()
    assert len(second.text.splitlines()) == len(first.text.splitlines())
    assert load_cluster("local").efficiency.kernel_seconds == 8e-6


def test_a_value_that_keeps_an_earlier_calibration_keeps_its_line_at_the_top(conf_copy: Path) -> None:
    text = cluster_path("local").read_text()
    monday = rewrite(text, [Change(("efficiency", "matmul"), 0.6, 0.5, "measured: x")], "2027-01-04 08:00 UTC", "a")
    friday = rewrite(monday, [Change(("efficiency", "link"), 1.0, 0.5, "measured: x")], "2027-01-08 08:00 UTC", "b")
    assert friday.splitlines()[:2] == ["# Calibrated 2027-01-08 08:00 UTC: b", "# Calibrated 2027-01-04 08:00 UTC: a"]
    again = rewrite(friday, [Change(("efficiency", "matmul"), 0.6, 0.4, "measured: x")], "2027-01-11 08:00 UTC", "c")
    assert again.splitlines()[:2] == ["# Calibrated 2027-01-11 08:00 UTC: c", "# Calibrated 2027-01-08 08:00 UTC: b"]


def test_another_name_leaves_the_first_file_alone_and_is_the_name_inside(conf_copy: Path) -> None:
    selene = load_cluster("selene")
    path = draft_of_rates(selene, "mine", rates_of(selene, "gpu", 16, **GPU)).write()
    assert path == conf_copy / "cluster" / "mine.yaml"
    mine = load_cluster("mine")
    assert (mine.name, mine.gpu_names) == ("mine", ())  # a table's GPU name goes on to mean selene
    assert cluster_path("selene").read_text() == (conf_dir() / "cluster" / "selene.yaml").read_text()


def test_a_file_that_builds_on_another_gets_a_list_of_links_of_its_own(conf_copy: Path) -> None:
    (conf_copy / "cluster" / "ours.yaml").write_text("defaults: [frontier, _self_]\nname: ours")
    ours = load_cluster("ours")
    draft_of_rates(ours, "ours", rates_of(ours, "gpu", 16, **GPU)).write()
    new = load_cluster("ours")
    assert [link.bandwidth_bytes_per_second for link in new.links] == pytest.approx([9e9] * 3, rel=0.01)
    measured = {"bandwidth_bytes_per_second", "latency_seconds"}
    assert [link.model_dump(exclude=measured) for link in new.links] == [
        link.model_dump(exclude=measured) for link in ours.links
    ]


def test_a_file_that_would_not_take_the_values_is_not_replaced(conf_copy: Path) -> None:
    path = cluster_path("local")
    before = path.read_text().replace("  - /device@device: cpu\n  - _self_\n", "  - _self_\n  - /device@device: cpu\n")
    path.write_text(before)
    local = load_cluster("local")
    with refused(ConfigError, "cluster.device.peak_flops_per_second.bf16"):
        draft_of_rates(local, "local", rates_of(local, "cpu", 2, **CPU)).write()
    assert path.read_text() == before


def test_a_file_that_would_not_compose_is_not_replaced(conf_copy: Path) -> None:
    local = load_cluster("local")
    before = cluster_path("local").read_text()
    change = Change(("efficiency", "matmul"), 0.6, 1.5, "measured: wrongly")
    text = rewrite(before, [change], "now", "here")
    with refused(ConfigError, "cluster.efficiency.matmul"):
        replace_cluster_file(local, "local", text, [change])
    assert cluster_path("local").read_text() == before
    assert [path for path in (conf_copy / "cluster").iterdir() if path.name.startswith(".")] == []


def test_an_impossible_measurement_is_not_taken_for_a_unit_left_out(conf_copy: Path) -> None:
    local = load_cluster("local")
    before = cluster_path("local").read_text()
    change = Change(("links", 0, "bandwidth_bytes_per_second"), 1e9, 976e3, "measured: beside something else")
    text = rewrite(before, [change], "now", "here")
    with refused(ConfigError, "cluster.links.0.bandwidth_bytes_per_second"):
        replace_cluster_file(local, "local", text, [change])
    assert cluster_path("local").read_text() == before


def test_a_result_that_would_destroy_another_file_or_could_not_be_written_is_refused_beforehand(
    conf_copy: Path,
) -> None:
    require_writable("local", "local")
    require_writable("local", "mine")
    with refused(UsageError, "frontier.yaml"):
        require_writable("local", "frontier")
    # /proc is where not even root may write.
    with (
        draft_first(Path("/proc")),
        refused(UsageError, "/proc/cluster"),
    ):
        require_writable("local", "mine")
