"""One step of a sweep: see how its trials stand, write down what is new, end what is not worth going on, start more.

Whenever it is killed, the next one goes on: new points and endings are in the journal before anything is done about
them, a start is in its folder's `submission.json` before `sbatch` is called, and the journal follows. A job that was
submitted while its number was lost is found by its name (`launcher.slurm.job_status`); `launcher.slurm.reconcile` says
which attempts have ended unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from conf.credentials import overrides_for_records
from conf.folders import own_folders
from conf.units import count_of
from launcher.control.attempts import (
    has_news_of_an_end,
    is_charged_still,
    is_in_flight,
    is_past_deadline,
    is_to_run,
    news,
    submission_time_of,
    submissions,
    why_stopped,
)
from launcher.control.rules import PAUSED, Admission, Rules, SweepStep
from launcher.control.workplace import Workplace
from sweeps.folder.journal import Asked, Begun, Ended, Entry, Finished, History, Journal, Pruned
from sweeps.ranking.points import best_first
from sweeps.reading import CANCELLED_BY_NAME, TrialReading
from sweeps.search.searcher import Answer, num_taken
from sweeps.sweep import Sweep, first_runs, points_of, points_of_configuration, with_figures
from sweeps.trial import Trial, named_apart, repeat_id
from train_core.trial.atomic import write_atomically
from train_core.trial.folder import Attempt
from train_core.trial.measurement import Outcome

CANCELLED = "cancelled by a person"
MOST_AT_ONCE = 1000
"""A search is asked for no more points at once, even where neither the site nor the configuration sets a limit."""


class Conductor:
    """Carries one sweep out, step by step. Whoever has it holds the lock of the sweep's folder; a dry run holds none.

    Attributes:
        is_under_way: a step since the command has succeeded, of this or another process: the next may fail for a while.
    """

    def __init__(self, sweep: Sweep, workplace: Workplace, rules: Rules) -> None:
        self.sweep = sweep
        self._planned = sweep.record
        self.workplace = workplace
        self.rules = rules
        self.journal = Journal(sweep.folder.journal)
        self.history = History()
        self._news: list[Entry] = []
        self._num_entries = 0
        self._waits_at: tuple[int, Answer] | None = None
        self._still_charged: set[str] = set()  # ended, and their jobs not yet
        self._followed: set[tuple[str, str]] = set()  # trials, and the stages that were asked for after them
        self._follow_journal()
        self.is_under_way = self.history.has_submitted

    def begin(self, overrides: Sequence[str], *, on_slurm: bool) -> None:
        """A person gave the command: what was cancelled until now is tried again, and failures count from now on."""
        # Its record gives what an earlier command asked for a role of its own, which the journal does not know.
        self.sweep = self.sweep._replace(record=self._planned)
        self._read_trials()
        # After the trials were read, so that ends which nobody had seen yet count to the time before this command.
        folders = tuple(map(str, own_folders()))
        self._write(Begun(overrides=overrides_for_records(overrides), on_slurm=on_slurm, config_dirs=folders))
        self.is_under_way = False

    def advance(self) -> SweepStep:
        """Take the sweep a step further: read, end, start, in this order.

        1. What other commands wrote into the journal, then how all trials stand; what is new is written down.
        2. Where the sweep is cancelled, all that is left ends. Else what the search prunes, or people gave up, ends.
        3. Stages whose turn has come are added. Where the sweep stops (failures, deadline), what it takes along ends.
        4. Trials that wait start, as far as slots and budget go; the search is asked once none is left waiting.

        Raises:
            UsageError: the workplace refuses what it is given. What was started before goes on.
            ConfigError: the budget cannot be held.
        """
        self._news = []
        self._follow_journal()
        readings = self._read_trials()
        # A person's order comes before all that the rules would do.
        if self.history.is_cancelled:
            readings = self._end_all(readings, [each for each in readings if is_in_flight(each)], CANCELLED)
            return self._summary(readings, finished="it was cancelled")
        # Written down before it is done, so that a later step ends what a killed one had decided to end.
        self._write_down_pruned(readings)
        readings = self._with_stages(self._end_given_up_trials(readings))
        # What Slurm still charges for counts as in flight, since the journal does not have its cost yet.
        in_flight = [each for each in readings if is_in_flight(each) or each.name in self._still_charged]
        waiting = [each for each in readings if self._is_to_run(each)]
        stopped = why_stopped(readings, self.rules, self.history)
        if stopped:
            # All that is in flight ends at the deadline, else what waits.
            late = is_past_deadline(self.rules, self.history)
            ending = {each.name for each in in_flight if late or each.outcome is Outcome.PENDING}
            readings = self._end_all(readings, [each for each in in_flight if each.name in ending], stopped)
            in_flight = [each for each in in_flight if each.name not in ending]
        if stopped or self.history.is_paused:
            return self._summary(
                readings, in_flight, waiting, held=stopped or PAUSED, finished="" if in_flight else stopped
            )
        return self._go_on(readings, in_flight, waiting)

    def _go_on(
        self, readings: Sequence[TrialReading], in_flight: Sequence[TrialReading], waiting: Sequence[TrialReading]
    ) -> SweepStep:
        """Start what is to run, and ask for more where slots are left."""
        admission = Admission(self.rules.budget, self.history, self.rules.max_concurrent_trials, in_flight)
        admitted = [each for each in waiting if admission.admits(each.trial)]
        started, answer = self._start(admitted), Answer()
        not_started = [each for each in waiting if each.name not in started]
        # The search is asked only once everything known has started: it learns from what has ended meanwhile.
        if not not_started:
            answer = self._ask_search(readings, admission)
            admitted = self._add_proposed_trials(answer, admission)
            started |= self._start(admitted)
            not_started = [each for each in admitted if each.name not in started]
            # Nothing has changed, so that the next step would get the same proposals, and so on for ever.
            if answer.proposals and not admitted and not self._news:
                answer = Answer(finished="the search proposes only points that were tried already")
        # What is admitted may find no room yet: a process that has measured may still hold its cores.
        is_over = not (in_flight or started or admitted or (not_started and not admission.refusal))
        if is_over and not admission.refusal and (of_best := self._add_stages_of_best(readings)):
            return self._summary(readings, waiting=of_best)
        finished = (admission.refusal or answer.finished) if is_over else ""
        return self._summary(readings, in_flight, not_started, started, admission.refusal, finished)

    def _read_trials(self) -> list[TrialReading]:
        """Read how all trials stand, and write down what is new of them."""
        found, budget = self.workplace.read_trials(self.sweep), self.rules.budget
        readings = with_figures(found, self.rules.stages.specs)
        ended = [each for each in readings if each.is_in_slurm and has_news_of_an_end(each, self.history)]
        charged = self.workplace.charged_times(ended)
        if not budget.is_limited:
            # A budget that is given later counts what the journal says; nothing waits for a slow accounting.
            charged = {name: each for name, each in charged.items() if each.is_over}
        self._still_charged = {each.name for each in ended if is_charged_still(each, charged.get(each.name))}
        self._write(*(entry for each in readings for entry in news(each, self.history, budget, charged.get(each.name))))
        return readings

    def _with_stages(self, readings: Sequence[TrialReading]) -> list[TrialReading]:
        """The readings, with those of the stages whose turn has come since the last step."""
        followed = [each.trial for each in readings if self._is_followed(each)] if self.rules.stages.specs else []
        return self._add_stages(
            readings, [(each, stage) for each in followed for stage in self.rules.stages.after(each)]
        )

    def _add_stages_of_best(self, readings: Sequence[TrialReading]) -> list[TrialReading]:
        """Add the stages that the best trials alone have, once nothing else is left; the next step starts them.

        The best are those of the report's table, whichever command asked for them.
        """
        stages, record = self.rules.stages, self.sweep.record
        if not any(spec.best for spec in stages.specs.values()):
            return []
        found = best_first(record, [each for each in points_of(readings) if self.rules.wants(each.trial)])
        due = [
            (each.trial, name)
            for place, each in enumerate(found, start=1)
            if each.outcome is Outcome.COMPLETED and not each.trial.repeat
            for name in stages.after(each.trial, best=True)
            if place <= (stages.specs[name].best or 0)
        ]
        # Only what is new counts, or a sweep with stages of long ago, or trials of an earlier command, would never end.
        known = {trial.trial_id for trial in record.trials if trial.role == "asked"}
        added = (each for each in self._add_stages(readings, due) if each.trial.role == "asked")
        return [each for each in added if each.name not in known]

    def _is_followed(self, reading: TrialReading) -> bool:
        """True if what comes after the trial may start: it completed, and is what the command asked for."""
        trial = reading.trial
        is_wanted = trial.role == "asked" and (bool(trial.stage) or self.rules.wants(trial))
        return reading.outcome is Outcome.COMPLETED and is_wanted and not trial.repeat

    def _add_stages(self, readings: Sequence[TrialReading], due: Sequence[tuple[Trial, str]]) -> list[TrialReading]:
        """Add the trials of these stages to the sweep, and return the readings with theirs."""
        trials = {trial.identity: trial for trial in self.sweep.record.trials}
        asked = dict[str, Trial]()
        for before, stage in due:
            if (before.trial_id, stage) in self._followed:
                continue
            self._followed.add((before.trial_id, stage))
            trial = self._rename_trial(self.rules.stages.draft(stage, before, self.sweep.folder), trials)
            known = trials.get(trial.identity)
            if known is None or known.role != "asked":
                asked |= {each.trial_id: each for each in _set_aside(trials.values(), trial)} | {trial.trial_id: trial}
                trials[trial.identity] = trial
        if not asked:
            return list(readings)
        self._write(*(Asked(trial=trial) for trial in asked.values()))
        joined = [*(each for each in readings if each.name not in asked), *map(self.sweep.read_trial, asked.values())]
        # A stage that takes the place of another has no figures yet, and those of the other count no longer.
        return with_figures(joined, self.rules.stages.specs)

    def _write_down_pruned(self, readings: Sequence[TrialReading]) -> None:
        running = [each for each in readings if each.outcome is Outcome.RUNNING and is_in_flight(each)]
        if not running:
            return
        submitted = {each.name: submission_time_of(each) for each in running}
        pruned = [each for each in self.rules.search.prune(first_runs(readings)) if each.trial_id in submitted]
        self._write(
            *(
                Pruned(trial_id=each.trial_id, submitted=submitted[each.trial_id], because=each.because)
                for each in pruned
            )
        )

    def _end_given_up_trials(self, readings: Sequence[TrialReading]) -> list[TrialReading]:
        """End what was given up or cancelled one by one, also where an earlier step was killed on the way."""
        ended: set[str] = set()
        for each in readings:
            course = self.history.course_of(each.name)
            why = course.pruned.get(submission_time_of(each), "")
            # A trial whose job was ended for this reason looks cancelled until its end is written as pruned.
            if why and (is_in_flight(each) or each.outcome is Outcome.CANCELLED):
                self.workplace.end([each], Outcome.PRUNED, why)
                ended.add(each.name)
            # Nothing has told of an end of one that is pending without a measurement, and none of its jobs will.
            elif course.is_cancelled and (
                is_in_flight(each) or (each.measurement is None and each.outcome is Outcome.PENDING)
            ):
                self.workplace.end([each], Outcome.CANCELLED, CANCELLED_BY_NAME)
                ended.add(each.name)
        return [self.sweep.read_trial(each.trial) if each.name in ended else each for each in readings]

    def _is_to_run(self, reading: TrialReading) -> bool:
        return reading.name not in self._still_charged and is_to_run(reading, self.history, self.rules)

    def _ask_search(self, readings: Sequence[TrialReading], admission: Admission) -> Answer:
        """Ask the search for points for the slots that are free; nothing while there is none."""
        count = min(each for each in (admission.slots, self.workplace.room(), MOST_AT_ONCE) if each is not None)
        if count <= 0:
            return Answer()
        # A search that had nothing to propose is asked again only when something has happened.
        if self._waits_at is not None and self._waits_at[0] == self._num_entries:
            return self._waits_at[1]
        answer = self._ask_for_points(readings, count)
        if answer.finished and self.rules.rounds is not None:
            wanted = [each for each in points_of_configuration(readings) if self.rules.wants(each.trial)]
            answer = self.rules.rounds.ask(wanted, count, answer.finished)
        self._waits_at = None if answer.proposals else (self._num_entries, answer)
        return answer

    def _ask_for_points(self, readings: Sequence[TrialReading], count: int) -> Answer:
        """Ask the search for so many points, as far as the sweep may still have more."""
        first = first_runs(readings)
        if (most := self.rules.max_trials) is not None:
            # Repeats do not count, as the limit is one of points.
            count = min(count, most - num_taken(first))
            if count <= 0:
                return Answer(finished=f"sweep.max_trials = {count_of(most, 'point', 'was', 'were')} taken")
        return self.rules.search.ask(first, count)

    def _add_proposed_trials(self, answer: Answer, admission: Admission) -> list[TrialReading]:
        """Add the proposals that the budget admits to the sweep, and return those trials that can run."""
        trials = {trial.identity: trial for trial in self.sweep.record.trials}
        taken = list[Trial]()
        for proposal in answer.proposals:
            assert self.rules.draft is not None
            # Under its own name first, by which an earlier command may have tried the same point.
            trial = self._rename_trial(self.rules.draft(proposal), trials)
            known = trials.get(trial.identity)
            if known and (known.role == "asked" or self.sweep.read_trial(known).outcome is not None):
                continue
            # Those behind it wait too, or a cheap proposal would overtake the better ones that the search put first.
            if trial.selected and not admission.admits(trial):
                break
            trials[trial.identity] = trial
            taken.append(trial)
        self._write(*(Asked(trial=trial) for trial in taken))
        readings = [self.sweep.read_trial(trial) for trial in taken]
        return [each for each in readings if self._is_to_run(each)]

    def _rename_trial(self, trial: Trial, trials: Mapping[tuple[str, int], Trial]) -> Trial:
        """The trial under a name of its own; a further measurement is named after the first, and counts like it."""
        said: dict[str, object] = {"asked_by": " ".join(self.sweep.record.overrides)}
        if before := trials.get(trial.identity):  # an earlier command asked for it, and never measured it
            return trial.model_copy(update=said | {"trial_id": before.trial_id, "is_baseline": before.is_baseline})
        if trial.repeat and (first := trials.get((trial.mark, 0))):
            said |= {"trial_id": repeat_id(first.trial_id, trial.repeat), "is_baseline": first.is_baseline}
            return trial.model_copy(update=said)
        (named,) = named_apart([trial], (other.trial_id for other in trials.values()))
        return named.model_copy(update=said)

    def _start(self, readings: Sequence[TrialReading]) -> set[str]:
        """Start what there is room for, and return the ids of what was started."""
        if not readings:
            return set()
        self._keep_counting(readings)
        started = set(self.workplace.start(self.sweep, readings))
        # Read anew, because their submissions were written only just now.
        again = [self.sweep.read_trial(each.trial) for each in readings if each.name in started]
        self._write(*(entry for each in again for entry in submissions(each, self.history)))
        self._write(*self._refusals([each for each in readings if each.name not in started]))
        return started

    def _keep_counting(self, readings: Sequence[TrialReading]) -> None:
        """Where a trial's folder was removed, tell the new one its last attempt, whose job may still write there."""
        for each in readings:
            last = self.history.course_of(each.name).last_attempt
            if last >= each.next_attempt and not each.folder.path.exists():
                write_atomically(each.folder.claim, f"{Attempt(last, restarts=0)}\n", durable=False)

    def _refusals(self, not_started: Sequence[TrialReading]) -> Iterator[Ended]:
        """The ends that spend a person's orders, or command, for trials that the place refused: no attempt would."""
        for each in not_started:
            now = self.sweep.read_trial(each.trial).measurement
            # An earlier refusal says nothing about a trial that only waits for room now.
            if now is not None and now.outcome is Outcome.INFEASIBLE and now != each.measurement:
                submitted = submission_time_of(each)
                yield Ended(trial_id=each.name, submitted=submitted, outcome=now.outcome, device_seconds=0.0)

    def _end_all(
        self, readings: Sequence[TrialReading], ending: Sequence[TrialReading], cause: str
    ) -> list[TrialReading]:
        """Cancel some trials of a sweep that stops, and return how all stand then: no later step would say it."""
        if not ending:
            return list(readings)
        self.workplace.end(ending, Outcome.CANCELLED, cause)
        return self._read_trials()

    def _summary(
        self,
        readings: Sequence[TrialReading],
        in_flight: Sequence[TrialReading] = (),
        waiting: Sequence[TrialReading] = (),
        started: Collection[str] = (),
        held: str = "",
        finished: str = "",
    ) -> SweepStep:
        """The step as others see it; the end of the sweep is written down, and whoever wants to know is told."""
        if finished and finished != self.history.finished:
            self._write(Finished(because=finished))
        step = SweepStep(
            readings=tuple(readings),
            started=tuple(started),
            news=tuple(self._news),
            num_in_flight=len(in_flight) + len(started),
            waiting=tuple(each.name for each in waiting),
            held=held,
            finished=finished,
        )
        # Told of the trials as they stood before anything was started: of a failure, too, that is tried again at once.
        self.rules.tell(self.sweep, step)
        self.is_under_way = True
        return replace(step, readings=tuple(self._with_further_attempts(readings, waiting, started)))

    def _with_further_attempts(
        self, readings: Sequence[TrialReading], waiting: Sequence[TrialReading], started: Collection[str]
    ) -> Iterator[TrialReading]:
        """The readings, of which those that had ended stand as they do now that they were started, or are to be."""
        names = {each.name for each in waiting}
        for each in readings:
            if each.measurement is not None and each.name in started:
                yield self.sweep.read_trial(each.trial)
            elif each.measurement is not None and each.name in names:
                yield replace(each, waits_again=True)
            else:
                yield each

    def _write(self, *entries: Entry) -> None:
        self.journal.append(*entries)
        self._news += entries
        self._follow_journal()

    def _follow_journal(self) -> None:
        new = self.journal.read_new()
        self.history.add(new)
        self._num_entries += len(new)
        self.sweep = self.sweep._replace(is_cancelled=self.history.is_cancelled)
        # No other entry changes which trials the sweep has, and a record takes long to complete where there are many.
        if any(isinstance(entry, Asked) for entry in new):
            self.sweep = self.sweep._replace(record=self.history.complete_record(self._planned))


def _set_aside(trials: Iterable[Trial], new: Trial) -> list[Trial]:
    """Trials of the same stage after the same trial, whose configuration has changed: their results stay to be seen."""
    same = [each for each in trials if (each.after, each.stage) == (new.after, new.stage)]
    return [each.model_copy(update={"role": "kept", "selected": False}) for each in same]
