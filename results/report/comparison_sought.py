"""Two sweeps beside each other by what they seek, where that is not the highest rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from conf.nearest import listed
from conf.types.sweep_spec import Objective
from conf.units import count_of
from results.comparison import Side, SoughtComparison, SoughtPair, joint_labels, label_without_seed
from results.report.findings.sought import interval_text, sought_sentences, value_text, words_of
from results.report.section import Block, Heading, NamedTable, Paragraph, Section
from results.table import Cell, Table, number, text
from results.units import ABSENT
from sweeps.points.objectives import cost
from sweeps.ranking.points import best_measured, ranked_points, rivals_of_first, sought_points
from sweeps.trial import SweepRecord


def sought_finding(both: SoughtComparison) -> str:
    """The result of the comparison in one sentence, by the first of what both seek."""
    pairs, words = both.comparable, words_of(both.objectives[0])
    if not pairs:
        reason = both.pairs[0].why_not if both.pairs else "they measured no point in common"
        return f"Nothing of the two sweeps can be compared by {words}: {reason}."
    counts = Counter(_change_word(pair, both.objectives[0]) for pair in pairs)
    found = listed([f"{word} in {counts[word]}" for word in ("better", "worse", "equal") if counts[word]], len(counts))
    clear = [pair.is_clear for pair in pairs]
    if any(each is not None for each in clear):
        sure = f"the 95 % intervals of both do not overlap in {sum(map(bool, clear))}"
    else:
        sure = "of single runs nobody knows what is chance"
    counted = f"Of {count_of(len(pairs), 'point')} that both measured"
    return f"{counted}, B is by {words} {found}; {sure}."


def _change_word(pair: SoughtPair, objective: Objective) -> str:
    """How the second sweep compares with the first: better, worse or equal. A loss that is no number is the worst."""
    sides = (pair.before, pair.after)
    before, after = (cost(objective, side.values[0]) if side.is_number else inf for side in sides)
    return "equal" if before == after else "better" if after < before else "worse"


def sought_section(both: SoughtComparison) -> Section:
    words = " and ".join(map(words_of, both.objectives))
    return Section("sought", f"By {words}", "measured", sought_finding(both), tuple(_blocks(both)))


def _blocks(both: SoughtComparison) -> Iterator[Block]:
    if both.comparable:
        yield NamedTable("sought-pairs", Table.of([_row(both, pair) for pair in both.comparable]))
        first = words_of(both.objectives[0])
        note = f"95 %: the interval of the {first}; clearly: the intervals of both do not overlap."
        if any(pair.leaves_seeds_out for pair in both.comparable):
            note += " Of a point, the seeds count that both measured."
        yield Paragraph(note, is_note=True)
    refused = [pair for pair in both.pairs if pair.why_not]
    if refused:
        yield Heading("Not comparable")
        rows = [{"point": text(pair.label), "not comparable because": text(pair.why_not)} for pair in refused]
        yield NamedTable("incomparable-sought", Table.of(rows))


def _row(both: SoughtComparison, pair: SoughtPair) -> dict[str, Cell]:
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


def sought_winners(before: Side, after: Side) -> Section:
    """The best of each of two sweeps by its own objective, of which at least one is no rate."""
    sides, records = (before, after), (before.sweep.record, after.sweep.record)
    labels = joint_labels(before.results, after.results)
    found = [best_measured(side.sweep.record, side.results) for side in sides]
    headlines = [sought_sentences(side.sweep.record, side.results, "")[0] for side in sides]
    names = [
        label_without_seed(best.reading, labels) if best else "none" if headline else "nothing was measured"
        for best, headline in zip(found, headlines, strict=True)
    ]
    rows = [
        {
            "": text(letter),
            "sweep": text(side.name),
            "seeks": text(" and ".join(map(words_of, record.objective))),
            "best": text(name),
            "value": text(_values(record, best.values) if best else ABSENT),
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


def _values(record: SweepRecord, values: Sequence[float]) -> str:
    return ", ".join(value_text(each, value) for each, value in zip(record.objective, values, strict=True))


def _num_as_good(side: Side) -> int:
    """Count the points that may equal the best: those whose intervals overlap, or that reached the same value."""
    if side.sweep.record.seeks_rate:
        points = ranked_points(side.results)
        return len(rivals_of_first(points)) if points else 0
    placed = [point for point in sought_points(side.sweep.record, side.results) if point.may_be_best]
    return sum(point.may_equal(placed[0]) for point in placed[1:])


def _winners_sentence(before: SweepRecord, after: SweepRecord, names: Sequence[str], lacking: Sequence[str]) -> str:
    """The sentence on both winners.

    Args:
        names: of both; empty where a sweep has none.
        lacking: why a sweep that measured something has none.
    """
    if before.objective != after.objective:
        return seeks_otherwise(before, after)
    if lacking:
        return " ".join(lacking)
    if not names:
        return "One of the sweeps has measured nothing yet."
    one, other = names
    words = " and ".join(map(words_of, before.objective))
    if one == other:
        return f"The best by {words} is the same in both sweeps, `{one}`."
    return f"The best by {words} is `{one}` in A and `{other}` in B."


def seeks_otherwise(before: SweepRecord, after: SweepRecord) -> str:
    """The sentence that two sweeps which seek different things have no common winner."""
    one, other = (" and ".join(map(words_of, record.objective)) for record in (before, after))
    return f"A seeks {one} and B {other}, so that neither their winners nor their values can be compared."
