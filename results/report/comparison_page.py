"""The page of two sweeps beside each other, by the renderer of every report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

from conf.errors import UsageError
from conf.nearest import listed
from conf.types.sweep_spec import RATE, Objective
from conf.units import count_of
from results.analysis.comparison import (
    ComparedPoint,
    Side,
    SweepComparison,
    compare_sweeps,
    differences,
    joint_label,
    joint_labels,
)
from results.analysis.findings.objective import interval_text, sought_sentences, value_text, words_of
from results.render.charts import by_layout, dots, layer, quantity, tooltip
from results.render.page import markdown, page
from results.render.section import Block, Head, Heading, NamedTable, Paragraph, Plot, Section
from results.render.table import Cell, Table, number, text
from results.render.units import ABSENT, round_to_digits, seconds, share_of_peak, significant, tflops
from sweeps.points.objectives import cost
from sweeps.ranking.points import MeasuredPoint, best_measured, rivals_of_first, sought_points
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord
from train_core.trial.atomic import write_atomically

ROW_HEIGHT = 22
MOST_BARS = 60
DECADE = 10.0


def sides_of(sweeps: Sequence[tuple[Sweep, Sequence[TrialReading]]]) -> tuple[Side, Side]:
    """The two sweeps with names that tell them apart; raises UsageError where they are one and the same."""
    (first, before), (second, after) = sweeps
    paths = [sweep.folder.path.resolve() for sweep in (first, second)]
    if paths[0] == paths[1]:
        raise UsageError(f"{first.folder.path} was given twice", "Name two sweeps to compare.")
    lengths = range(1, max(len(path.parts) for path in paths) + 1)
    names = ([str(Path(*path.parts[-length:])) for path in paths] for length in lengths)
    one, other = next(pair for pair in names if pair[0] != pair[1])
    return Side(one, first, before), Side(other, second, after)


def write_comparison(before: Side, after: Side, out: Path | None) -> tuple[Path, Path]:
    """Write the page and its Markdown into `out`, or beside the second sweep's report, and return both paths.

    Raises:
        UsageError: a file cannot be written.
    """
    folder = out or after.sweep.folder.path
    stem = f"compared-with-{before.name.strip('/').replace('/', '-')}"
    of_page, of_markdown = folder / f"{stem}.html", folder / f"{stem}.md"
    head = Head(
        title=f"{before.name} and {after.name}",
        kicker="Trisweep comparison of two sweeps",
        question=f"How does {after.name} (B) compare with {before.name} (A)?",
        note="",
        origin=f"A was planned with git {before.sweep.record.git_sha}, B with {after.sweep.record.git_sha}.",
    )
    sections = comparison_sections(before, after)
    try:
        write_atomically(of_markdown, markdown(head, sections, ()))
        write_atomically(of_page, page(head, sections, ()))
    except OSError as error:
        remedy = "Name a folder of your own with --out FOLDER."
        raise UsageError(f"{error.filename or folder} cannot be written: {error.strerror}", remedy) from None
    return of_page, of_markdown


def comparison_sections(before: Side, after: Side) -> list[Section]:
    both, sought = compare_sweeps(before, after), _by_what_both_seek(before, after)
    title = "Points that both measured" if sought is None else "Their speed"
    points = Section("points", title, "measured", speed_finding(both), tuple(_speed_blocks(both)))
    first = [] if sought is None else [_sought_section(sought)]
    return [*first, points, _winners(before, after), _circumstances(before, after)]


def finding(before: Side, after: Side) -> str:
    """Return the result of the comparison by what both seek; by their speeds where each seeks something else."""
    records = before.sweep.record, after.sweep.record
    if (sought := _by_what_both_seek(before, after)) is not None:
        return sought_finding(sought)
    otherwise = f"{_seeks_otherwise(*records)} " if records[0].objective != records[1].objective else ""
    return f"{otherwise}{speed_finding(compare_sweeps(before, after))}"


def _by_what_both_seek(before: Side, after: Side) -> SweepComparison | None:
    """The comparison by what both seek; None where that is the rate, or something else each."""
    sought = before.sweep.record.objective
    is_other = sought == after.sweep.record.objective != RATE
    return compare_sweeps(before, after, sought) if is_other else None


def _nothing_compared(both: SweepComparison, by: str) -> str:
    reason = both.points[0].why_not if both.points else "they measured no point in common"
    return f"Nothing of the two sweeps can be compared{by}: {reason}."


def speed_finding(both: SweepComparison) -> str:
    points, mean = both.comparable, both.mean_ratio
    if mean is None:
        return _nothing_compared(both, "")
    if len(points) == 1:
        than = "larger" if points[0].is_clearly_other_speed else "no larger"
        return (
            f"B trains {significant(mean)} times as many tokens a second as A at the only point that both measured; the"
            f" difference is {than} than the spread of the timed steps."
        )
    faster = sum(point.ratio > 1 for point in points)
    clear = sum(point.is_clearly_other_speed for point in points)
    return (
        f"B trains {significant(mean)} times as many tokens a second as A in the geometric mean of {len(points)} points"
        f" that both measured; it is faster in {faster} of them, and in {clear} the difference is larger than the"
        " spread of the timed steps."
    )


def sought_finding(both: SweepComparison) -> str:
    """The result of the comparison in one sentence, by the first of what both seek."""
    pairs, words = both.comparable, words_of(both.objectives[0])
    if not pairs:
        return _nothing_compared(both, f" by {words}")
    counts = Counter(_change_word(pair, both.objectives[0]) for pair in pairs)
    found = listed([f"{word} in {counts[word]}" for word in ("better", "worse", "equal") if counts[word]], len(counts))
    clear = [pair.is_clear for pair in pairs]
    if any(each is not None for each in clear):
        sure = f"the 95 % intervals of both do not overlap in {sum(map(bool, clear))}"
    else:
        sure = "each ran once, so how much is chance is not known"
    counted = f"Of {count_of(len(pairs), 'point')} that both measured"
    return f"{counted}, B is by {words} {found}; {sure}."


def _change_word(point: ComparedPoint, objective: Objective) -> str:
    """How the second sweep compares with the first: better, worse or equal. A loss that is no number is the worst."""
    sides = (point.before, point.after)
    before, after = (cost(objective, side.values[0]) if side.is_number else inf for side in sides)
    return "equal" if before == after else "better" if after < before else "worse"


def _speed_blocks(both: SweepComparison) -> Iterator[Block]:
    points = both.comparable
    if points:
        yield Paragraph(
            "The ratio is B's tokens a second over A's. Next to it stands what it would be by the slowest and the"
            " fastest timed steps of both; where that holds 1, the difference is not clear."
        )
        yield _ratios(points)
        yield NamedTable("compared-points", Table.of([_speed_row(point) for point in points]))
    yield from _refused(both, "incomparable-points")
    for side, labels in (("A", both.only_before), ("B", both.only_after)):
        if labels:
            yield Paragraph(f"Only {side} measured: {', '.join(f'`{label}`' for label in labels)}.")


def _speed_row(point: ComparedPoint) -> dict[str, Cell]:
    (before, after), (low, high) = point.performances, point.ratio_bounds
    faster = "faster" if point.ratio > 1 else "slower"
    rate_before, rate_after = (each.model_flops_per_second_per_device for each in (before, after))
    return {
        "layout": text(point.label),
        "step s A": number(seconds(before.step_seconds), before.step_seconds),
        "step s B": number(seconds(after.step_seconds), after.step_seconds),
        "TFLOPS A": number(tflops(rate_before), rate_before),
        "TFLOPS B": number(tflops(rate_after), rate_after),
        "tokens/s B over A": number(significant(point.ratio), point.ratio),
        "by the steps": text(f"{significant(low)} to {significant(high)}"),
        "clearly": text(faster if point.is_clearly_other_speed else "no difference"),
    }


def _ratios(points: Sequence[ComparedPoint]) -> Plot:
    shown = points[:MOST_BARS]
    values = []
    for point in shown:
        ratio, low, high = map(round_to_digits, (point.ratio, *point.ratio_bounds))
        values.append({"layout": point.label, "ratio": ratio, "low": low, "high": high})
    title = "tokens a second, B over A"
    # Within a decade, an axis of logarithms has hardly any room for labels but at its upper end.
    ends = [1.0, *(bound for point in shown for bound in point.ratio_bounds)]
    kind = {"type": "log"} if max(ends) > DECADE * min(ends) else {"zero": False}
    scale = kind | {"nice": False, "padding": 12}
    x, y = quantity("ratio", title, scale=scale), by_layout(values)
    x_equal, x_low, x_high = x | {"field": "equal"}, x | {"field": "low"}, {"field": "high"}
    both_ends = tooltip("layout", "ratio", "low", "high")
    left_out = f" The first {MOST_BARS} of {len(points)}." if len(points) > MOST_BARS else ""
    return Plot(
        "compared-ratios",
        f"Points are ratios, bars their spread by the timed steps; right of the line B is faster.{left_out}",
        {
            "height": ROW_HEIGHT * len(shown),
            "layer": [
                layer({"type": "rule", "strokeDash": [4, 4], "color": "var(--soft)"}, [{"equal": 1}], x=x_equal),
                layer({"type": "rule", "strokeWidth": 2}, values, y=y, x=x_low, x2=x_high, tooltip=both_ends),
                layer(dots(80, color="var(--measured)"), values, y=y, x=x, tooltip=both_ends),
            ],
        },
    )


def _sought_section(both: SweepComparison) -> Section:
    words = " and ".join(map(words_of, both.objectives))
    return Section("sought", f"By {words}", "measured", sought_finding(both), tuple(_sought_blocks(both)))


def _sought_blocks(both: SweepComparison) -> Iterator[Block]:
    if both.comparable:
        yield NamedTable("sought-pairs", Table.of([_sought_row(both, pair) for pair in both.comparable]))
        first = words_of(both.objectives[0])
        note = f"95 %: the interval of the {first}; clearly: the intervals of both do not overlap."
        if any(pair.leaves_seeds_out for pair in both.comparable):
            note += " Of a point, the seeds count that both measured."
        yield Paragraph(note, is_note=True)
    yield from _refused(both, "incomparable-sought")


def _refused(both: SweepComparison, name: str) -> Iterator[Block]:
    refused = [point for point in both.points if point.why_not]
    if refused:
        yield Heading("Not comparable")
        rows = [{"point": text(point.label), "not comparable because": text(point.why_not)} for point in refused]
        yield NamedTable(name, Table.of(rows))


def _sought_row(both: SweepComparison, pair: ComparedPoint) -> dict[str, Cell]:
    objective, sides = both.objectives[0], {"A": pair.before, "B": pair.after}
    values = {
        f"{words_of(each)} {side}": number(value_text(each, point.values[place]), point.values[place])
        for place, each in enumerate(both.objectives)
        for side, point in sides.items()
    }
    return {
        "point": text(pair.label),
        **values,
        **{f"95 % {side}": text(interval_text(objective, point.interval)) for side, point in sides.items()},
        "B is": text(_change_word(pair, objective)),
        "clearly": text({None: ABSENT, True: "yes", False: "no"}[pair.is_clear]),
    }


def _winners(before: Side, after: Side) -> Section:
    """The best of each of two sweeps by its own objective."""
    sides, records = (before, after), (before.sweep.record, after.sweep.record)
    labels = joint_labels(before.results, after.results)
    found = [best_measured(side.sweep.record, side.results) for side in sides]
    headlines = [sought_sentences(side.sweep.record, side.results, "")[0] for side in sides]
    names = [
        joint_label(best, labels) if best else "none" if headline else "nothing was measured"
        for best, headline in zip(found, headlines, strict=True)
    ]
    rows = [
        {
            "": text(letter),
            "sweep": text(side.name),
            "seeks": text(" and ".join(map(words_of, record.objective))),
            "best": text(name),
            **_best_cells(best, shows_share=RATE in (before.sweep.record.objective, after.sweep.record.objective)),
            "may be as good": text(_num_as_good(side)),
        }
        for letter, side, record, name, best in zip("AB", sides, records, names, found, strict=True)
    ]
    lacking = [
        f"{letter} has no best point: {headline[0].lower()}{headline[1:]}"
        for letter, best, headline in zip("AB", found, headlines, strict=True)
        if headline and not best
    ]
    said = _winners_sentence(*records, names if all(found) else [], lacking)
    return Section("winners", "The best of each", "measured", said, (NamedTable("winners", Table.of(rows)),))


def _best_cells(best: MeasuredPoint | None, *, shows_share: bool) -> dict[str, Cell]:
    values = [value_text(*each) for each in zip(best.objectives, best.values, strict=True)] if best else [ABSENT]
    share = best.performance.model_flops_utilization if best and best.objectives == RATE else None
    return {"value": text(", ".join(values))} | ({"MFU %": number(share_of_peak(share), None)} if shows_share else {})


def _num_as_good(side: Side) -> int:
    """Count the points that may equal the best: those whose intervals overlap, or that reached the same value."""
    points = [point for point in sought_points(side.sweep.record, side.results) if not point.aside]
    return len(rivals_of_first(points))


def _winners_sentence(before: SweepRecord, after: SweepRecord, names: Sequence[str], lacking: Sequence[str]) -> str:
    """The sentence on both winners.

    Args:
        names: of both; empty where a sweep has none.
        lacking: why a sweep that measured something has none.
    """
    if before.objective != after.objective:
        return _seeks_otherwise(before, after)
    if lacking:
        return " ".join(lacking)
    if not names:
        return "One of the sweeps has measured nothing yet."
    one, other = names
    words = " and ".join(map(words_of, before.objective))
    if one == other:
        return f"The best by {words} is the same in both sweeps, `{one}`."
    return f"The best by {words} is `{one}` in A and `{other}` in B."


def _seeks_otherwise(before: SweepRecord, after: SweepRecord) -> str:
    """The sentence that two sweeps which seek different things have no common winner."""
    one, other = (" and ".join(map(words_of, record.objective)) for record in (before, after))
    return f"A seeks {one} and B {other}, so that neither their winners nor their values can be compared."


def _circumstances(before: Side, after: Side) -> Section:
    differing = differences(before.results, after.results)
    first, second = (" ".join(side.sweep.record.overrides) or "-" for side in (before, after))
    if first != second:
        differing.append(("overrides", first, second))
    rows = [{"what": text(name), "A": text(one), "B": text(other)} for name, one, other in differing]
    names = ", ".join(name for name, _, _ in differing)
    has_program = any(
        not each.planned.trainer.is_own for side in (before, after) for each in side.results if each.experiment
    )
    same = "Cluster, machine, software and code"
    if has_program:
        same = "Cluster, machine and the software and code of Trisweep"
    sentence = f"Between the two sweeps differ: {names}." if differing else f"{same} are the same."
    if has_program:
        sentence += " The code and the software of the program that they ran were not compared."
    blocks = (NamedTable("circumstances", Table.of(rows)),) if rows else ()
    return Section("circumstances", "What differs", None, sentence, blocks)
