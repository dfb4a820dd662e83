"""`trisweep estimate` as a person runs it: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.arguments import TRAINERS
from costs import IMPLEMENTATIONS
from tests.forked_command import run_forked
from tests.messages import said

PUBLISHED = Path(__file__).parents[3] / "benchmarks" / "published.csv"
HEADER = (
    "source,table,layers,hidden,heads,seq,gpu,num_gpus,tp,pp,micro_batch,global_batch,recompute,iter_time_s,confirmed\n"
)
GOOD = "A paper,1,24,2304,24,2048,A100-80GB-SXM,32,1,1,16,512,full,3.5,yes\n"
BAD = "A paper,1,24,wide,24,2048,A100-80GB-SXM,32,1,1,16,512,full,3.5,yes\n"


def trisweep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_forked(arguments, cwd, {**os.environ, "COLUMNS": "160"})


def test_the_help_names_every_trainer_that_is_known() -> None:
    assert ", ".join(IMPLEMENTATIONS) == TRAINERS


def test_the_rest_is_priced_and_counted_where_some_rows_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + GOOD + BAD + GOOD)
    done = trisweep("estimate", "in.csv", "--out", "new/out.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 of 3 rows priced; 1 not: see column reason" in done.stdout
    assert "Predicted, not measured: new/out.csv" in done.stdout
    with (tmp_path / "new" / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [bool(row["reason"]) for row in rows] == [False, True, False]
    assert float(rows[0]["pred_low_s"]) < float(rows[0]["pred_iter_time_s"]) < float(rows[0]["pred_high_s"])
    assert float(rows[0]["pred_iter_time_s"]) > 0


def test_a_measurement_that_cannot_be_used_is_said_to_be_left_out_without_a_score_too(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + GOOD + GOOD.replace(",3.5,", ',"3,5",'))
    done = trisweep("estimate", "in.csv", cwd=tmp_path)
    assert "Left out: line 3: iter_time_s = '3,5': is not a number." in done.stdout


def test_where_no_row_could_be_priced_there_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + BAD)
    done = trisweep("estimate", "in.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("0 of 1 row priced; 1 not\n  line 2: hidden = 'wide': is not a number")


@pytest.mark.parametrize("width", [80, 100])
def test_without_a_file_to_write_the_rows_stand_on_the_screen_beside_what_they_measured(
    width: int, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text(HEADER + "\n" + GOOD + BAD + GOOD.replace(",3.5,", ",,") + BAD)  # a blank line too
    done = run_forked(("estimate", "in.csv"), tmp_path, {**os.environ, "COLUMNS": str(width)})
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= width for line in done.stdout.splitlines())
    first, second = (line.split() for line in done.stdout.splitlines() if line.startswith(("    3 ", "    5 ")))
    assert first[-2] == "3.50"
    assert float(first[-1]) == pytest.approx(100 * (float(first[-5]) / 3.5 - 1), abs=0.2)
    assert second[-2:] == ["-", "-"]
    assert "2 of 4 rows priced; 2 not\n  line 4 and 1 more: hidden = 'wide': is not a number" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_the_score_is_printed_and_unconfirmed_rows_are_counted(tmp_path: Path) -> None:
    unreadable = GOOD.replace(",3.5,", ",fast,")
    (tmp_path / "in.csv").write_text(HEADER + GOOD + GOOD.replace("yes", "no") + unreadable)
    done = trisweep("estimate", "in.csv", "--out", "out.csv", "--score", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Predicted against measured" in done.stdout
    assert "A paper, 1" in done.stdout
    assert "Left out, with confirmed=no: 1 row." in done.stdout
    assert "Left out: line 4: iter_time_s = 'fast': is not a number" in done.stdout
    assert "in the mean of 1 row," in done.stdout


def test_a_score_without_measurements_says_so(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + GOOD.replace(",3.5,", ",,"))
    done = trisweep("estimate", "in.csv", "--out", "out.csv", "--score", cwd=tmp_path)
    assert done.returncode == 0
    assert "No row that was priced holds a measurement." in done.stdout


def test_rows_with_impossible_units_are_counted_and_not_scored(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + GOOD + GOOD.replace(",3.5,", ",0.0035,") * 6)
    done = trisweep("estimate", "in.csv", "--score", cwd=tmp_path)
    assert "Left out: line 3: iter_time_s = '0.0035': is a rate above the 312 TFLOP/s" in done.stdout
    assert "... and 1 more row whose measurements cannot be used." in done.stdout
    assert "in the mean of 1 row," in done.stdout


@pytest.mark.slow
def test_the_trainer_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + GOOD)
    for name in ("trisweep", "megatron-lm"):
        done = trisweep("estimate", "in.csv", "--out", f"{name}.csv", "--implementation", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "trisweep.csv").read_text() != (tmp_path / "megatron-lm.csv").read_text()


@pytest.mark.parametrize(
    ("content", "options", "key"),
    [
        ("model,layers\na,1\n", [], ""),
        (None, [], "in.csv"),
        (HEADER + GOOD, ["--implementation", "colossal"], "--implementation"),
        (HEADER + '"unfinished', [], ""),
    ],
)
def test_what_cannot_be_read_is_one_message_and_nothing_is_written(
    content: str | None, options: list[str], key: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "in.csv").write_text(content)
    before = sorted(tmp_path.iterdir())
    done = trisweep("estimate", "in.csv", "--out", "out.csv", *options, cwd=tmp_path)
    said(done, key)
    assert sorted(tmp_path.iterdir()) == before


def test_a_table_of_headings_alone_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER)
    done = trisweep("estimate", "in.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "in.csv has no row below its headings: nothing to price.\n")


def test_a_folder_as_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + GOOD)
    (tmp_path / "out.csv").mkdir()
    done = trisweep("estimate", "in.csv", "--out", "out.csv", cwd=tmp_path)
    said(done, "out.csv")


@pytest.mark.slow
def test_a_table_of_60_rows_composes_few_configurations_and_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("".join(PUBLISHED.read_text().splitlines(keepends=True)[:61]))
    code = (
        "import sys; sys.argv = ['trisweep', 'estimate', sys.argv[1], '--out', 'out.csv', '--score']\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == 'open' else None)\n"
        "from cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print('composed:', sum(path.endswith('hydra/env/default.yaml') for path in opened))\n"
        "print('heavy:', [name for name in ('torch', 'mlflow', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "in.csv"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    *_, compositions, heavy = done.stdout.splitlines()
    assert heavy == "heavy: []"
    # Composing takes most of the time; one for each row would be sixty.
    assert 0 < int(compositions.removeprefix("composed: ")) < 8


def test_reasons_and_columns_that_look_misspelt_are_on_the_screen(tmp_path: Path) -> None:
    header = HEADER.replace("recompute", "recomputing").replace("confirmed", "kvheads")
    (tmp_path / "in.csv").write_text(header + GOOD.replace("yes", "8") + BAD)
    done = trisweep("estimate", "in.csv", "--out", "out.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "line 3: hidden = 'wide': is not a number" in done.stdout
    meant = "recomputing (did you mean recompute?), kvheads (did you mean kv_heads?)"
    assert f"Columns that were not read: {meant}." in done.stdout


def test_a_table_of_which_nothing_could_be_priced_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(HEADER + BAD)
    done = trisweep("estimate", "in.csv", "--out", "out.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert "0 of 1 row priced" in done.stdout
    assert (tmp_path / "out.csv").exists()


def test_memory_that_contradicts_its_recomputation_is_said_beside_the_row(tmp_path: Path) -> None:
    held = GOOD.replace(",3.5,", ",3.5,{},")
    (tmp_path / "in.csv").write_text(HEADER.replace("iter_time_s,", "iter_time_s,memory_gib,") + held.format(""))
    needed = json.loads(trisweep("estimate", "in.csv", "--json", cwd=tmp_path).stdout)["rows"][0]
    assert needed["doubt"] is None
    full = needed["predicted_peak_memory_bytes"] / 2**30
    unsaid = held.replace(",full,", ",none,").format(f"{full:.1f}")
    (tmp_path / "in.csv").write_text(HEADER.replace("iter_time_s,", "iter_time_s,memory_gib,") + unsaid)
    said = f"line 2: {full:.1f} GiB are held, where recompute = none needs"
    assert said in trisweep("estimate", "in.csv", cwd=tmp_path).stdout
    found = json.loads(trisweep("estimate", "in.csv", "--json", cwd=tmp_path).stdout)["rows"][0]["doubt"]
    assert f"; full recomputation needs {full:.1f}" in found
