"""Every scenario: importing this fills `CATALOGUE`."""

import benchmarks.chaos.harm_by_planting
import benchmarks.chaos.harm_by_refusals
import benchmarks.chaos.harm_by_shell
import benchmarks.chaos.harm_to_allocations
import benchmarks.chaos.harm_to_commands
import benchmarks.chaos.harm_to_controllers
import benchmarks.chaos.harm_to_disks
import benchmarks.chaos.harm_to_files
import benchmarks.chaos.harm_to_folders
import benchmarks.chaos.harm_to_jobs
import benchmarks.chaos.harm_to_slurm
import benchmarks.chaos.harm_to_us  # noqa: F401
from benchmarks.chaos.scenario import CATALOGUE

__all__ = ["CATALOGUE"]
