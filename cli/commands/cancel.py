"""`trisweep cancel`: end the jobs of a sweep, or one training that was begun from it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.output.console import console, print_unwrapped, shown_path
from cli.output.next_command import command_by_name, next_command
from cli.started_sweep import print_state, refuse_trials_among, started_sweep
from conf.overrides import Overrides
from conf.units import count_of

Training = Annotated[str | None, typer.Option(help="End this training from the sweep; status names them.")]
TrialIds = Annotated[list[str] | None, typer.Option("--trial", help="End this one alone; enough of its id.")]


def cancel(
    name: SweepName,
    overrides: OverrideTexts = None,
    training: Training = None,
    trial: TrialIds = None,
    as_json: AsJson = False,
) -> None:
    """End what is queued or running of the sweep, or a training from it. Finished points keep their results."""
    from launcher.cancel import cancel_sweep, cancel_training, cancel_trials
    from launcher.control.orders import give_up_retries
    from launcher.trainings import PLACE_GROUPS, training_of
    from sweeps.log_choice import reading_called
    from sweeps.sweep import Sweep
    from train_core.measurement import Outcome

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
