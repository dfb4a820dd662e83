"""How many jobs a site lets a user have, read from its accounting."""

from __future__ import annotations

import pytest

from launcher.slurm.workplace import most_jobs
from tests.launcher.conftest import SlurmOf, Tools

ENFORCED = "echo 'ClusterName = alps'; echo 'AccountingStorageEnforce = associations,limits,qos'"
SACCTMGR = """
echo 'maintenance on Sunday'
case "$*" in
  *assoc*) echo 'abc|normal,debug|normal|500|'; echo 'other|normal||7|' ;;
  *qos*) echo 'normal||300|'; echo 'debug|5||' ;;
esac
"""


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        (("slurm.account=abc",), 300),
        (("slurm.account=abc", "slurm.qos=debug"), 5),
        ((), 7),
        (("slurm.account=unheard-of", "slurm.qos=unheard-of"), None),
    ],
)
def test_the_least_limit_of_the_account_and_the_qos_holds(
    tools: Tools, slurm_of: SlurmOf, overrides: tuple[str, ...], most: int | None
) -> None:
    tools(scontrol=ENFORCED, sacctmgr=SACCTMGR)
    assert most_jobs(slurm_of(*overrides)) == most


@pytest.mark.parametrize("sacctmgr", ["exit 1", "echo 'Access denied' >&2; exit 1"])
def test_where_nobody_says_there_is_no_limit(tools: Tools, slurm_of: SlurmOf, sacctmgr: str) -> None:
    tools(scontrol=ENFORCED, sacctmgr=sacctmgr)
    assert most_jobs(slurm_of()) is None


def test_limits_that_slurm_does_not_enforce_are_none(tools: Tools, slurm_of: SlurmOf) -> None:
    tools(scontrol="echo 'AccountingStorageEnforce = none'", sacctmgr=SACCTMGR)
    assert most_jobs(slurm_of("slurm.account=abc")) is None
