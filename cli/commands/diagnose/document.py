"""Diagnoses as a JSON document (docs/json.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from costs import num_parameters
from diagnose.diagnosis import Advice, Diagnosis
from diagnose.difference import RunDifference
from diagnose.evidence import FileEvidence
from diagnose.measured import MeasuredSteps
from diagnose.runs import Fact, LogLine
from diagnose.suspects import Suspect


def diagnosis_document(diagnoses: Sequence[Diagnosis], differences: Sequence[RunDifference]) -> dict[str, Any]:
    return {"runs": [_run(each) for each in diagnoses], "differences": [_difference(each) for each in differences]}


def _run(diagnosis: Diagnosis) -> dict[str, Any]:
    run, known, interval = diagnosis.run, diagnosis.understood, diagnosis.understood.interval
    predicted = known.predicted
    setup = known.configuration.setup if known.configuration else None
    prediction = {
        "predicted_step_seconds": predicted.step_seconds if predicted else None,
        "predicted_low_step_seconds": interval.low_seconds if interval else None,
        "predicted_high_step_seconds": interval.high_seconds if interval else None,
        "predicted_peak_memory_bytes": predicted.peak_memory_bytes if predicted else None,
        "predicted_terms": predicted.step_terms.by_term() if predicted else None,
        "outside": list(interval.outside) if interval else [],
    }
    return {
        "name": run.name,
        "program": run.program,
        "trainer": run.trainer.value if run.trainer else None,
        "verdict": diagnosis.verdict.value,
        "label": setup.label if setup else None,
        "num_parameters": num_parameters(setup.model) if setup else None,
        "columns": {column: _fact(fact) for column, fact in run.columns.items()},
        "missing": [{"column": one.column, "place": one.place, "give": one.give} for one in known.missing],
        "taken": dict(known.taken),
        "left_out": list(known.left_out),
        "no_prediction_because": known.reason or None,
        "parameters_mismatch": known.mismatch or None,
        **_measured(diagnosis.measured),
        **prediction,
        "doubts": [{"says": one.says, "impossible": one.impossible, **_place(one.at)} for one in diagnosis.doubts],
        "suspects": [_suspect(one) for one in diagnosis.suspects],
        "without_effect": [_evidence(one) for one in diagnosis.without_effect],
        "unexplained_seconds": diagnosis.unexplained_seconds,
        "proposals": [_proposal(one) for one in diagnosis.advice],
    }


def _measured(seen: MeasuredSteps | None) -> dict[str, Any]:
    if seen is None:
        return {"measured_step_seconds": None}
    spikes, pace = seen.spikes, seen.pace
    return {
        "measured_step_seconds": seen.step_seconds,
        "measured_low_step_seconds": seen.low_seconds,
        "measured_high_step_seconds": seen.high_seconds,
        "is_steady": seen.is_steady,
        "num_steady_lines": len(seen.steady),
        "num_warmup_lines": len(seen.warmup),
        "slow_steps": None
        if spikes is None
        else {"num_lines": len(spikes.lines), "every": spikes.every, "share": spikes.share},
        "pace": None
        if pace is None
        else {
            "kind": pace.kind,
            "slower_seconds": pace.slower_seconds,
            "slower_share": pace.slower_share,
            **_place(pace.at),
        },
        "logged_flops_per_second_per_device": seen.flops_per_second,
        "logged_utilization": seen.mfu,
        "measured_tokens_per_second": seen.tokens_per_second,
        "measured_reserved_bytes": seen.reserved_bytes,
        "measured_allocated_bytes": seen.allocated_bytes,
    }


def _fact(fact: Fact) -> dict[str, Any]:
    return {"value": fact.value, "said_by": fact.said_by.value, "note": fact.note or None, **_place(fact.at)}


def _place(at: LogLine | None) -> Mapping[str, Any]:
    return {"file": at.file if at else None, "line": at.line if at else None}


def _evidence(evidence: FileEvidence) -> dict[str, Any]:
    return {"says": evidence.says, **_place(evidence.at)}


def _suspect(suspect: Suspect) -> dict[str, Any]:
    return {
        "name": suspect.name,
        "says": suspect.title,
        "seconds": suspect.seconds,
        "priced_by": None if suspect.seconds is None else ("log" if suspect.is_measured else "cost model"),
        "evidence": [_evidence(each) for each in suspect.evidence],
        "remedy": suspect.remedy,
    }


def _proposal(advice: Advice) -> dict[str, Any]:
    proposal = advice.proposal
    return {
        "kind": proposal.kind,
        "changes": list(proposal.what),
        "label": proposal.configuration.setup.label,
        "time_ratio": proposal.ratio,
        "low_time_ratio": proposal.low_ratio,
        "high_time_ratio": proposal.high_ratio,
        "predicted_step_seconds": proposal.predicted.step_seconds,
        "predicted_peak_memory_bytes": proposal.predicted.peak_memory_bytes,
        "fits_probability": proposal.fits,
        "words": list(advice.words),
    }


def _difference(difference: RunDifference) -> dict[str, Any]:
    measured, predicted = difference.measured_seconds or (None, None), difference.predicted_seconds or (None, None)
    return {
        "before": difference.before,
        "after": difference.after,
        "measured_step_seconds": list(measured),
        "predicted_step_seconds": list(predicted),
        "network_gigabits_per_node": asdict(difference.network) if difference.network else None,
        "changes": [{"says": one.says, "seconds": one.seconds, **_place(one.at)} for one in difference.changes],
    }
