"""The sentences that a person should read beside the table of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conf.types.schema import DOCUMENTS, DataSpec, PrecisionPlan
from sweeps.planner import Candidate, Choice
from sweeps.planner.choosing.choice import Judged, num_rivals
from sweeps.planner.request import Request
from train_core.costs.estimate import TIGHT_SHARE

MOST_OUTSIDE = 3


def notes(shown: Sequence[Judged], choice: Choice | None, request: Request) -> Iterator[str]:
    """Sentences on the order, the intervals, the memory and the vocabulary of what is shown.

    Args:
        choice: the whole answer where the rows are families; None where they are plans.
    """
    if choice is not None:
        yield _order_sentence(choice, shown)
    yield from _outside_sentences(shown)
    yield from tight_sentences([judged.candidate for judged in shown])
    yield from unpriced_sentences(request.settings.data, request.settings.precision)
    if request.padding:
        yield padded_vocabulary_sentence(request.vocab_size, request.settings.model.vocab_size)


def tight_sentences(shown: Sequence[Candidate]) -> Iterator[str]:
    """Yield the sentence on those plans, by their numbers, that nearly fill the memory."""
    full = [f"#{number}" for number, candidate in enumerate(shown, start=1) if candidate.is_tight]
    if full:
        yield tight_sentence(f"{', '.join(full)} {'needs' if len(full) == 1 else 'need'}")


def tight_sentence(needing: str) -> str:
    """The sentence on what needs nearly all of the memory, such as `It needs`."""
    return f"! {needing} more than {TIGHT_SHARE:.0%} of the memory; --headroom 10% leaves some free."


def unpriced_sentences(data: DataSpec, precision: PrecisionPlan) -> Iterator[str]:
    """Sentences on what a configuration asks for and a price does not follow."""
    if data.separate_documents:
        yield (
            f"! {DOCUMENTS}=true is priced with attention over whole sequences: how long documents are is not known on"
            " paper. Separate ones take less time, and no more memory on a GPU whose flash kernel runs."
        )
    if precision.emulate:
        yield f"! precision.emulate=true is priced as products in {precision.dtype}; an emulation takes longer."
    elif precision.wide_layers:
        yield f"! precision.wide_layers={precision.wide_layers} is priced as if all layers multiplied narrow operands."


def padded_vocabulary_sentence(stated: int, padded: int) -> str:
    return (
        f"Vocabulary padded from {stated:,} to {padded:,} rows, of which tensor ranks take equal shares; the overrides"
        f" carry model.vocab_size={padded}."
    )


def _order_sentence(choice: Choice, shown: Sequence[Judged]) -> str:
    """A sentence on the families that may be the best, and on what would decide."""
    rivals, share = num_rivals(choice, shown[0]), shown[0].interval.rivals
    off = f"two predictions for one machine are off against each other by up to {share:.1%} (four pairs of five)"
    if choice.num_families == 1:
        return "No other family fits."
    if rivals == 1:
        return f"The first family is ahead by more than the error of the order: {off}."
    num_shown = min(rivals, len(shown))
    decide = f"The trials that would decide are #1 to #{num_shown}." if num_shown > 1 else ""
    hidden = f"--top {rivals} shows all of them." if num_shown < rivals else ""
    first = f"At least the first {rivals}" if choice.num_left_out else f"The first {rivals}"
    return " ".join(filter(None, (f"{first} families cannot be told apart: {off}.", decide, hidden)))


def _outside_sentences(shown: Sequence[Judged]) -> Iterator[str]:
    """Yield where plans lie outside of what was ever validated: the sides that most of them share first."""
    sides: dict[str, list[int]] = {}
    for number, judged in enumerate(shown, start=1):
        for side in judged.interval.outside:
            sides.setdefault(side, []).append(number)
    in_order = sorted(sides.items(), key=lambda item: -len(item[1]))
    for side, numbers in in_order[:MOST_OUTSIDE]:
        which = "all" if len(numbers) == len(shown) else ", ".join(f"#{number}" for number in numbers)
        yield f"Outside what was validated ({which}): {side}."
    if (more := len(in_order) - MOST_OUTSIDE) > 0:
        yield f"Outside what was validated on {more} more side{'s' * (more > 1)}, which --json names."
