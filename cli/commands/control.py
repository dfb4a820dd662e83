"""Orders to a sweep that was started: `advance` it by a step, `pause`, `resume`, `retry` trials of it, `cancel` it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.output.console import SILENT, complaints, console, print_unwrapped, shown_path
from cli.output.next_command import begun_command, command_by_name, next_command
from cli.started_sweep import further_overrides, print_state, refuse_trials_among, started_sweep
from conf.errors import UsageError
from conf.overrides import Overrides, shell_word
from conf.units import count_of

if TYPE_CHECKING:
    from sweeps.reading import TrialReading
    from sweeps.sweep import Sweep

EXIT_GOES_ON = 75
"""The sweep has not ended yet; sysexits.h calls this number a temporary failure, after which one tries again later."""
Failed = Annotated[
    bool, typer.Option("--failed", help="All of the last command that failed, timed out or lost their node.")
]
ToRetry = Annotated[list[str] | None, typer.Option("--trial", help="This one, by a part of its name. May be repeated.")]
Training = Annotated[str | None, typer.Option(help="End this training from the sweep; status names them.")]
ToCancel = Annotated[list[str] | None, typer.Option("--trial", help="End this one alone, by a part of its name.")]


def advance(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Take one step of a sweep: see what has ended, start what is next. Exit code 0: ended; 75: goes on or is paused.

    Configuration that was given to `trisweep sweep` need not be given again; what is given here counts for this step.
    """
    from launcher.folder_lock import lock_folder
    from launcher.refused import unchanged_if_refused
    from launcher.slurm.controller import take_up

    folder = started_sweep(name, overrides)[0]
    with lock_folder(folder), unchanged_if_refused(folder):
        _, conductor = take_up(folder, further_overrides(overrides))
        step = conductor.advance()
    if step.finished:
        how = f"The sweep has ended: {step.finished}"
    else:
        how = f"Nothing further is started: {step.held}" if step.held else "The sweep goes on"
    counts = f"{len(step.started)} started, {step.num_in_flight} queued or running, {step.num_waiting} waiting"
    print_unwrapped(f"{counts}. {how}. {shown_path(folder.path)}")
    if as_json:
        left = {"num_in_flight": step.num_in_flight, "num_waiting": step.num_waiting, "held": step.held or None}
        print_state("advance", folder, started=step.started, **left)
    if not step.finished:
        raise typer.Exit(EXIT_GOES_ON)


def pause(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Start nothing new of the sweep. What is queued or running goes on."""
    from launcher.control.orders import pause as pause_sweep
    from sweeps.sweep import Sweep

    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    if ended := _why_it_does_not_go_on(sweep):
        raise ended
    changed = pause_sweep(sweep)
    console.print("Paused: what runs goes on, and nothing new is started." if changed else "It was paused already.")
    print_unwrapped(f"  {next_command('resume', sweep)}")
    if as_json:
        print_state("pause", sweep.folder, changed=changed)


def resume(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Let a paused sweep go on. Its controller's job is submitted again if it is gone."""
    from launcher.control.orders import resume as resume_sweep
    from launcher.refused import taken_back_if_refused
    from launcher.slurm.controller import resume_controller
    from sweeps.sweep import Sweep

    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    with taken_back_if_refused(sweep.folder):
        # That a sweep is paused would keep the next command, too, from starting anything.
        changed = resume_sweep(sweep)
        ended = _why_it_does_not_go_on(sweep)
        if ended and not changed:
            raise ended
        job_id = None if ended else resume_controller(sweep)
    console.print("Resumed." if changed else "It was not paused.")
    if ended:
        print_unwrapped(str(ended))
    elif job_id is not None:
        console.print(f"Job {job_id} goes on with the sweep.")
    else:
        begun = begun_command(sweep)
        console.print(f"Where no other process carries it out{', either of' if begun else ''}:")
        for command in (begun, next_command("advance", sweep)):
            if command is not None:
                print_unwrapped(f"  {command}")
    if as_json:
        print_state("resume", sweep.folder, changed=changed, controller_job_id=job_id)


def _why_it_does_not_go_on(sweep: Sweep) -> UsageError | None:
    """The refusal where nothing of the sweep will be started, whether it is paused or not."""
    from sweeps.folder.journal import History

    history, again = History.kept_in(sweep.folder), begun_command(sweep)
    command = f"`{again}`" if again else "the sweep's own command"
    if history.is_cancelled:
        return UsageError(f"Sweep {sweep.record.name} is cancelled", f"To begin it again, give {command}.")
    if history.has_ended([each.outcome for each in sweep.read()]):
        failed = f"`{next_command('retry', sweep, '--failed')}` runs again what failed"
        return UsageError(f"Sweep {sweep.record.name} has ended", f"{failed}, and {command} what is new in it.")
    return None


def retry(
    name: SweepName,
    overrides: OverrideTexts = None,
    failed: Failed = False,
    trial: ToRetry = None,
    as_json: AsJson = False,
) -> None:
    """Have trials run again. Whoever carries the sweep out starts them; else this command submits them to Slurm.

    Configuration that is given here, such as a longer time limit, counts for what this command submits.
    """
    from cli.output.progress import NAMED, ends_in_words
    from launcher.control.orders import failed_trials, retry_failed_trials
    from launcher.control.orders import retry as retry_trials
    from launcher.refused import taken_back_if_refused
    from launcher.slurm.controller import start_now
    from launcher.slurm.reconcile import reconcile
    from sweeps.log_choice import reading_called
    from sweeps.sweep import Sweep

    refuse_trials_among(overrides or ())
    if not failed and not trial:
        raise UsageError("Nothing to run again was named", "Give --failed, or --trial with a trial's id.")
    sweep, further = Sweep.stored_in(started_sweep(name, overrides)[0]), further_overrides(overrides)
    readings = sweep.read() if trial else []
    named = [reading_called(readings, each) for each in trial or ()]
    others: list[TrialReading] = []
    with taken_back_if_refused(sweep.folder):
        again = retry_trials(sweep, named)
        if failed:
            # A job that Slurm ended may have left no word, and its end is written down only once somebody has asked.
            reconcile(sweep.read(), tell_silence=lambda: complaints.print(SILENT))
            again += [each for each in retry_failed_trials(sweep) if each not in again]
            left_alone = (each for each in failed_trials(sweep.read()) if not each.trial.selected)
            others = [each for each in left_alone if each.name not in again]
        step = start_now(sweep, further) if again else None
    for trial_id in again:
        console.print(f"  {trial_id}")
    to_run = f"{count_of(len(again), 'trial')} to run again"
    if not again:
        # Trials may have ended otherwise; then how, and what runs them again.
        readings = sweep.read()
        otherwise = f": {ends_in_words(sweep, readings)}" if any(each.outcome in NAMED for each in readings) else ""
        print_unwrapped(f"No trial{' of the last command' if others else ''} has failed{otherwise}.")
    elif step is not None:
        why = step.held or step.finished
        not_all = f": {why}" if why and not set(again) <= set(step.started) else ""
        print_unwrapped(f"{to_run}; {count_of(len(step.started), 'job')} submitted{not_all}.")
    else:
        command = begun_command(sweep) or next_command("advance", sweep)
        words = [command, *map(shell_word, further.without({"output_dir"}).texts)]
        print_unwrapped(f"{to_run}. If nothing carries the sweep out: {' '.join(words)}")
    if others:
        one, left = next_command("retry", sweep, "--trial", "ID"), count_of(len(others), "failed trial")
        print_unwrapped(f"{left} of earlier commands left alone; `{one}` runs one of them again.")
    if as_json:
        print_state("retry", sweep.folder, to_run_again=again)


def cancel(
    name: SweepName,
    overrides: OverrideTexts = None,
    training: Training = None,
    trial: ToCancel = None,
    as_json: AsJson = False,
) -> None:
    """End what is queued or running of the sweep, or a training from it. Finished points keep their results."""
    from launcher.cancel import cancel_sweep, cancel_training, cancel_trials
    from launcher.control.orders import give_up_retries
    from launcher.long_run import PLACE_GROUPS, training_of
    from sweeps.log_choice import reading_called
    from sweeps.sweep import Sweep
    from train_core.trial.measurement import Outcome

    refuse_trials_among(overrides or ())
    folder = started_sweep(name, overrides)[0]
    sweep = Sweep.stored_in(folder)
    job_id, number = None, 0
    if training is not None:
        run = training_of(folder.path.parent, sweep.record.name, training)
        job_id = cancel_training(run)
        # Of what chose the sweep, a training takes what says where it runs.
        own = Overrides.parse(overrides or ()).of(PLACE_GROUPS) + Overrides.parse(run.overrides)
        again = command_by_name(sweep, own, "train", "--name", training, "--from-best")
        print_unwrapped(f"Job {job_id} cancelled. `{again}` goes on from its last checkpoint.")
    elif trial:
        readings = sweep.read()
        named = list({each.name: each for each in (reading_called(readings, text) for text in trial)}.values())
        ended = cancel_trials(sweep, [each.trial for each in named]) + give_up_retries(sweep, named)
        for each in (each for each in named if each.name not in ended):
            how = "measured" if each.outcome is Outcome.COMPLETED else each.outcome
            print_unwrapped(f"{each.name} is {how}; nothing to cancel.")
        if ended:
            again = next_command("retry", sweep, "--trial", "ID")
            print_unwrapped(f"{count_of(len(ended), 'trial')} cancelled, run again only by `{again}`:")
        for trial_id in ended:
            console.print(f"  {trial_id}")
        number = len(ended)
    else:
        number, where = cancel_sweep(sweep), shown_path(folder.path)
        console.print(f"{count_of(number, 'trial')} cancelled in {where}; finished points keep their results.")
    if as_json:
        print_state("cancel", folder, training=training, job_id=job_id, num_cancelled=number)
