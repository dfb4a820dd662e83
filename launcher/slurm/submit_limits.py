"""How many jobs the site lets this user have in the queue, so that arrays are made no larger than that."""

from __future__ import annotations

import getpass
import shutil
import subprocess

from conf.sites import SlurmSpec
from launcher.slurm.cluster import this_cluster

ANSWER_SECONDS = 10
QOS_LIMITS = "MaxSubmitPU,MaxSubmitPA,GrpSubmit"
"""Of a QOS: jobs per user, per account, and in all."""


def most_jobs(slurm: SlurmSpec) -> int | None:
    """The least of the limits that hold for jobs with these settings; None where there is none, or nobody says.

    It is a hint: what sbatch takes is for Slurm to say, as other jobs of the user count too.
    """
    if not this_cluster().enforces_limits:
        return None
    associations = _sacctmgr("assoc", "Account,QOS,DefaultQOS,MaxSubmit,GrpSubmit", f"user={getpass.getuser()}")
    known = [row for row in associations if slurm.account in (None, row[0])]
    limits = [limit for row in known for limit in row[3:]]
    asked = slurm.qos or next((row[2] for row in known if row[2]), "normal")
    limits += [limit for row in _sacctmgr("qos", f"Name,{QOS_LIMITS}") if row[0] == asked for limit in row[1:]]
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def _sacctmgr(what: str, columns: str, *where: str) -> list[list[str]]:
    if not shutil.which("sacctmgr"):
        return []
    command = ["sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={columns}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return []
    rows = [line.split("|") for line in done.stdout.splitlines()]
    # A site's wrapper may print a banner.
    return [row for row in rows if len(row) == len(columns.split(","))] if done.returncode == 0 else []
