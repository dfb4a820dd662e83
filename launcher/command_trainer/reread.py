"""Reads the logs of trials again that failed only because nothing was read, once patterns or what is sought changed."""

from __future__ import annotations

from launcher.command_trainer.failure import unmeasured_failure, wrongly_read
from launcher.command_trainer.figure_parser import figures_in, parser_of
from launcher.command_trainer.job import LogTail
from launcher.command_trainer.performance import environment_of, performance_of
from launcher.refused import put_back_too
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.trial.atomic import stored_values
from train_core.trial.measurement import Fault, Measurement, Outcome


def reread_logs(sweep: Sweep) -> None:
    """Measure by their logs what programs of trials have done whose end was all that could be told.

    Nothing is run. Whoever calls holds the lock of the sweep's folder.
    """
    # Of the package's own trainer no log is read, and its trials may be thousands.
    foreign = (each for each in sweep.record.trials if each.experiment and not each.experiment.trainer.is_own)
    unread = [each for each in map(sweep.read_trial, foreign) if _is_to_be_reread(each, sweep)]
    put_back_too([each.folder for each in unread])
    for each in unread:
        _read(each, sweep)


def _is_to_be_reread(reading: TrialReading, sweep: Sweep) -> bool:
    """True if it ended well, and was read in another way than it would be now."""
    if reading.measurement is None or reading.measurement.why not in (Fault.UNREAD, Fault.UNTIMED):
        return False
    stored = stored_values(reading.folder.trial)
    was_read = stored.get("experiment", {}).get("trainer", {}).get("log")
    now = reading.planned.trainer.log.model_dump(mode="json")
    return bool(was_read != now or stored.get("objective") != list(sweep.record.objective))


def _read(reading: TrialReading, sweep: Sweep) -> None:
    """Read its logs, and write down what they tell, if only why that still is nothing to measure."""
    folder, experiment, before = reading.folder, reading.planned, reading.measurement
    assert before is not None
    logs = sorted(folder.logs.glob("rank-*.log"), key=lambda log: int(log.stem.removeprefix("rank-")))
    logs = [logs[0], logs[-1]] if len(logs) > 1 else logs  # of the first and the last process, as while a program runs
    book = parser_of(experiment, 0, sweep.record.objective)
    for source, log in enumerate(map(LogTail, logs)):
        for line in (*log.lines(), *log.last_words()):
            list(book.hear(line, source))
    list(book.close())
    stored = stored_values(folder.trial)
    stored["experiment"]["trainer"]["log"] = experiment.trainer.log.model_dump(mode="json")
    folder.write_trial({**stored, "objective": list(sweep.record.objective)})
    performance = performance_of(experiment, book.steps, book.tflops, book.memory_bytes, book.untimed)
    is_done = experiment.trainer.log.done is None or book.is_done
    if performance is None or book.error or not is_done or wrongly_read(book, logs):
        if is_done and not book.error:
            cause = wrongly_read(book, logs) or unmeasured_failure(book, logs).cause
            folder.write_measurement(before.model_copy(update={"cause": cause}))
        return
    folder.rewind_metrics(0)
    for step in book.steps:
        folder.append_metrics(step)
    environment = environment_of(experiment, "")
    host = {"hostname": before.nodes[0]} if before.nodes else {}
    folder.write_measurement(
        Measurement(
            fingerprint=experiment.fingerprint,
            outcome=Outcome.COMPLETED,
            cause="",
            performance=performance,
            environment=environment.model_copy(update=host),
            started=before.started,
            ended=before.ended,
            metrics=figures_in(book),
        )
    )
