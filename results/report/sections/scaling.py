"""Weak and strong scaling: efficiency on every number of devices, the law that fits, and what others published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conf.units import count_of
from results.analysis.findings.circumstances import noise_notes
from results.analysis.scaling import ScalingStudy, StudyPoint, measured_study, predicted_study
from results.render.charts import Spec, Values, category, dots, layer, quantity
from results.render.section import Block, NamedTable, NumbersAre, Paragraph, Plot, ReportSubject, Section
from results.render.table import Cell, Table, number, text
from results.render.units import count, percent, seconds, significant
from results.report.sections.published import PublishedFigure, chosen_figures
from sweeps.ranking.points import measured_points
from sweeps.trial import SweepRecord

FIGURES = ("ranks", "devices", "batch", "step s", "speed-up", "efficiency %")
COLUMNS = ("layout", *FIGURES, "95 % interval", "of ideal %", "runs")
NUMERIC = frozenset({*FIGURES, "of ideal %", "runs"})
HELD = {"weak": "the batch of each replica", "strong": "the global batch"}
CURVE_STEPS = 24
MOST_DOUBLINGS = 20
MARKS = {
    "measured": ("var(--measured)", "circle"),
    "predicted for the same trials": ("var(--soft)", "triangle-up"),
    "predicted at full size": ("var(--predicted)", "diamond"),
    "published": ("var(--published)", "stroke"),
}


def section(subject: ReportSubject) -> Section | None:
    record = subject.sweep.record
    if record.spec.scaling is None:
        return None
    measured = measured_study(record, subject.results)
    shared = {point.num_ranks for point in measured.points if point.shares_devices} if measured else ()
    same = predicted_study(record, record.trials, without=shared)
    full = predicted_study(record, record.plan) if record.mode == "proxy" else None
    published = [each for each in chosen_figures(record.spec.published) if each.scaling_kind == record.spec.scaling]
    studies = {"measured": measured, "predicted for the same trials": same, "predicted at full size": full}
    studies_by_kind = {name: study for name, study in studies.items() if study is not None}
    if not studies_by_kind:
        return None
    blocks = (
        *_finding_blocks(subject, measured),
        *_tables(studies_by_kind),
        *map(_published_paragraph, published),
        _plot(studies_by_kind, published),
    )
    kind: NumbersAre = "measured and predicted" if measured is not None else "predicted"
    title = f"{record.spec.scaling.capitalize()} scaling"
    return Section("scaling", title, kind, _finding(record, studies_by_kind), blocks)


def _finding(record: SweepRecord, studies: dict[str, ScalingStudy]) -> str:
    """The efficiency on the most devices, measured where it was, else predicted."""
    name, study = next(iter(studies.items()))
    last, kind = study.last, record.spec.scaling
    devices = count_of(last.num_devices, "device")
    if name != "measured":
        return f"Nothing was measured yet; on paper {devices} keep {percent(last.efficiency)} % ({kind})."
    shared = [str(point.num_ranks) for point in study.points if point.shares_devices]
    most = count_of(max(point.num_devices for point in study.points), "device")
    cores = f"; {' and '.join(shared)} ranks shared {most}" if shared else ""
    return (
        f"{devices} keep {percent(last.efficiency)} % of the baseline's rate per device"
        f" (95 % interval {_interval(last)} %){cores}; {HELD[study.kind]} is held constant."
    )


def _finding_blocks(subject: ReportSubject, measured: ScalingStudy | None) -> Iterator[Block]:
    record = subject.sweep.record
    declared = record.spec.proxy if record.mode == "proxy" and record.spec.proxy else record.spec
    point = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in (declared.baseline or {}).items()]
    baseline = ", ".join(point) or "the configuration as is"
    yield Paragraph(
        f"Held constant: {HELD[record.spec.scaling or 'weak']}. Baseline: {baseline}. Efficiency is the rate"
        " per device over the baseline's; of ideal is MFU, in which 100 % would be every device at its peak"
        " all the time: a poor baseline makes any efficiency look good, and of ideal shows it.",
        is_note=True,
    )
    if measured is None:
        return
    points = measured_points(subject.results)
    method = points[0].seconds.method
    yield Paragraph(f"Intervals: {method}; those of both rates add by their squares.", is_note=True)
    for note in noise_notes(subject.results):
        yield Paragraph(note, is_caution=True)
    if shared := [point for point in measured.points if point.shares_devices]:
        of_them = count_of(shared[0].num_devices, "device")
        yield Paragraph(
            f"{' and '.join(str(point.num_ranks) for point in shared)} ranks shared {of_them} (cores of a CPU,"
            f" each a device). Their rate is that of {of_them}, they are left out of the fit, and nothing is"
            " predicted for them.",
            is_caution=True,
        )


def _tables(studies: dict[str, ScalingStudy]) -> Iterator[Block]:
    for name, study in studies.items():
        yield Paragraph(f"{name.capitalize()}. {_law(study)}")
        table = Table(COLUMNS, tuple(map(_row, study.points)), NUMERIC, frozenset({0}))
        yield NamedTable(f"scaling-{name.replace(' ', '-')}", table)


def _law(study: ScalingStudy) -> str:
    if study.fit is None:
        return "No law is fitted, because no point beyond the baseline has a device for each rank."
    fit = study.fit
    points = count_of(fit.num_points, "point")
    low, high = study.fit_bounds
    ends = f" ({percent(low)} to {percent(high)} % at the ends of the intervals)" if low < high else ""
    return (
        f"{fit.law}'s law, fitted to {points}: {percent(fit.serial_share)} % of the baseline's step is what more"
        f" devices do not speed up{ends}."
    )


def _row(point: StudyPoint) -> tuple[Cell, ...]:
    note = f" ({point.num_ranks} ranks share {count_of(point.num_devices, 'device')})" if point.shares_devices else ""
    has_interval = point.num_runs and point.efficiency_low < point.efficiency_high
    return (
        text(point.label + note),
        number(count(point.num_ranks), point.num_ranks),
        number(count(point.num_devices), point.num_devices),
        number(count(point.global_batch_size), point.global_batch_size),
        number(seconds(point.step_seconds), point.step_seconds),
        number(significant(point.speed_up), point.speed_up),
        number(percent(point.efficiency), point.efficiency),
        text(_interval(point) if has_interval else "-"),
        number(percent(point.utilization), point.utilization),
        number(str(point.num_runs) if point.num_runs else "-", point.num_runs),
    )


def _interval(point: StudyPoint) -> str:
    return f"{percent(point.efficiency_low)} to {percent(point.efficiency_high)}"


def _published_paragraph(figure: PublishedFigure) -> Paragraph:
    devices = f" on {count_of(figure.num_devices, 'device')}" if figure.num_devices else ""
    return Paragraph(
        f"Published: {figure.source}, {figure.model}: {figure.scaling_efficiency_percent:g} %"
        f" {figure.scaling_kind} scaling{devices} (confirmed: {figure.confirmed}). {figure.notes}"
    )


def _plot(studies: dict[str, ScalingStudy], published: Sequence[PublishedFigure]) -> Plot:
    values = [value for name, study in studies.items() for value in _values(name, study)]
    most = max(value["factor"] for value in values)
    values += [
        {"series": "published", "factor": factor, "efficiency": figure.scaling_efficiency_percent}
        for figure in published
        for factor in (1, most)
    ]
    curves = [value for name, study in studies.items() for value in _curve(name, study)]
    caption = (
        "Efficiency over devices, as a multiple of the baseline's. Circles with whiskers were measured, with their 95 %"
        " intervals; triangles and diamonds are predicted; thin lines are the fitted law. The published figure is a"
        " dashed level, because its source does not say from which number of devices on."
    )
    return Plot("scaling", caption, _spec(values, curves))


def _values(name: str, study: ScalingStudy) -> Values:
    return [
        {
            "series": name,
            "layout": point.label,
            "factor": point.factor,
            "efficiency": 100 * point.efficiency,
            "low": 100 * point.efficiency_low,
            "high": 100 * point.efficiency_high,
        }
        for point in study.points
        # On paper every rank has a device, which is another question where they share some.
        if not point.shares_devices
    ]


def _curve(name: str, study: ScalingStudy) -> Values:
    if study.fit is None:
        return []
    most = max(point.factor for point in study.points)
    factors = [most ** (step / CURVE_STEPS) for step in range(CURVE_STEPS + 1)]
    return [{"series": name, "factor": factor, "efficiency": 100 * study.fit.efficiency(factor)} for factor in factors]


def _spec(values: Values, curves: Values) -> Spec:
    names = list(dict.fromkeys(value["series"] for value in values))
    powers = [2**power for power in range(MOST_DOUBLINGS) if 2**power <= max(value["factor"] for value in values)]
    axis = {"values": powers, "format": "~g"}
    x = quantity("factor", "devices over the baseline's", scale={"type": "log", "base": 2}, axis=axis)
    y = quantity("efficiency", "efficiency %", scale={"zero": False})
    colour, shape = (
        category("series", scale={"domain": names, "range": list(of_series)})
        for of_series in zip(*(MARKS[name] for name in names), strict=True)
    )
    of = {name: {"filter": {"field": "series", "equal": name}} for name in names}
    layers: list[Spec] = [
        layer({"type": "line", "strokeWidth": 1}, curves, x=x, y=y),
        {"transform": [{"filter": "datum.series != 'published'"}], **layer(dots(70), x=x, y=y, shape=shape)},
    ]
    if "measured" in of:
        whiskers = layer({"type": "rule"}, x=x, y=quantity("low", "efficiency %"), y2={"field": "high"})
        layers.append({"transform": [of["measured"]], **whiskers})
    if "published" in of:
        layers.append({"transform": [of["published"]], **layer({"type": "line", "strokeDash": [6, 4]}, x=x, y=y)})
    return {"data": {"values": values}, "height": 300, "encoding": {"color": colour}, "layer": layers}
