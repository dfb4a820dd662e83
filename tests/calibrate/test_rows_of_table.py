"""Rows of a table are of the cluster that the command names, where they have its device and name no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.measured_runs import rows_of_table
from conf.errors import UsageError
from tests.messages import refused

COLUMNS = "gpu,cluster,layers,hidden,heads,seq,num_gpus,tp,pp,micro_batch,global_batch,precision,iter_time_s\n"
ROWS = "{gpu},{cluster},48,8192,64,2048,64,4,2,4,512,bf16,40\n{gpu},{cluster},48,8192,64,2048,64,4,4,4,512,bf16,42\n"


def table(folder: Path, *of: tuple[str, str]) -> Path:
    path = folder / "rows.csv"
    path.write_text(COLUMNS + "".join(ROWS.format(gpu=gpu, cluster=cluster) for gpu, cluster in of))
    return path


@pytest.mark.parametrize("gpu", ["A100-40GB", "A100-40GB-SXM", "NVIDIA A100 40GB", ""])
def test_rows_of_the_device_are_of_the_cluster_that_the_command_names(gpu: str, tmp_path: Path) -> None:
    found = rows_of_table(table(tmp_path, (gpu, "")), "perlmutter")
    assert (found.cluster.name, len(found.trials)) == ("perlmutter", 2)


def test_rows_that_name_another_cluster_or_device_are_left_out(tmp_path: Path) -> None:
    path = table(tmp_path, ("A100-40GB", ""), ("H100", ""), ("", "frontier"), ("A100-40GB", "mosaicml-a100-40gb"))
    found = rows_of_table(path, "perlmutter")
    assert len(found.trials) == 2
    assert found.notes[0] == "Left out: 6 rows of other clusters"
    with refused(UsageError):
        rows_of_table(table(tmp_path, ("H100", "")), "perlmutter")
