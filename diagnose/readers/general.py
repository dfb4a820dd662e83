"""Lines about steps of programs that nobody here knows: a step's number, and figures by what they are called.

`step=10 loss=9.1 step_time=5.2s`, `[iter 200/1000] 2.31 s/iter | 227k tokens/s`, `Schritt 10  Zeit/Schritt 1,23 s`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from diagnose.readers.formats import StepFormat
from diagnose.readers.steps import NUMBER, FigureReader, FigureSlot

STEP = re.compile(
    r"(?<![\w/.-])(?i:(?:global|train|training|optimizer|num|current)?[ _-]?"
    r"(?:step|iter(?:ation)?|update|schritt|it(?=[:=]| \d+ ?[|/,]))s?(?:[ _](?:no|num|number|idx))?)\.? ?"
    r"(?:\[|[:=#]+ ?)?\[? *(\d+(?:,\d{3})*)(?![\d.]* ?(?:ms|s|%|it)\b)"
    r"|第 ?(\d+) ?(?:步|次|个)|(?:步数?|迭代(?:次数|步数)?)[ :=]*(\d+)"
)
OF_ALL = re.compile(
    r"(?i:\b(?:batch|it)(?:es)?[ :#]*)\[? *(\d+) ?/ ?(\d+)|(?<!poch )(?<!poch: )(?<!poch)\[ *(\d+) ?/ ?(\d+)\]"
)
"""`Batch: 10/4200` and `[10/4200]`, where nothing is called a step."""
TOTAL, EPOCH = re.compile(r" ?(?:/|of) ?(\d+)"), re.compile(r"(?i:epoch)[ :=#]*[\[(]?(\d+)")
OTHER_EVENT = re.compile(r"(?i:checkpoint|\bsav(?:ed|ing) |\bresum|\brestor|evaluat|validat)")
"""Words of lines that tell of something else at a step."""
UNIT = re.compile(
    r"(?P<multiple>[kKMB](?![^\W\d_]))?(?P<gap> ?)(?P<unit>%(?: (?:bf16 )?(?i:mfu))?"
    r"|[^\W\d_]+(?:[_ ]?(?:/|per|pro)[_ ]?[^\W\d_]+)*)?(?P<next>[\w /()-]*[:=]| +[\d.])?"
)
"""What stands behind a figure; `next` where words behind a blank may be the name of the next one."""
GENERAL = StepFormat("", "", STEP)
WIDE = str.maketrans({"\uff1a": ":", "\uff0c": ";", "\uff1b": ";"})
"""Signs of Chinese texts, as those that separate names and figures elsewhere."""
CUTS = re.compile(r"[|,;{]|\s{2,}|\s-+\s|\t")
MULTIPLES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "sekunden", "秒"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds", "毫秒"), 1e-3),
    **dict.fromkeys(("us", "µs", "usec"), 1e-6),
    **dict.fromkeys(("min", "minutes", "分钟"), 60.0),
}
BYTES = {
    **dict.fromkeys(("g", "gb", "gib"), 2.0**30),
    **dict.fromkeys(("m", "mb", "mib"), 2.0**20),
    **dict.fromkeys(("b", "bytes"), 1.0),
}
PER, A_STEP = "(?: ?/ ?| per | pro )", "(?:step|iter|iteration|it|batch|update|schritt)"
A_SECOND, A_DEVICE = "(?:s|sec|secs|second|seconds|sekunde|秒)", "(?:gpu|device|card|chip|rank|npu|worker|卡)"
RATE = re.compile(
    r"\bk?(?P<what>tok(?:en)?s?|words?|samples?|examples?|seqs?|sequences?|steps?|iters?|iterations?|it|batch(?:es)?|updates?)"
    rf"(?:{PER}(?:{A_DEVICE}{PER})?|(?<=token)p|(?<=tok)p){A_SECOND}\b"
)
RATES = {"tok": "tokens", "wor": "tokens", "sam": "samples", "exa": "samples", "seq": "samples"}
OF_A_DEVICE = re.compile(rf"\b{A_DEVICE}s?\b|卡|\btgs\b")
TIME = "(?:time|timing|duration|latency|zeit|dauer|took|secs?|seconds?|ms|s)"
STEP_TIME = re.compile(rf"\b{TIME}{PER}{A_STEP}\b|\b{A_STEP} ?{TIME}\b|[每单]步|迭代(?:时间|耗时)")
OF_UNITS = re.compile(r"[ (]*\b(?:ms|s|sec|secs|seconds|us)\b\)?$")
BARE_TIME = ("time", "dt", "took", "in", "zeit", "dauer", "duration", "latency", "耗时", "用时", "时间")
NOT_OF_A_STEP = re.compile(
    r"\b(?:data|fwd|forward|bwd|backward|optim(?:izer)?|comm|wait|load(?:ing|er)?|sav(?:e|ing)|ckpt|e?val(?:id)?|test"
    r"|total|eta|remaining|left|since|elapsed|cumulative|overall|wall|rollout|gen|epoch|std)\b"
)
NOT_OF_A_DEVICE = re.compile(r"\b(?:cpu|host|free|total|ram|available)\b")
MEMORY = re.compile(r"(?:\b|max|peak|gpu|cuda)(?:mem|memory|vram|hbm|speicher)(?:alloc\w*|usage|used|reserved)?\b|显存")
LOSS = re.compile(r"^(?:(?:lm|train|training|ce|avg|mean|total|language model) ?)?(?:loss|verlust|损失值?)$")


class NamedFigure(NamedTuple):
    """What a figure is by its name and unit, and what it is multiplied by."""

    quantity: str
    scale: float = 1.0


def figure_of(name: str, unit: str = "", multiple: str = "") -> NamedFigure | None:
    """What a figure of this name and unit is; None where they tell nothing of a step.

    A time without a unit is `unitless`, one that may count from the start `told_seconds` (`since` where it can only be
    that), a rate of tokens that may be one device's `tokens_of_some`.
    """
    name = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", name) if not name.isupper() else name
    label, unit = (" ".join(text.lower().replace("_", " ").replace("-", " ").split()) for text in (name, unit))
    words, both = set(re.findall(r"[^\W\d_]+", label)), f"{label} {unit}".strip()
    if LOSS.match(label.rpartition("/")[2].strip()):
        return None if NOT_OF_A_STEP.search(label.replace("total", "")) else NamedFigure("loss")
    if "mfu" in both:
        return NamedFigure("mfu", 0.01 if unit.startswith("%") or "%" in label else 1.0)
    if re.search(r"\btflops?\b", both):
        return None if words & {"total", "cluster", "aggregate"} else NamedFigure("tflops")
    if MEMORY.search(label):
        scale = next((BYTES[each] for each in (unit, multiple.lower(), *label.split()) if each in BYTES), None)
        scale = scale or next((BYTES[each] for each in words if each in BYTES), None)
        is_other = scale is None or NOT_OF_A_DEVICE.search(label)
        return None if is_other else NamedFigure("allocated" if "alloc" in label else "memory", scale or 1.0)
    return _rate(both, MULTIPLES.get(multiple, 1.0)) or _time(label, words, unit)


def _rate(both: str, multiple: float) -> NamedFigure | None:
    match = RATE.search(both)
    if match is None:
        named = re.search(r"\b(?:tps|wps|tgs)\b", both)
        quantity = "tokens_per_device" if OF_A_DEVICE.search(both) else "tokens_of_some"
        return NamedFigure(quantity, multiple) if named else None
    what, multiple = RATES.get(match["what"][:3], "batches"), multiple * (1e3 if match[0][0] == "k" else 1.0)
    if OF_A_DEVICE.search(both):
        return NamedFigure("tokens_per_device", multiple) if what == "tokens" else None
    return NamedFigure(what, multiple)


def _time(label: str, words: set[str], unit: str) -> NamedFigure | None:
    scale = SECONDS.get(unit.partition("/")[0].partition(" ")[0])
    if re.fullmatch(r"(?:total |wall )?(?:elapsed|time)(?: time)?(?: ?\(s\))?", label) and label != "time":
        return NamedFigure("since", scale or 1.0)
    if not label and unit in SECONDS:  # a cell of its own
        return NamedFigure("told_seconds", scale or 1.0)
    if NOT_OF_A_STEP.search(label) and not re.search(rf"{PER}{A_STEP}\b", label):
        return None
    per = unit.partition("/")[2]
    if scale is not None and re.fullmatch(rf"[^\W\d_]+{PER}{A_STEP}", unit):
        return NamedFigure("seconds", scale)
    bare = OF_UNITS.sub("", label)
    if per or (not STEP_TIME.search(label) and bare not in BARE_TIME):
        return None
    if scale is None:
        scale = next((SECONDS[each] for each in ("ms", "us", "sec", "secs", "seconds", "s") if each in words), None)
    if bare in BARE_TIME:
        return NamedFigure("unitless" if scale is None else "told_seconds", scale or 1.0)
    return NamedFigure("unitless") if scale is None else NamedFigure("seconds", scale)


def general_slots(line: str, _: StepFormat) -> Iterator[FigureSlot]:
    """Where such a line has the number of its step, and its figures; nothing where it tells of something else."""
    line = line.translate(WIDE)
    if OTHER_EVENT.search(line):
        return
    numbers = list(NUMBER.finditer(line))
    places = {match.start(): place for place, match in enumerate(numbers)}
    found = STEP.search(line) or OF_ALL.search(line)
    if found is None:
        return
    group = next(group for group, text in enumerate(found.groups(), 1) if text)
    total = TOTAL.match(line, found.end(group))
    marked = [("step", found.start(group)), ("of", total.start(1) if total else -1)]
    marked += [("epoch", match.start(1)) for match in [EPOCH.search(line)] if match]
    taken = {places[start]: quantity for quantity, start in marked if start in places}
    yield from (FigureSlot(place, quantity, 1.0) for place, quantity in taken.items())
    slots = [slot for place in range(len(numbers)) if place not in taken and (slot := _slot(line, numbers, place))]
    yield from slots


def _slot(line: str, numbers: list[re.Match[str]], place: int) -> FigureSlot | None:
    number, begin = numbers[place], numbers[place - 1].end() if place else 0
    before = re.sub(r"^[^\W\d_]+", "", line[begin : number.start()])
    label = CUTS.split(before.rstrip(" \t:=("))[-1].strip(" \t()[]:=\"'~<>+-*").rpartition("] ")[2][-60:]
    match = UNIT.match(line, number.start() + len(number[0].rstrip(".,_")))
    assert match is not None  # of nothing at all it is one
    unit = match["unit"] or ""
    is_sure = "/" in unit or unit.lower() in SECONDS | BYTES
    is_own = not match["gap"] or not match["next"] or (is_sure and match["next"].strip() not in (":", "="))
    figure = figure_of(label, unit if is_own else "", match["multiple"] or "")
    if figure is None and is_own and label and unit not in SECONDS:
        figure = figure_of("", unit, match["multiple"] or "")
    return FigureSlot(place, figure.quantity, figure.scale) if figure else None


class GeneralReader:
    """Reads such lines, counting steps on over epochs whose numbers begin anew."""

    def __init__(self) -> None:
        self._figures = FigureReader(general_slots)
        self._last, self._before, self._epochs = 0, 0, dict[int, int]()

    def step_in(self, line: str) -> tuple[int | None, dict[str, float]]:
        """The number of the step that a line tells of, None where it tells of none, and its figures."""
        found = self._figures.figures(line, GENERAL)
        number, of, epoch = (found.pop(name, None) for name in ("step", "of", "epoch"))
        if not found or number is None:
            return None, {}
        if epoch is not None and (place := int(epoch)) not in self._epochs:
            self._before += int(of or self._last) if self._epochs and number <= self._last else 0
            self._epochs[place] = self._before
        self._last = int(number)
        return self._last + (self._epochs[int(epoch)] if epoch is not None else 0), found
