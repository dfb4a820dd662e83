"""The table of sbatch's and srun's options."""

from __future__ import annotations

import pytest

from conf.types.sbatch_options import sbatch_table, srun_table


def test_every_name_means_one_option() -> None:
    table = sbatch_table()
    assert {*table.keys, *table.refused, *table.devices, *table.rivals} <= set(table.names.values())
    assert all(table.names[name] == name for name in table.names.values())


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        ("SBATCH_TIMELIMIT", "time"),
        ("SBATCH_MEM_PER_NODE", "mem"),
        ("SLURM_NNODES", "nodes"),
        ("SRUN_OUTPUT", "output"),
        ("SLURM_CONF", None),
        ("SQUEUE_FORMAT", None),
        ("SBATCH_OF_A_PLUGIN", None),
    ],
)
def test_a_variable_means_an_option(variable: str, option: str | None) -> None:
    assert sbatch_table().option_of_variable(variable) == option


def test_short_forms_mean_other_options_to_srun() -> None:
    assert sbatch_table().option("-K") == "K"
    assert srun_table().option("-K") == "kill-on-bad-exit"
    assert srun_table().option("-l") == "label"
