"""The page of two sweeps beside each other, by the renderer of every report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from conf.errors import UsageError
from results.comparison import (
    ComparedPoint,
    Side,
    SweepComparison,
    compare_sought,
    compare_sweeps,
    differences,
    joint_labels,
)
from results.report.charts import by_layout, dots, layer, quantity, tooltip
from results.report.comparison_sought import seeks_otherwise, sought_finding, sought_section, sought_winners
from results.report.page import markdown, page
from results.report.section import Block, Head, Heading, NamedTable, Paragraph, Plot, Section
from results.table import Cell, Table, number, text
from results.units import round_to_digits, seconds, share_of_peak, significant, tflops
from sweeps.labels import Labels
from sweeps.ranking.points import ranking_of
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.whole_files import write_atomically

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
    both = compare_sweeps(before.results, after.results)
    sought = compare_sought(before, after)
    if before.sweep.record.seeks_rate and after.sweep.record.seeks_rate:
        winners = _winners(before, after)
    else:
        winners = sought_winners(before, after)
    title = "Points that both measured" if sought is None else "Their speed"
    points = Section("points", title, "measured", speed_finding(both), tuple(_point_blocks(both)))
    first = [] if sought is None else [sought_section(sought)]
    return [*first, points, winners, _circumstances(before, after)]


def finding(before: Side, after: Side) -> str:
    """Return the result of the comparison by what both seek; by their speeds where each seeks something else."""
    records = before.sweep.record, after.sweep.record
    if (sought := compare_sought(before, after)) is not None:
        return sought_finding(sought)
    otherwise = f"{seeks_otherwise(*records)} " if records[0].objective != records[1].objective else ""
    return f"{otherwise}{speed_finding(compare_sweeps(before.results, after.results))}"


def speed_finding(both: SweepComparison) -> str:
    points, mean = both.comparable, both.mean_ratio
    if mean is None:
        reason = both.points[0].why_not if both.points else "they measured no layout in common"
        return f"Nothing of the two sweeps can be compared: {reason}."
    if len(points) == 1:
        than = "larger" if points[0].is_clear else "no larger"
        return (
            f"B trains {significant(mean)} times as many tokens a second as A at the only point that both measured; the"
            f" difference is {than} than the spread of the timed steps."
        )
    faster = sum(point.ratio > 1 for point in points)
    clear = sum(point.is_clear for point in points)
    return (
        f"B trains {significant(mean)} times as many tokens a second as A in the geometric mean of {len(points)} points"
        f" that both measured; it is faster in {faster} of them, and in {clear} the difference is larger than the"
        " spread of the timed steps."
    )


def _point_blocks(both: SweepComparison) -> Iterator[Block]:
    points = both.comparable
    if points:
        yield Paragraph(
            "The ratio is B's tokens a second over A's. Beside it stands what it would be by the slowest and the"
            " fastest timed steps of both; where that holds 1, the difference is not clear."
        )
        yield _ratios(points)
        yield NamedTable("compared-points", Table.of([_point_row(point) for point in points]))
    refused = [point for point in both.points if point.why_not]
    if refused:
        yield Heading("Not comparable")
        rows = [{"layout": text(point.label), "not comparable because": text(point.why_not)} for point in refused]
        yield NamedTable("incomparable-points", Table.of(rows))
    for side, labels in (("A", both.only_before), ("B", both.only_after)):
        if labels:
            yield Paragraph(f"Only {side} measured: {', '.join(f'`{label}`' for label in labels)}.")


def _point_row(point: ComparedPoint) -> dict[str, Cell]:
    (before, after), (low, high) = point.performances, point.ratio_bounds
    rate_before, rate_after = (each.model_flops_per_second_per_device for each in (before, after))
    return {
        "layout": text(point.label),
        "step s A": number(seconds(before.step_seconds), before.step_seconds),
        "step s B": number(seconds(after.step_seconds), after.step_seconds),
        "TFLOPS A": number(tflops(rate_before), rate_before),
        "TFLOPS B": number(tflops(rate_after), rate_after),
        "tokens/s B over A": number(significant(point.ratio), point.ratio),
        "by the steps": text(f"{significant(low)} to {significant(high)}"),
        "clearly": text(("faster" if point.ratio > 1 else "slower") if point.is_clear else "no difference"),
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


def _winners(before: Side, after: Side) -> Section:
    best = [next(iter(ranking_of(side.results)), None) for side in (before, after)]
    labels = joint_labels(before.results, after.results)
    rows = []
    for letter, side, reading in zip("AB", (before, after), best, strict=True):
        performance = reading.performance if reading else None
        name = labels.of(reading.trial.point, reading.experiment) if reading else "nothing was measured"
        row = {"": text(letter), "sweep": text(side.name), "fastest per device": text(name)}
        rate = performance.model_flops_per_second_per_device if performance else None
        share = performance.model_flops_utilization if performance else None
        rows.append(row | {"model TFLOPS": number(tflops(rate), None), "MFU %": number(share_of_peak(share), None)})
    winners = (NamedTable("winners", Table.of(rows)),)
    return Section("winners", "The winner of each", "measured", _winners_sentence(best, labels), winners)


def _winners_sentence(best: Sequence[TrialReading | None], labels: Labels) -> str:
    first, second = best
    if first is None or second is None:
        return "One of the sweeps has measured nothing yet."
    one, other = (labels.of(each.trial.point, each.experiment) for each in (first, second))
    if one == other:
        return f"Both sweeps have the same winner, `{one}`."
    return f"The sweeps have different winners: `{one}` in A, `{other}` in B."


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
