"""A command that is killed while it writes down ends of trials: the next one loses none, and tells none twice."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.control.conductor import Conductor
from launcher.slurm.reconcile import reconcile
from launcher.slurm.workplace import SeenFromOutside
from launcher.sweep import slurm_rules
from sweeps.folder import journal
from sweeps.folder.journal import Ended, Journal
from sweeps.folder.submission import Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf, Tools
from tests.launcher.test_run_here import seeds
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Measurement, Outcome

NUM_TRIALS = 20


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf, slurm_submission: Callable[..., Submission], tools: Tools) -> Sweep:
    """Trials of one array, all of which Slurm has ended, and none has left a word."""
    sweep = Sweep(folder, record_of(seeds(NUM_TRIALS)))
    folder.write_record(sweep.record)
    for element, trial in enumerate(sweep.record.trials):
        job = slurm_submission(f"12_{element}", job_name="ours", cluster="alps", element=element)
        write_submission(sweep.prepare(trial), job)
    line = "12_$element|TIMEOUT|2026-11-22T05:00:00|n1|ours|"
    squeue = f'for element in $(seq 0 {NUM_TRIALS - 1}); do echo "{line}"; done'
    tools(scontrol="echo 'ClusterName = alps'", squeue=squeue, sacct="exit 1", sbatch="exit 1")
    return sweep


def killed(work: Callable[[], object]) -> None:
    """Do the work in a process that ends itself, as `kill -9` does, before the work is done."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_ends_of_which_a_killed_status_wrote_some_are_all_there_after_the_next(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = TrialFolder.write_verdict, list[Path]()

    def write_some(self: TrialFolder, measurement: Measurement) -> None:
        if len(written) == NUM_TRIALS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        written.append(self.path)
        write(self, measurement)

    with monkeypatch.context() as patch:
        patch.setattr(TrialFolder, "write_verdict", write_some)
        killed(lambda: reconcile(sweep.read()))
    before = {path: path.read_bytes() for path in sweep.folder.trials.glob("*/measurement.json")}
    assert len(before) == NUM_TRIALS // 2
    readings = reconcile(sweep.read())
    assert [each.outcome for each in readings] == [Outcome.TIMED_OUT] * NUM_TRIALS
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_ends_of_which_a_killed_step_told_the_journal_some_are_told_once_each(
    sweep: Sweep, slurm_of: SlurmOf, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    def conductor() -> Conductor:
        return Conductor(sweep, SeenFromOutside(slurm_of()), slurm_rules(slurm_of()))

    def append_some(path: Path, text: str) -> None:
        assert all(each.measurement.exists() for each in map(sweep.folder_of, sweep.record.trials))
        path.open("a").write(text[: round(share * len(text))])
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "append_whole", append_some)
        killed(conductor().advance)
    for _ in range(2):
        conductor().advance()
    ends = [entry.trial_id for entry in Journal(sweep.folder.journal).read_new() if isinstance(entry, Ended)]
    assert Counter(ends) == {trial.trial_id: 1 for trial in sweep.record.trials}
