"""The circumstances of measurements: where and how they were made, and how they compare with the baseline."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from conf.units import TERA, count_of
from costs.counts.flops import DOCUMENT_FLOPS_FORMULA, FLOPS_FORMULA
from results.analysis.scaling import Scaling
from results.render.units import significant
from sweeps.folder.journal import History
from sweeps.ranking.intervals import NOISY_RATIO, machine_noise
from sweeps.reading import TrialReading
from sweeps.trial import SweepFolder, SweepRecord
from train_core.trial.measurement import NOT_KNOWN, Performance

Item = TypeVar("Item")
PEAK_SOURCES = {"measured": "a matrix product, measured in the same run"}
CONVENTIONS = {
    FLOPS_FORMULA: f"matrix products only, attention's scores over the full square ({FLOPS_FORMULA})",
    DOCUMENT_FLOPS_FORMULA: (
        f"matrix products only, attention's scores over the full square of each document ({DOCUMENT_FLOPS_FORMULA})"
    ),
}


def _subject(record: SweepRecord) -> str:
    model = next((trial.experiment.model.name for trial in record.trials if trial.experiment), "a model")
    if record.mode == "cluster":
        return f"the full-size model {model}" if record.spec.proxy else f"the model {model}"
    full = next((trial.experiment.model.name for trial in record.plan if trial.experiment), "the full-size model")
    return f"the proxy {model}, a small stand-in for {full}"


def facts(record: SweepRecord, results: Sequence[TrialReading]) -> tuple[tuple[str, str], ...]:
    """Name and text of each fact. Where trials differ in it, all values are named."""
    environments = [r.measurement.environment for r in results if r.measurement and r.measurement.environment]
    performances = [result.performance for result in results if result.performance]
    programs = [r.experiment.trainer for r in results if r.experiment and not r.experiment.trainer.is_own]
    recorded = [environment for environment in environments if environment.torch_version != NOT_KNOWN]
    printed = [p.tflops_as_printed for p in performances if p.tflops_as_printed is not None]
    # In UTC, so that a report does not depend on where it is written.
    days = sorted(
        {
            time.strftime("%Y-%m-%d", time.gmtime(result.measurement.ended))
            for result in results
            if result.measurement and result.performance
        }
    )
    known_facts = [
        ("subject", _subject(record)),
        ("machine", _distinct(environments, lambda e: f"{e.hostname}: {e.device}, {count_of(e.num_cores, 'core')}")),
        ("backend", _distinct(environments, lambda e: e.backend)),
        ("trainer", _distinct(programs, lambda trainer: f"{trainer.name}, read from its log; FLOPs by our formula")),
        ("software", _distinct(recorded, lambda e: f"torch {e.torch_version}, Python {e.python_version}")),
        ("measured on", f"{days[0]} to {days[-1]}" if len(days) > 1 else "".join(days)),
        ("timed steps", _distinct(performances, lambda p: f"{p.num_timed_steps} after warm-up")),
        ("model FLOPs", _distinct(performances, lambda p: CONVENTIONS.get(p.flops_formula, p.flops_formula))),
        ("peak", _peak(performances)),
        # No other figure here is compared with this one.
        ("as printed", f"{_span(printed)} TFLOPS per device, by the program's own formula" if printed else ""),
    ]
    return tuple((name, value) for name, value in known_facts if value)


def _peak(performances: Sequence[Performance]) -> str:
    """The peak that utilizations refer to; a range where every trial measured its own."""
    if not performances:
        return ""
    shown = _span([performance.peak_flops_per_second / TERA for performance in performances])
    sources = _distinct(performances, lambda p: PEAK_SOURCES.get(p.peak_source, p.peak_source))
    return f"{shown} TFLOPS per device ({sources})"


def _span(figures: Sequence[float]) -> str:
    low, high = (significant(figure, 4) for figure in (min(figures), max(figures)))
    return low if low == high else f"{low} to {high}"


def noise_of(results: Sequence[TrialReading]) -> float | None:
    """Return the factor by which the machine's peak varied, if it is more than a quiet machine's; else None."""
    noise = machine_noise(result.performance for result in results)
    return noise if noise is not None and noise > NOISY_RATIO else None


def noise_notes(results: Sequence[TrialReading]) -> list[str]:
    """A warning if the peak varied: it is the same matrix product every time, so something else used the machine."""
    noise = noise_of(results)
    if noise is None:
        return []
    return [
        f"The peak measured in each run varied by a factor of {significant(noise, 2)}: other work shared this machine,"
        " and differences between layouts that are smaller than that mean little. Each MFU refers to the peak of its"
        " own run, so that MFUs of different runs are not comparable here; one above 100 % is left out."
    ]


def _distinct(items: Iterable[Item], shown: Callable[[Item], str]) -> str:
    return "; ".join(dict.fromkeys(shown(item) for item in items))


def incomparable(best_first: Sequence[TrialReading], relations: dict[str, Scaling]) -> tuple[str, ...]:
    """One line for each reason, with how many measured trials it concerns."""
    reasons = Counter(
        relations[result.trial.trial_id].note for result in best_first if relations[result.trial.trial_id].kind is None
    )
    return tuple(f"{count_of(number_of, 'measured trial')}: {reason}" for reason, number_of in reasons.most_common())


def notes(record: SweepRecord, results: Sequence[TrialReading], folder: SweepFolder) -> tuple[str, ...]:
    """Sentences about the trials that their rows have no room for."""
    sentences = []
    if any(result.trial.repeat for result in results) and (why := History.kept_in(folder).finished):
        sentences.append(f"Leaders and baseline were measured again in turn. The sweep ended because {why}.")
    left_out = Counter(result.trial.role == "asked" for result in results if result.outcome is None)
    if beyond := left_out[True]:
        sentences.append(
            f"{count_of(beyond, 'point', 'that fits was', 'that fit were')} left out,"
            f" beyond `sweep.max_trials={record.spec.max_trials}`."
        )
    if earlier := left_out[False]:
        words = "that only an earlier command asked for"
        sentences.append(f"{count_of(earlier, 'trial', f'{words} was', f'{words} were')} left out, and not measured.")
    for result in results:
        sentences += [f"A damaged file of {result.label} was set aside: {path.name}." for path in result.damaged_files]
    return tuple(sentences)
