"""Slurm's tools, made up: small scripts that answer as real ones do, for jobs that never run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

SCONTROL = """
echo "ClusterName = made-up"
echo "MaxArraySize = 1001"
"""
SBATCH = """
for script; do :; done
name=$(sed -n 's/^#SBATCH --job-name=//p' "$script")
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
job=$((1 + $(ls "$STATE/jobs" | wc -l)))
echo "$name ${last:-none}" > "$STATE/jobs/$job"
echo "Submitted batch job $job"
"""
WANTED = """
wanted=$(ls "$STATE/jobs")
for word; do
  case "$word" in
    --jobs=*) wanted=$(echo "${word#--jobs=}" | tr , ' ') ;;
    --name=*) names=$(echo "${word#--name=}" | tr , '|'); wanted=$(cd "$STATE/jobs" && grep -lE "^($names) " *) ;;
  esac
done
IFS='|' read -r state end node < "$STATE/state"
for job in $wanted; do
  read -r name last < "$STATE/jobs/${job%_*}" || continue
  case "$job" in *_*) first=${job#*_}; last=$first ;; *) first=0 ;; esac
"""
SQUEUE = f"""{WANTED}
  [ "$last" = none ] && echo "$job|$state|$end|$node|$name|" && continue
  seq -f "${{job%_*}}_%.0f|$state|$end|$node|$name|" "$first" "$last"
done
"""
SACCT = f"""{WANTED}
  [ "$last" = none ] && ids="$job" || ids=$(seq -f "${{job%_*}}_%.0f" "$first" "$last")
  for id in $ids; do
    case "$*" in
      *JobName,Cluster*) echo "$id|$name|made-up|${{state%% *}}|0:0|$end|$end|$end|1|p|a|q|1|$node|cpu=1|30|0" ;;
      *) echo "$id|${{state%% *}}|$end|$node|$name|" ;;
    esac
  done
done
"""
SCANCEL = """
echo "CANCELLED by 0|$(date +%Y-%m-%dT%H:%M:%S)|" > "$STATE/state"
"""
SCRIPTS = {"scontrol": SCONTROL, "sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scancel": SCANCEL, "srun": ""}


class MadeUpSlurm:
    """A Slurm that takes every job, and shows all of them in one state: that in which they were put."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools, self.state = folder / "tools", folder / "state"
        for path in (self.tools, folder / "jobs"):
            path.mkdir(parents=True)
        for name, script in SCRIPTS.items():
            tool = self.tools / name
            tool.write_text(f"#!/bin/sh\nSTATE={folder}\n{script.strip()}\n")
            tool.chmod(0o755)
        self.put_jobs("PENDING Resources")

    @property
    def environment(self) -> Mapping[str, str]:
        """That of a command which finds these tools first."""
        return dict(os.environ) | {"PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}"}

    def put_jobs(self, state: str, *, node: str = "") -> None:
        """Show all jobs in this state; one that is an end lies ten minutes back."""
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 600))
        is_live = state.startswith(("PENDING", "RUNNING"))
        self.state.write_text(f"{state}|{'N/A' if is_live else end}|{node}\n")
