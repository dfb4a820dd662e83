"""What one place says of a trial is not said of another, and a dry run shows what its command does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conf.errors import ConfigError, UsageError
from conf.overrides import Overrides
from launcher import sweep as launcher_sweep
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.local.machine import MachineCapacity
from launcher.sweep import dry_run, dry_run_here, run_here, slurm_rules
from launcher.where import choose_place
from sweeps.folder.submission import Submission, shape_of, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import Silent, SlurmOf
from tests.messages import refused
from tests.results.conftest import finish
from train_core.trial.measurement import Outcome

OF_FRONTIER = """# @package _global_
defaults:
  - override /model: tiny
  - override /cluster: frontier

sweep:
  name: far
  question: Which micro-batch?
  baseline: {parallel.world_size: 8}
  axes: {batch.micro_batch_size: [1, 2]}
  points: []
  max_trials: 4
  published: []
  proxy: null
"""
SMALL = MachineCapacity(num_cores=2, memory_bytes=1024, num_devices=0)
LARGE = MachineCapacity(num_cores=2, memory_bytes=2**40, num_devices=0)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody's own, with a sweep whose cluster Slurm serves."""
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "far.yaml").write_text(OF_FRONTIER)
    monkeypatch.setattr("conf.folders._given", (tmp_path / "mine",))
    return tmp_path / "mine"


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("dry", [False, True])
def test_a_sweep_for_slurm_without_a_proxy_is_not_tried_on_this_machine_unasked(dry: bool) -> None:
    with refused(UsageError, "--here"):
        choose_place(Overrides.parse(["sweep=far"]), here=False, dry_run=dry)
    here = choose_place(Overrides.parse(["sweep=far"]), here=True, dry_run=dry)
    assert (here.on_slurm, here.proxy) == (False, False)
    assert choose_place(Overrides.parse(["sweep=far", "cluster=frontier"]), here=False, dry_run=True).on_slurm


@pytest.mark.usefixtures("own_folder")
def test_a_cluster_without_a_file_of_slurms_but_with_chosen_settings_is_one_of_slurms() -> None:
    with refused(UsageError):
        choose_place(Overrides.parse(["sweep=smoke", "slurm=lumi"]), here=False, dry_run=True)


@pytest.mark.parametrize("name", ["175b", "smoke"])
def test_a_dry_run_is_of_the_place_that_the_command_itself_chooses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.where.slurm_answers", lambda: False)
    places = [choose_place(Overrides.parse([f"sweep={name}"]), here=False, dry_run=dry) for dry in (False, True)]
    assert [each.on_slurm for each in places] == [False, False]
    assert len({each.folder.path for each in places}) == 1
    with refused(ConfigError, "controller"):
        choose_place(Overrides.parse([f"sweep={name}", "controller=slurm"]), here=False, dry_run=True)
    monkeypatch.setattr("launcher.where.slurm_answers", lambda: True)
    for dry in (False, True):
        with refused(UsageError):
            choose_place(Overrides.parse([f"sweep={name}"]), here=False, dry_run=dry)


@pytest.fixture
def command(folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf) -> SweepCommand:
    record = record_of([{"training.seed": seed} for seed in range(2)])
    return SweepCommand(Sweep(folder, record), slurm_rules(slurm_of()), SweepOrders(("sweep=smoke",)))


def _outcomes(command: SweepCommand) -> list[Outcome | None]:
    return [each.outcome for each in Sweep.stored_in(command.sweep.folder).read()]


def test_what_this_machine_is_too_small_for_is_submitted_and_tried_on_a_larger_one(
    command: SweepCommand, slurm_of: SlurmOf, progress: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_sweep, "this_machine", lambda: SMALL)
    for _ in range(2):  # each command looks anew, and ends
        run_here(command, progress)
        assert _outcomes(command) == [Outcome.INFEASIBLE] * 2
    started, _ = dry_run_here(command)
    assert started.started == ()
    assert {each.name for each in started.readings} >= {each.trial_id for each in command.sweep.record.trials}
    monkeypatch.setattr(launcher_sweep, "this_machine", lambda: LARGE)
    assert len(dry_run_here(command)[0].started) == 2
    step, requests = dry_run(command, slurm_of())
    assert (len(step.started), len(requests)) == (2, 1)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT])
def test_what_failed_on_this_machine_is_submitted_to_slurm(
    command: SweepCommand, slurm_of: SlurmOf, outcome: Outcome
) -> None:
    sweep = command.sweep
    sweep.folder.write_record(sweep.record)
    for trial in sweep.record.trials:
        finish(sweep.folder, trial, (outcome, "no device here"))
        of_trial, shape = sweep.folder_of(trial), shape_of(trial.planned)
        ran = Submission(
            executor="local", job_id="7", hostname="here", attempt=1, submitted=1.0, shape=shape, output="o", error="e"
        )
        write_submission(of_trial, ran)
    assert dry_run_here(command)[0].started == (), "at the same place it stands"
    assert len(dry_run(command, slurm_of())[0].started) == 2


def test_a_dry_run_here_says_why_a_trial_would_not_run(command: SweepCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_sweep, "this_machine", lambda: SMALL)
    step, caught = dry_run_here(command)
    assert step.started == ()
    assert all(re.search("GiB of this machine's", why) for why in caught.values())
    assert len(caught) == 2
    assert not command.sweep.folder.path.exists()
