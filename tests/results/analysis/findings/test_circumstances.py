"""What a report says of the trials that their rows have no room for."""

from __future__ import annotations

from results.analysis.findings.circumstances import notes
from tests.results.conftest import WriteSweep, trial


def test_what_only_an_earlier_command_asked_for_was_not_left_out_for_its_number(write_sweep: WriteSweep) -> None:
    left_out = {"selected": False}
    trials = [
        trial("first"),
        trial("beyond").model_copy(update=left_out),
        trial("earlier").model_copy(update=left_out | {"role": "kept"}),
    ]
    sweep = write_sweep(trials)
    assert notes(sweep.record, sweep.read(), sweep.folder) == (
        "1 point that fits was left out, beyond `sweep.max_trials=20`.",
        "1 trial that only an earlier command asked for was left out, and not measured.",
    )
