"""What is printed of a plan: its points, what cannot exist and why, which point is best, and what to do next."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from cli.output.console import console, heading, print_unwrapped
from cli.output.next_command import same_command
from conf.compose.tree import part_at, with_values
from conf.errors import TrisweepError
from conf.grouped import grouped
from conf.overrides import for_a_shell, override_text
from conf.types.sweep_spec import is_of_time
from conf.units import count_of

if TYPE_CHECKING:
    from conf.compose.load import Composition
    from conf.plan.experiment import Experiment
    from sweeps.planner.choosing.choice import Candidate
    from sweeps.trial import SweepRecord, Trial

MOST_REASONS = 5
LEAST_GAIN = 0.005
"""A search that betters the best point by less has found nothing that is worth a word."""


def print_plan(record: SweepRecord, composition: Composition) -> None:
    """Print every point of a sweep as predicted, and below them what to make of it."""
    from results.analysis.findings.ranking import best_on_paper
    from results.tables.search_tables import unpriced_sentences
    from results.tables.sweep_tables import plan_table
    from sweeps.confidence import interval_of

    feasible = sum(trial.infeasible_reason is None for trial in record.plan)
    print_question(record, composition)
    if possible := [trial for trial in record.plan if trial.experiment]:
        console.print(plan_table(record, possible))
    _print_impossible(record)
    for trial in record.plan:
        if trial.chosen_because:
            console.print(f"  {record.plan_label_of(trial)}: {trial.chosen_because}")
    predicted = " Predicted, not measured." if record.shows_rates else ""
    if record.plan:
        console.print(f"{count_of(len(record.plan), 'point')} at full size, {feasible} fit.{predicted}")
    if record.shows_rates and (best := best_on_paper(record)) is not None:
        console.print(interval_of(best.planned, best.predicted.implementation, best.predicted).in_words)
    experiments = [trial.experiment for trial in possible if trial.experiment]
    sentences = (unpriced_sentences(experiment.data, experiment.precision) for experiment in experiments)
    for sentence in dict.fromkeys(chain.from_iterable(sentences)):  # once for all points that it is true of
        console.print(sentence)


def print_space(composition: Composition, record: SweepRecord) -> None:
    """Print the size of the space that a search chooses from; nothing where all points are listed."""
    from sweeps.points.plan import chooses_layouts, part_of
    from sweeps.search.axes.draws import space_size

    search, part = composition.settings.search, part_of(composition, record.spec, proxy=False)
    if not search.proposes:
        return
    if search.space == "plans" and chooses_layouts(composition.settings, part.points):
        console.print("Further points come from the search, out of all plans that fit on paper.")
        return
    points = "Further points come" if record.plan else "All points come"
    console.print(f"{points} from the search. {space_size(part)}")


def print_question(record: SweepRecord, composition: Composition) -> None:
    console.print(heading(record.name, f": {record.spec.question}"))
    sizes = [trial.experiment for trial in record.plan if trial.experiment]
    if not sizes:
        return
    size = sizes[0]
    cluster, numbers = size.cluster, [each.parallel.world_size for each in sizes]
    num_devices = f"{max(numbers):,}" if min(numbers) == max(numbers) else f"{min(numbers):,} to {max(numbers):,}"
    of = f"{size.place}." if size.mixed else f"{num_devices} x {cluster.device.name} of {cluster.name}."
    console.print(f"On paper: {size.model.name} in {size.precision.in_words} on {of}")
    _print_suiting_devices(record, composition, size)


def _print_suiting_devices(record: SweepRecord, composition: Composition, size: Experiment) -> None:
    """Print the reason for taking fewer devices than there are, where nobody said how many."""
    from sweeps.points.plan import on_suiting_devices

    suiting = on_suiting_devices(composition, record.spec, whole_grid=composition.settings.search.kind == "grid")
    if suiting is not composition:
        number, whole = part_at(suiting.tree, "parallel.world_size"), f"{size.cluster.num_devices:,}"
        console.print(
            f"{size.cluster.name} has {whole}; {number:,} is the largest number that layouts and batch divide on most"
            f" points. parallel.world_size=N takes another."
        )


def _print_impossible(record: SweepRecord) -> None:
    """The points that cannot exist, together where they share their cause, with the reason of a single point each."""
    impossible = [trial for trial in record.plan if trial.experiment is None]
    causes = grouped(impossible, lambda trial: re.sub(r"\d+", "#", trial.infeasible_reason or ""))
    in_order = sorted(causes.values(), key=len, reverse=True)
    for alike in in_order[:MOST_REASONS]:
        # Numbers in reasons grow with what is lacking, so the last in their order asks for most.
        reasons = {trial.infeasible_reason or "" for trial in alike}
        asks_most = max(reasons, key=lambda reason: list(map(int, re.findall(r"\d+", reason)))[::-1])
        such = "" if len(alike) == 1 else "; of these, one says"
        console.print(f"{count_of(len(alike), 'point')} cannot exist{such}: {asks_most}")
    if num_others := sum(map(len, in_order[MOST_REASONS:])):
        console.print(f"{count_of(num_others, 'more point')} cannot exist for other reasons (--json has them all).")


def print_best(composition: Composition, record: SweepRecord) -> None:
    """The best point once more with its overrides, what a search would find, and the commands that go on from here."""
    from results.analysis.findings.ranking import by_prediction

    ranked = [trial for trial in by_prediction(record.plan) if trial.estimate]
    best = next((trial for trial in ranked if trial.infeasible_reason is None), None)
    if unpredicted := [objective for objective in record.objective if not is_of_time(objective)]:
        sought = " and ".join("a loss" if each == "loss" else each.removeprefix("max:") for each in unpredicted)
        console.print(f"The sweep seeks {sought}, which is measured and never predicted.")
        # Layouts change no loss: who seeks nothing that plans differ in has no use for a search of them.
        if any(map(is_of_time, record.objective)):
            _print_search(composition, best)
        if best is not None:
            _print_measuring(composition)
        return
    if best is not None:
        _print_point(best, record.plan_label_of(best))
    elif ranked:
        label = record.plan_label_of(ranked[0])
        console.print(f"Nothing fits. The point that lacks least: {label}: {ranked[0].infeasible_reason}.")
    nearest = best or next(iter(ranked), None)
    if composition.settings.search.kind == "grid" and composition.settings.mixed is None:
        console.print(_what_a_search_finds(composition, nearest, fits=best is not None))
    _print_search(composition, nearest)
    if best is not None:
        _print_measuring(composition)


def _print_point(best: Trial, label: str) -> None:
    from results.render.units import gib, seconds, tflops

    devices, predicted = count_of(best.planned.parallel.world_size, "device"), best.predicted
    memory = f"{gib(predicted.peak_memory_bytes)} of {gib(predicted.memory_capacity_bytes)} GiB"
    rate = tflops(predicted.model_flops_per_second_per_device)
    rates = f"{rate} TFLOPS a device, {seconds(predicted.step_seconds)} s a step, {memory}"
    console.print(f"Best: {label} on {devices}: {rates}.")
    if best.point:
        print_unwrapped("  " + " ".join(for_a_shell(key, value) for key, value in best.point.items()))


def _what_a_search_finds(composition: Composition, trial: Trial | None, *, fits: bool) -> str:
    """One line on the best of all plans for this point's batch and number of devices, or for those of the sweep."""
    from results.render.units import tflops
    from results.tables.search_rows import layout

    try:
        best = _best_of_a_search(composition, trial)
    except TrisweepError as reason:
        return f"--search finds nothing either: {reason}"
    if best is None:
        return "--search finds no plan that fits either."
    rate, predicted = best.model_flops_per_second_per_device, trial.estimate if trial else None
    gain = rate / predicted.model_flops_per_second_per_device - 1 if predicted and fits else None
    if gain is not None and gain <= LEAST_GAIN:
        return "--search, which goes through every plan, finds none that is faster."
    than = f" on {count_of(best.space.world_size, 'device')}" if gain is None else f", {gain:.0%} faster"
    return f"--search finds {layout(best)}: {tflops(rate)} TFLOPS a device{than}."


def _best_of_a_search(composition: Composition, trial: Trial | None) -> Candidate | None:
    from sweeps.planner.choosing.choice import best_of
    from sweeps.planner.request import search_request
    from sweeps.points.plan import fixed_by

    if trial is None:
        return best_of(search_request(composition).spaces)[0]
    like = replace(composition, tree=with_values(composition.tree, fixed_by(trial, composition)))
    return best_of(search_request(like, devices=str(trial.planned.parallel.world_size)).spaces)[0]


def _print_search(composition: Composition, trial: Trial | None) -> None:
    """Print the command that searches for the batch and the devices of a point, and of others as the sweep has them."""
    from sweeps.points.plan import fixed_by

    if composition.settings.mixed is not None:  # whose blocks no search varies
        return
    overrides = composition.overrides
    fixed = fixed_by(trial, composition) if trial else {}
    words = [*(override_text(key, value) for key, value in fixed.items()), "--search", "--explain", "best"]
    console.print("Every plan, and where the best one's step goes:")
    print_unwrapped(f"  {same_command('plan', overrides.stated_value('sweep'), overrides, *words)}")


def _print_measuring(composition: Composition) -> None:
    overrides = composition.overrides
    sweep, is_stated = overrides.stated_value("sweep"), overrides.stated_value("cluster") is not None
    # Where there is Slurm, no sweep is measured without a cluster, also where the sweep's file names one.
    if not is_stated and shutil.which("sbatch") is None and not _needs_cluster(composition):
        console.print("Measure, on this machine or with cluster=NAME through Slurm:")
        print_unwrapped(f"  {same_command('sweep', sweep, overrides)}")
    else:
        cluster = [] if is_stated else [f"cluster={composition.choices['cluster']}"]
        console.print("The jobs that would measure these points:")
        print_unwrapped(f"  {same_command('sweep', sweep, overrides, *cluster, '--dry-run')}")


def _needs_cluster(composition: Composition) -> bool:
    """True of a sweep that this machine does not measure unasked: it is one for Slurm, or for a replay on paper."""
    from launcher.where import cluster_elsewhere

    sweep = composition.settings.sweep
    is_replayed = sweep is not None and sweep.replay is not None and sweep.proxy is None
    return is_replayed or cluster_elsewhere(composition) is not None
