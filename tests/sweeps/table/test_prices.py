"""Tables of configurations: read, priced row by row, written again."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from conf.errors import UsageError
from conf.folders import conf_dir
from conf.units import GIBIBYTE
from sweeps.table.prices import PREDICTED_COLUMNS, price, read_table, write_table
from tests.messages import refused

HEADER = "model,layers,hidden,heads,seq,gpu,num_gpus,tp,pp,micro_batch,global_batch,recompute,zero_stage,stage,notes"
SMALL = "GPT-1.7B,24,2304,24,2048,A100-80GB-SXM,32,1,1,16,512,full,0,,"
LARGE = "GPT-175B,96,12288,96,2048,A100-80GB-SXM,8,8,1,8,64,none,0,,"
STAGED = "GPT-175B,96,12288,96,2048,A100-80GB-SXM,384,8,12,1,1536,full,1,{stage},"


def table_of(folder: Path, *lines: str) -> Path:
    path = folder / "in.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def priced_again(path: Path, out: Path) -> list[dict[str, str]]:
    table = read_table(path)
    write_table(out, table.columns, [row.cells() for row in price(table.records)])
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_own_columns_are_carried_through_unchanged_before_the_predictions(tmp_path: Path) -> None:
    noted = SMALL + '"a ""quoted"" note, with a comma"'
    (row,) = priced_again(table_of(tmp_path, noted), tmp_path / "out.csv")
    assert tuple(row) == (*HEADER.split(","), *PREDICTED_COLUMNS)
    assert row["notes"] == 'a "quoted" note, with a comma'
    assert row["layers"] == "24"


def test_predictions_of_a_row_hold_together(tmp_path: Path) -> None:
    (row,) = priced_again(table_of(tmp_path, SMALL), tmp_path / "out.csv")
    seconds, devices, peak = float(row["pred_iter_time_s"]), 32, 312.0
    model, hardware = float(row["pred_model_tflops_per_gpu"]), float(row["pred_hardware_tflops_per_gpu"])
    flops = 96 * 512 * 2048 * 24 * 2304**2 * (1 + 2048 / (6 * 2304) + 51200 / (16 * 24 * 2304))  # 2104.04473, eq. 3
    assert hardware == pytest.approx(flops / seconds / devices / 1e12, rel=1e-4)
    assert float(row["pred_mfu_pct"]) == pytest.approx(100 * model / peak, rel=1e-3)
    assert float(row["pred_hfu_pct"]) == pytest.approx(100 * hardware / peak, rel=1e-3)
    assert row["pred_fits"] == "yes"
    # What Selene's devices keep beside what tensors take: conf/cluster/selene.yaml, reserved_memory_bytes.
    assert float(row["pred_memory_gib"]) - float(row["pred_allocated_gib"]) == pytest.approx(2, abs=1e-3)
    assert float(row["pred_memory_gib"]) < 80
    assert row["reason"] == ""


def test_a_row_that_does_not_fit_is_priced_and_says_so(tmp_path: Path) -> None:
    (row,) = priced_again(table_of(tmp_path, LARGE), tmp_path / "out.csv")
    assert row["pred_fits"] == "no"
    assert float(row["pred_memory_gib"]) > 80
    assert row["reason"] == ""


def test_a_row_that_cannot_be_priced_has_a_reason_and_no_prediction(tmp_path: Path) -> None:
    first, second = priced_again(table_of(tmp_path, SMALL.replace("24,2304", "24,wide"), SMALL), tmp_path / "out.csv")
    assert first["reason"].startswith("hidden = 'wide': is not a number")
    assert {first[name] for name in PREDICTED_COLUMNS[:-1]} == {""}
    assert second["reason"] == ""


def test_the_memory_of_the_asked_stage_is_given(tmp_path: Path) -> None:
    lines = [STAGED.format(stage=stage) for stage in ("", "0", "1", "11")]
    rows = priced_again(table_of(tmp_path, *lines), tmp_path / "out.csv")
    worst, first, second, last = (float(row["pred_memory_gib"]) for row in rows)
    (priced, *_) = price(read_table(tmp_path / "in.csv").records)
    assert priced.prediction is not None
    stages = [stage.total_bytes / GIBIBYTE for stage in priced.prediction.estimate.stages]
    assert [first, second, last] == pytest.approx([stages[0], stages[1], stages[11]], rel=1e-4)
    assert worst == pytest.approx(max(stages), rel=1e-4)
    assert first > second


def test_a_table_with_predictions_can_be_priced_again(tmp_path: Path) -> None:
    out, again = tmp_path / "out.csv", tmp_path / "again.csv"
    priced_again(table_of(tmp_path, SMALL, LARGE), out)
    priced_again(out, again)
    assert again.read_text() == out.read_text()


def test_a_row_with_too_many_cells_has_a_reason_and_the_rest_is_priced(tmp_path: Path) -> None:
    first, second = priced_again(table_of(tmp_path, SMALL + "one, two", SMALL), tmp_path / "out.csv")
    assert "has 1 cell more than the header has columns. Quote cells that hold commas." in first["reason"]
    assert second["reason"] == ""


def test_a_row_that_ends_early_leaves_its_last_cells_empty(tmp_path: Path) -> None:
    (row,) = priced_again(table_of(tmp_path, SMALL.removesuffix(",0,,")), tmp_path / "out.csv")
    assert (row["zero_stage"], row["notes"], row["reason"]) == ("", "", "")


def test_a_spreadsheets_byte_order_mark_blank_lines_and_line_ends_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([HEADER, SMALL, "", SMALL, ""]).encode())
    assert [row["reason"] for row in priced_again(path, tmp_path / "out.csv")] == ["", ""]


def test_a_table_without_rows_is_a_header(tmp_path: Path) -> None:
    assert priced_again(table_of(tmp_path), tmp_path / "out.csv") == []


@pytest.mark.parametrize(
    "content",
    [
        b"model,layers\na,1\n",
        HEADER.replace("gpu,", "", 1).encode(),
        HEADER.replace(",", ";").encode(),
        b"",
        HEADER.replace("notes", "tp").encode(),
        b"\x89PNG\r\n\x1a\n\xff",
        HEADER.encode() + b'\n"unfinished',
    ],
)
def test_what_is_no_table_of_configurations_is_one_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(content)
    with refused(UsageError):
        read_table(tmp_path / "in.csv")


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with refused(UsageError, "absent.csv"):
        read_table(tmp_path / "absent.csv")


def test_neither_a_folder_nor_a_device_is_overwritten(tmp_path: Path) -> None:
    for taken in (tmp_path, Path("/dev/null")):
        with refused(UsageError, "--out"):
            write_table(taken, [], [])


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with refused(UsageError, "out.csv"):
        write_table(tmp_path / "taken" / "out.csv", [], [])
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_record_knows_its_line_though_lines_before_it_are_blank_or_within_a_quoted_cell(tmp_path: Path) -> None:
    header, row = (
        "layers,hidden,heads,seq,gpu,num_gpus,tp,pp,micro_batch,global_batch",
        "1,8,1,8,A100-80GB-SXM,1,1,1,1,1",
    )
    lines = (f"source,{header}", "", f"one,{row}", '"two', f'lines",{row}', ",", f"three,{row}")
    (tmp_path / "in.csv").write_text("\n".join(lines))
    assert [record.line for record in read_table(tmp_path / "in.csv").records] == [3, 4, 7]


def test_all_that_is_wrong_in_a_row_s_cluster_stands_on_its_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = yaml.safe_load((conf_dir() / "cluster" / "selene.yaml").read_text())
    (tmp_path / "cluster").mkdir()
    wrong = cluster | {"name": "mine", "fragmentation": "lots", "num_nodes": "many"}
    (tmp_path / "cluster" / "mine.yaml").write_text(yaml.safe_dump(wrong))
    monkeypatch.setattr("conf.folders._given", (tmp_path,))
    table = tmp_path / "in.csv"
    table.write_text(f"cluster,{HEADER}\nmine,{SMALL.replace('A100-80GB-SXM', '')}\n")
    (row,) = priced_again(table, tmp_path / "out.csv")
    assert "\n" not in row["reason"]
    assert "cluster.fragmentation = 'lots'" in row["reason"]
    assert "cluster.num_nodes = 'many'" in row["reason"]
