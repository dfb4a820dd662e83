"""The four sections of a diagnosis in a terminal: understood, measured, held against the prediction, to change."""

from __future__ import annotations

from collections.abc import Sequence

from cli.commands.diagnose.lines import AnswerSection, place_of, places_of
from conf.folders import package_content
from conf.grouped import grouped
from conf.types.cluster_spec import ClusterSpec
from conf.units import count_of
from costs import Estimate, num_parameters
from diagnose.diagnosis import Advice, Diagnosis, RunVerdict, in_short
from diagnose.difference import RunDifference
from diagnose.suspects import Suspect
from results.render.units import gib, percent, seconds, tflops
from sweeps.table.cells import text_of

GIGABIT = 1e9 / 8
LEAST_TERM = 0.01
NEARLY_SURE = 0.99
WORDS = package_content("answer.yaml", "cli.commands.diagnose")
GROUPS: dict[str, list[str]] = WORDS["groups"]
VERDICTS = {RunVerdict(value): words for value, words in WORDS["verdicts"].items()}


def print_diagnosis(diagnosis: Diagnosis) -> None:
    for section in answer_sections(diagnosis):
        section.show()


def answer_sections(diagnosis: Diagnosis) -> list[AnswerSection]:
    made = (_understood, _measured, _standing, _suspects, _rest, _advice)
    return [section for make in made if (section := make(diagnosis)) is not None]


def _understood(diagnosis: Diagnosis) -> AnswerSection:
    known, run = diagnosis.understood, diagnosis.run
    section = AnswerSection("What was understood")
    if run.trainer is not None:
        program = f"{run.program}, priced as " if run.program and run.program != run.trainer.value else ""
        section.add("trainer", program + run.trainer.value, places_of([run.trainer]))
    for label, columns in GROUPS.items():
        facts = [run.columns[column] for column in columns if column in run.columns]
        section.add(label, _group_in_words(diagnosis, label, columns), places_of(facts))
    section.add("!", known.mismatch, style="yellow")
    for column in known.left_out:
        section.add("no price", f"{column} = {text_of(known.row, column)}: the prediction is of a run without it")
    for value, names in grouped(known.taken, lambda column: known.taken[column]).items():
        section.add("taken", f"{', '.join(names)}: {value}")
    for each in known.missing:
        at = place_of(each.at.at) if each.at else ""
        section.add("missing", f"{each.column}: {each.place}. Say it as {each.give}", at, style="yellow")
    if known.reason and not known.missing:
        section.add("no prediction", known.reason, style="yellow")
    return section


def _group_in_words(diagnosis: Diagnosis, label: str, columns: Sequence[str]) -> str:
    """What was understood of one group: as it is priced, or else the cells of its row."""
    known = diagnosis.understood
    if known.configuration is None:
        return ", ".join(f"{column} = {cell}" for column in columns if (cell := text_of(known.row, column)))
    setup, model = known.configuration.setup, known.configuration.setup.model
    match label:
        case "model":
            heads = f"{model.num_attention_heads} heads"
            heads += f", {model.num_query_groups} of keys" * (model.num_query_groups != model.num_attention_heads)
            experts = f"; {model.experts.num_experts} experts, {model.experts.top_k} a token" if model.experts else ""
            return (
                f"{num_parameters(model) / 1e9:,.2f} billion parameters: {model.num_layers} layers of"
                f" {model.hidden_size:,} ({heads}), feed-forward {model.ffn_hidden_size:,}"
                f"{' gated' * model.gated_mlp}, vocabulary {model.vocab_size:,}{experts}"
            )
        case "layout":
            return setup.label
        case "batch":
            return (
                f"{setup.batch.global_batch_size:,} sequences of {model.seq_length:,} tokens a step:"
                f" {setup.num_micro_batches:,} times {setup.batch.micro_batch_size} on each of"
                f" {count_of(setup.data_parallel_size, 'replica')}"
            )
        case "devices":
            return _devices_in_words(setup.cluster, setup.parallel.world_size, setup.num_nodes)
        case "precision":
            recipe = setup.precision.matmul_recipe
            return f"{setup.precision.dtype}{f', products in {recipe}' if recipe else ''}"
        case "recomputation":
            every = setup.parallel.recompute_every
            return setup.parallel.recompute + (f", one layer of {every}" if every > 1 else "")
    return ", ".join(f"{column} = {cell}" for column in columns if (cell := text_of(known.row, column)))


def _devices_in_words(cluster: ClusterSpec, number: int, num_nodes: int) -> str:
    per_node = min(cluster.devices_per_node, number)
    words = f"{number:,} x {cluster.device.name} in {count_of(num_nodes, 'node')} of {per_node}"
    if num_nodes > 1 and len(cluster.links) > 1:
        rate = cluster.links[-1].bandwidth_bytes_per_second * cluster.devices_per_node / GIGABIT
        words += f", {rate:,.0f} Gb/s a node ({cluster.name})"
    return words


def _measured(diagnosis: Diagnosis) -> AnswerSection:
    seen = diagnosis.measured
    section = AnswerSection("What was measured", "measured")
    if seen is None:
        words = "lines about steps print no time: batch, sequence or devices would give it"
        section.add("a step", words if diagnosis.run.steps else "no line about steps was found", style="yellow")
        return section
    words = f"{seconds(seen.step_seconds)} s, the middle of {count_of(len(seen.steady), 'line')}"
    if len(seen.steady) > 1:
        words += f"; half of them from {seconds(seen.low_seconds)} to {seconds(seen.high_seconds)} s"
    section.add("a step", words, place_of(seen.steady[0].at))
    if seen.warmup:
        most = max(step.seconds for step in seen.warmup)
        section.add(
            "warm-up",
            f"{count_of(len(seen.warmup), 'line')} left out, up to {seconds(most)} s",
            place_of(seen.warmup[0].at),
        )
    if seen.spikes:
        first = seen.spikes.lines[0]
        every = f", one every {seen.spikes.every:,} steps" if seen.spikes.every else ""
        number = count_of(len(seen.spikes.lines), "line")
        section.add("slow lines", f"{number} left out{every}; {seen.spikes.share:.0%} of the time", place_of(first.at))
    if seen.pace:
        words = f"its steps {seen.pace.kind}: {seconds(seen.pace.slower_seconds)} s in the slow part"
        section.add("pace", f"{words}, and the fast part is taken", place_of(seen.pace.at))
    for size, each in sorted(seen.other_batches.items()):
        section.add("", f"at {size:,} sequences {seconds(each)} s")
    section.add("rate", _rates(diagnosis))
    section.add("memory", _memory(diagnosis))
    for doubt in diagnosis.doubts:
        section.add("!", doubt.says, place_of(doubt.at), style="yellow")
    return section


def _rates(diagnosis: Diagnosis) -> str:
    """TFLOPS of a device by the log's convention and by ours, said apart."""
    seen, predicted = diagnosis.measured, diagnosis.understood.predicted
    assert seen is not None
    words = []
    if seen.flops_per_second is not None:
        share = f" ({percent(seen.mfu)} %)" if seen.mfu is not None else ""
        words.append(f"{tflops(seen.flops_per_second)} TFLOPS a device by the log{share}")
    if predicted is not None:
        factor = predicted.step_seconds / seen.step_seconds
        model, executed = (
            factor * rate
            for rate in (predicted.model_flops_per_second_per_device, predicted.hardware_flops_per_second_per_device)
        )
        share = f"{percent(model / predicted.peak_flops_per_second)} % of the peak"
        words.append(f"{tflops(model)} by our count of the model ({share}), {tflops(executed)} with what is repeated")
    elif seen.tokens_per_second is not None:
        words.append(f"{seen.tokens_per_second:,.0f} tokens/s of all devices")
    return "; ".join(words)


def _memory(diagnosis: Diagnosis) -> str:
    seen, predicted = diagnosis.measured, diagnosis.understood.predicted
    assert seen is not None
    words = [
        f"{gib(size)} GiB {how}"
        for size, how in ((seen.allocated_bytes, "allocated"), (seen.reserved_bytes, "reserved"))
        if size is not None
    ]
    if (
        predicted is not None
        and diagnosis.understood.configuration
        and diagnosis.understood.configuration.models_memory
    ):
        words.append(
            f"predicted {gib(predicted.allocated_bytes)} and {gib(predicted.peak_memory_bytes)}"
            f" of {gib(predicted.memory_capacity_bytes)}"
        )
    return ", ".join(words)


def _standing(diagnosis: Diagnosis) -> AnswerSection:
    known, seen = diagnosis.understood, diagnosis.measured
    section = AnswerSection("What it should take", "measured and predicted")
    if known.predicted is not None and known.interval is not None:
        interval = known.interval
        section.add(
            "predicted",
            f"{seconds(known.predicted.step_seconds)} s a step; it is held against"
            f" {seconds(interval.low_seconds)} to {seconds(interval.high_seconds)} s",
        )
        section.add("", interval.in_words)
        section.add("of which", _terms(known.predicted))
        for reason in interval.outside[:2]:
            section.add("", f"outside of what was validated: {reason}")
    factor = (
        f"{seconds(seen.step_seconds)} s, {diagnosis.factor:.2f} times the prediction: "
        if seen and diagnosis.factor
        else ""
    )
    section.add("this run", factor + VERDICTS[diagnosis.verdict], style="bold")
    return section


def _terms(predicted: Estimate) -> str:
    terms = sorted(predicted.step_terms.by_term().items(), key=lambda each: -each[1])
    shown = [
        f"{name.removesuffix('_seconds')} {seconds(value)}"
        for name, value in terms
        if value >= LEAST_TERM * predicted.step_seconds
    ]
    return ", ".join(shown) + " s"


def _suspects(diagnosis: Diagnosis) -> AnswerSection | None:
    section = AnswerSection("Suspects, each with its price and its evidence", "measured and predicted")
    for suspect in diagnosis.suspects:
        section.add(_price(diagnosis, suspect), suspect.title, style="bold")
        for evidence in suspect.evidence:
            section.add("", f"because {evidence.says}", place_of(evidence.at))
        section.add("", f"instead: {suspect.remedy}")
    return section if diagnosis.suspects else None


def _rest(diagnosis: Diagnosis) -> AnswerSection | None:
    """What no suspect explains, and settings that change nothing."""
    rest = AnswerSection("Beside that")
    if diagnosis.unexplained_seconds is not None and diagnosis.measured:
        share = diagnosis.unexplained_seconds / diagnosis.measured.step_seconds
        may = ", unless a suspect without a price holds it" * any(each.seconds is None for each in diagnosis.suspects)
        rest.add("not explained", f"{seconds(diagnosis.unexplained_seconds)} s of each step ({share:.0%}){may}")
    for evidence in diagnosis.without_effect:
        rest.add("no effect", evidence.says, place_of(evidence.at))
    return rest if rest.lines else None


def _price(diagnosis: Diagnosis, suspect: Suspect) -> str:
    if suspect.seconds is None:
        return "no price"
    base = diagnosis.measured.step_seconds if suspect.is_measured and diagnosis.measured else None
    predicted = diagnosis.understood.predicted
    whole = base or (predicted.step_seconds if predicted else None)
    share = f" {suspect.seconds / whole:.0%}" if whole else ""
    return f"{seconds(suspect.seconds)} s{share}"


def _advice(diagnosis: Diagnosis) -> AnswerSection | None:
    known = diagnosis.understood
    if known.configuration is None or diagnosis.verdict is RunVerdict.IMPOSSIBLE:
        return None
    setup = known.configuration.setup
    devices = count_of(setup.parallel.world_size, "device")
    section = AnswerSection(f"What to change, on the same {devices} and with the same batch", "predicted")
    if not diagnosis.advice:
        section.add("nothing", "no plan that is likely to fit is predicted to be 2 % faster")
    for advice in diagnosis.advice:
        section.add(advice.proposal.kind, _gain(diagnosis, advice), style="bold")
        for words in advice.proposal.what:
            section.add("", words)
        if advice.words:
            section.add("", f"to paste: {in_short(advice.words)}")
    if diagnosis.advice:
        section.note = _of_gains(diagnosis)
    return section


def _gain(diagnosis: Diagnosis, advice: Advice) -> str:
    proposal = advice.proposal
    base = diagnosis.measured.step_seconds if diagnosis.measured else diagnosis.understood.predicted
    now = base if isinstance(base, float) else (base.step_seconds if base else 0.0)
    span = f"{seconds(now * proposal.low_ratio)} to {seconds(now * proposal.high_ratio)}"
    likely = f"over {NEARLY_SURE:.0%} likely" if proposal.fits > NEARLY_SURE else f"{proposal.fits:.0%} likely"
    memory = f"{gib(proposal.predicted.peak_memory_bytes)} GiB predicted, {likely} to fit"
    return f"{seconds(now * proposal.ratio)} s a step ({span}), {1 - proposal.ratio:.0%} less; {memory}"


def _of_gains(diagnosis: Diagnosis) -> str:
    if diagnosis.factor is None:
        return "These are predictions, before any of your runs."
    factor = f"its own factor of {diagnosis.factor:.2f} is taken to hold for them too."
    return f"These are predictions after this one run: {factor}"


def difference_section(difference: RunDifference) -> AnswerSection:
    """What differs between two runs, and how much of their difference in time is priced."""
    section = AnswerSection(f"From {difference.before} to {difference.after}")
    for change in difference.changes:
        price = "" if change.seconds is None else f"{change.seconds:+.3g} s"
        section.add(price, change.says, place_of(change.at))
    if not difference.changes:
        section.add("", "their files say the same of both")
    section.add("measured", difference.measured_in_words, style="bold")
    section.add("predicted", difference.predicted_in_words)
    section.add("network", difference.network.in_words if difference.network else "")
    return section
