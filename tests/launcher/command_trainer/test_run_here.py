"""A program as the trainer, on this machine: what it prints is measured, and how it ends is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launcher.command_trainer import job
from launcher.command_trainer.failure import rank_failure, silenced
from launcher.command_trainer.job import run_here
from tests.launcher.command_trainer.conftest import STEPS, MakeTrial
from tests.waiting import wait_for
from train_core.trial.measurement import Fault, Measurement, Outcome

MOVES = """
import os, sys, time
print("step 1 loss 4 time 0.2 s", flush=True)
time.sleep(1)  # until that is read
os.rename(sys.argv[1], sys.argv[1] + "-moved")
for step in range(2, 5):
    print(f"step {step} loss 4 time 0.2 s", flush=True)
"""


FILLS_THE_DISK = """
import os, sys, time
seconds = float(sys.argv[2])
filler = os.path.join(sys.argv[1], "filler")
with open(filler, "wb", 0) as file:
    try:
        while file.write(b"x" * 4096):
            pass
    except OSError:
        time.sleep(seconds)
for step in range(1, 5):
    try:
        os.write(1, b"step %d loss 4 time 0.2 s\\n" % step)
    except OSError:
        pass
if seconds > 1:
    os.remove(filler)
"""


def test_what_the_program_prints_is_the_measurement(make_trial: MakeTrial) -> None:
    trial = make_trial(STEPS)
    measurement = run_here(trial.path)
    assert measurement.outcome is Outcome.COMPLETED, measurement
    assert measurement == trial.read_measurement()
    performance = measurement.performance
    assert performance is not None
    assert performance.step_seconds == 0.3  # the median of 0.2, 0.3 and 0.4: the first step is a warm-up step
    assert performance.num_timed_steps == 3
    assert performance.losses == (4.5, 4.0, 3.5, 3.0)
    assert performance.peak_memory_bytes == (2.5 * 2**30,)
    assert performance.tflops_as_printed is None


def test_the_folder_looks_like_one_of_our_own_trainer(make_trial: MakeTrial) -> None:
    trial = make_trial(STEPS)
    run_here(trial.path)
    assert [metrics.step for metrics in trial.read_metrics()] == [1, 2, 3, 4]
    assert [metrics.warmup for metrics in trial.read_metrics()] == [True, False, False, False]
    assert trial.heartbeat.exists()
    assert "step 4" in trial.rank_log(0).read_text()


def test_a_log_is_read_on_where_its_folder_is_moved_while_the_program_runs(make_trial: MakeTrial) -> None:
    moved = {"trainer.command": [sys.executable, "{trial_folder}/../../program.py", "{trial_folder}"]}
    trial = make_trial(MOVES, moved)
    assert run_here(trial.path).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("seconds", ["2.5", "0"], ids=["it is full for a while", "it is full as it ends"])
def test_a_program_whose_output_a_full_disk_did_not_take_has_not_failed_by_itself(
    make_trial: MakeTrial, seconds: str
) -> None:
    words = [sys.executable, "{trial_folder}/../../program.py", "{trial_folder}/logs", seconds]
    told = {"trainer.command": words}
    trial = make_trial(FILLS_THE_DISK, told)
    trial.logs.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", trial.logs], check=False).returncode:
        pytest.skip("may not mount a disk")
    try:
        measurement = run_here(trial.path)
    finally:
        subprocess.run(["umount", "-l", trial.logs], check=True)
    assert measurement.fault is Fault.DISK, measurement.cause
    assert "may lack what it printed (nothing measurable in its log" in measurement.cause


@pytest.mark.parametrize(("words", "fault"), [("", Fault.DISK), ("KeyError: 'lr'", Fault.INPUT)])
def test_on_a_full_disk_an_error_in_the_programs_own_words_is_its_own(words: str, fault: Fault) -> None:
    failure = silenced(rank_failure(Fault.INPUT, "exited with code 1", words, 0), Path("rank-0.log"))
    assert failure is not None
    assert failure.fault is fault


def test_flops_are_counted_by_our_formula_and_the_programs_own_figure_is_kept_beside(make_trial: MakeTrial) -> None:
    patterns = {"line": r"step (?P<step>\d+) (?P<step_milliseconds>\S+) ms (?P<tflops>\S+) TFLOPS"}
    program = "for i in (1, 2, 3, 4): print(f'step {i} 1,000.0 ms {100 + i} TFLOPS')"
    trial = make_trial(program, {"trainer.log.patterns": patterns})
    performance = run_here(trial.path).performance
    assert performance is not None
    assert performance.step_seconds == 1.0
    assert performance.model_flops_per_second_per_device == performance.model_flops
    assert performance.tflops_as_printed == 103


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        ("1:4.5 2:4", "3:3.5 4:3", "1:4.5 2:4 3:3.5 4:3"),
        ("1:4.5 2:4 3:9", "3:3.5 4:3", "1:4.5 2:4 3:3.5 4:3"),
        ("1:9 2:9 3:9", "1:4.5 2:4", "1:4.5 2:4"),
        ("1:4.5 2:4 3:3.5 4:3", "", "1:4.5 2:4 3:3.5 4:3"),
        ("1:4.5 2:4", "4:3", "1:4.5 2:4 4:3"),
    ],
    ids=["goes on", "goes on from an earlier step", "begins anew", "had ended", "saved more than was read"],
)
def test_a_program_that_goes_on_from_its_own_checkpoint_is_measured_over_all_its_steps(
    make_trial: MakeTrial, first: str, then: str, told: str
) -> None:
    prints = "print(*(f'step {each[0]} loss {each[2:]} time 1 s' for each in %r.split()), sep='\\n', flush=True)\n"
    trial = make_trial(prints % first + "raise SystemExit(1)")
    assert run_here(trial.path).outcome is Outcome.FAILED
    make_trial(prints % then)
    performance = run_here(trial.path).performance
    assert performance is not None
    known = list(zip(performance.recorded_steps, performance.losses, strict=True))
    assert known == [(metrics.step, metrics.loss) for metrics in trial.read_metrics()]
    assert " ".join(f"{step}:{loss:g}" for step, loss in known) == told


def started(folder: Path) -> subprocess.Popen[bytes]:
    """The job's own process, as the launcher would start it."""
    code = "import sys; from launcher.job import run_on_this_machine; run_on_this_machine(sys.argv[1], (), None)"
    return subprocess.Popen([sys.executable, "-c", code, str(folder)])


@pytest.mark.slow
def test_steps_are_on_disk_while_the_program_still_runs(make_trial: MakeTrial, tmp_path: Path) -> None:
    wait = f"\nimport os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
    trial = make_trial("print('step 1 loss 4 time 1 s')" + wait + STEPS)
    job = started(trial.path)
    wait_for(trial.metrics.exists)
    assert trial.read_measurement() is None
    assert trial.is_running_here()
    (tmp_path / "go").touch()
    assert job.wait(90) == 0
    assert len(trial.read_metrics()) == 4


@pytest.mark.slow
def test_a_job_that_is_cancelled_leaves_neither_a_measurement_nor_a_process(make_trial: MakeTrial) -> None:
    workers = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    trial = make_trial(workers + "print('step 1 loss 4 time 1 s')\ntime.sleep(600)")
    job = started(trial.path)
    wait_for(trial.metrics.exists)
    family = psutil.Process(job.pid).children(recursive=True)
    assert len(family) == 2
    job.send_signal(signal.SIGTERM)
    assert job.wait(90) == 128 + signal.SIGTERM
    assert not any(process.is_running() for process in family)
    assert trial.read_measurement() is None
    assert not trial.is_running_here()


def test_a_program_that_is_cancelled_has_time_to_save(make_trial: MakeTrial, tmp_path: Path) -> None:
    saves = f"import pathlib, signal, sys, time\nsaved = pathlib.Path({str(tmp_path / 'saved')!r})\n"
    saves += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(saved.touch()))\n"
    trial = make_trial(saves + "print('step 1 loss 4 time 1 s', flush=True)\ntime.sleep(600)")
    job = started(trial.path)
    wait_for(trial.metrics.exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait(90) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists()


def test_a_program_ends_with_a_job_that_is_killed_also_where_it_ignores_being_asked(make_trial: MakeTrial) -> None:
    ignores = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    trial = make_trial(ignores + "print('step 1 loss 4 time 1 s')\ntime.sleep(600)")
    job = started(trial.path)
    wait_for(trial.metrics.exists)
    (program,) = psutil.Process(job.pid).children()
    job.kill()
    job.wait()
    psutil.wait_procs([program], timeout=10)
    assert not program.is_running() or program.status() == psutil.STATUS_ZOMBIE


def test_the_program_starts_in_its_folder_with_its_files_and_environment(make_trial: MakeTrial, tmp_path: Path) -> None:
    program = """
import json, os, sys
assert os.getcwd() == sys.argv[1], os.getcwd()
assert json.load(open(sys.argv[2]))["micro"] == 1
assert os.environ["GREETING"] == "two words; $(id)"
assert "PYTHONSAFEPATH" not in os.environ
import beside
"""
    (tmp_path / "beside.py").touch()
    values = {
        "trainer.command": [sys.executable, str(tmp_path / "program.py"), str(tmp_path), "{trial_folder}/c.json"],
        "trainer.files": {"c.json": {"micro": "{batch.micro_batch_size}"}},
        "trainer.environment": {"GREETING": "two words; $(id)"},
        "trainer.working_dir": str(tmp_path),
    }
    measurement = run_here(make_trial(program + STEPS, values).path)
    assert measurement.outcome is Outcome.COMPLETED, measurement


def test_every_device_gets_a_process_where_it_is_to_be_started_so(make_trial: MakeTrial) -> None:
    program = """
import os
rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
assert (size, local) == (2, rank) and os.environ["MASTER_PORT"]
if rank == 1:  # some programs print where the loss is
    for step in range(1, 5): print(f"step {step} loss 4 time 1 s")
"""
    trial = make_trial(program, {"trainer.start": "srun", "parallel.world_size": 2})
    assert run_here(trial.path).outcome is Outcome.COMPLETED
    assert len(trial.read_metrics()) == 4
    assert not trial.rank_log(0).read_text()


def test_each_rank_sees_its_own_gpu_of_those_that_the_job_was_given(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    program = "import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'])"
    trial = make_trial(program + STEPS, {"trainer.start": "srun", "parallel.world_size": 2})
    run_here(trial.path, devices=(1, 3))
    assert [trial.rank_log(rank).read_text().splitlines()[0] for rank in (0, 1)] == ["sees 5", "sees 7"]


def test_a_program_that_is_done_and_does_not_end_is_ended(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "DONE_SECONDS", 0.1)
    trial = make_trial(
        STEPS + "print('after training is done')\nimport time; time.sleep(600)", {"trainer.log.done": "is done$"}
    )
    assert run_here(trial.path).outcome is Outcome.COMPLETED


def evaluated(make_trial: MakeTrial, program: str, metrics: dict[str, str] | None) -> Measurement:
    """A program of a later stage, which makes no steps."""
    trial = make_trial(STEPS)
    content = json.loads(trial.trial.read_text())
    content["experiment"]["stage"] = {"name": "score", "follows": {"train": "another-trial"}}
    content["experiment"]["trainer"] |= {"kind": "program", "metrics": metrics}
    content["experiment"]["trainer"]["command"] += ["{train.folder}", "{trial_folder}"]
    trial.write_trial(content)
    Path(content["experiment"]["trainer"]["command"][1]).write_text(program)
    return run_here(trial.path)


SCORES = """
import json, sys
with open(sys.argv[2] + '/s.json', 'w') as file:
    json.dump({'rmse': 0.5, 'of': {'tropics': 2}, 'words': 'good'}, file)
"""


def test_figures_of_an_evaluation_are_read_from_its_file(make_trial: MakeTrial) -> None:
    measurement = evaluated(make_trial, SCORES, {"file": "s.json"})
    assert (measurement.outcome, measurement.performance) == (Outcome.COMPLETED, None)
    assert measurement.metrics == {"rmse": 0.5, "of.tropics": 2.0}


def test_figures_of_an_evaluation_are_read_from_the_last_line_that_has_them(make_trial: MakeTrial) -> None:
    program = "print('score nan'); print('score 0.25'); print('score 0.75 of 1'); print('end')"
    assert evaluated(make_trial, program, {"line": r"score (?P<score>\S+)"}).metrics == {"score": 0.75}


def test_an_evaluation_is_told_where_the_training_was(make_trial: MakeTrial) -> None:
    program = "import os, sys; print('score', int(os.path.basename(sys.argv[1]) == 'another-trial'))"
    assert evaluated(make_trial, program, {"line": r"score (?P<found>\d)"}).metrics == {"found": 1.0}


@pytest.mark.parametrize(
    ("program", "metrics", "cause"),
    [
        ("print(1)", {"file": "s.json"}, "it left no file of figures in its folder (metrics.file = 's.json'"),
        ("import sys; open(sys.argv[2] + '/s.json', 'w').write('{')", {"file": "s.json"}, "not JSON"),
        ("import sys; open(sys.argv[2] + '/s.json', 'w').write('[1]')", {"file": "s.json"}, "holds no number"),
        ("print('scores')", {"line": r"score (?P<score>\d+)"}, "no line of its log has a number where metrics.line"),
        ("raise SystemExit(3)", None, "the program exited with code 3"),
    ],
)
def test_an_evaluation_without_its_figures_has_failed(
    make_trial: MakeTrial, program: str, metrics: dict[str, str] | None, cause: str
) -> None:
    measurement = evaluated(make_trial, program, metrics)
    assert measurement.outcome is Outcome.FAILED
    assert cause in measurement.cause


def test_an_evaluation_needs_no_figures(make_trial: MakeTrial) -> None:
    measurement = evaluated(make_trial, "print('done')", None)
    assert (measurement.outcome, measurement.metrics) == (Outcome.COMPLETED, {})
