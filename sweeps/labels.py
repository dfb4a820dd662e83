"""The names of trials in their sweep: each says what sets it apart from the others there.

A sweep over layouts calls its trials `tp4-pp8-dp32-mb2`, one over learning rates `lr=3.4e-3`, one over both
`tp4-pp8-dp32-mb2 lr=3.4e-3`. What is the same in all trials is not said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from conf.compose.tree import PARAMS, path_in
from conf.plan.experiment import Experiment
from conf.plan.knobs import KNOB, LAYOUT_KEYS, label_of_point, labelled_values
from conf.types.schema import Value

BATCH_KEY = "batch.global_batch_size"
SHORT_NAMES = {
    BATCH_KEY: "gb",
    "model.hidden_size": "hidden",
    "model.num_layers": "layers",
    "model.num_attention_heads": "heads",
    "model.seq_length": "seq",
    "model.vocab_size": "vocab",
    "precision.dtype": "dtype",
    "training.clip_gradient_norm": "clip",
    "training.learning_rate": "lr",
    "training.learning_rate_warmup_steps": "warmup",
    "training.min_learning_rate": "min-lr",
    "training.learning_rate_decay_steps": "decay",
    "training.num_steps": "steps",
    "training.num_warmup_steps": "untimed",
    "training.schedule": "lr-schedule",
    "training.seed": "seed",
    "training.weight_decay": "wd",
}
"""What people say of the keys that are swept most. Others are called by the last part of their key."""

OF_LAYOUTS = LAYOUT_KEYS | KNOB.keys()
"""What a layout's name says; also by the knob's name alone, as rows of results call it."""

NOT_MEASURED = {"cluster", "mixed", "watch", "model.name", "data.cache_dir", "trainer.log"}
"""Parts of an experiment that do not change a measurement, as for its fingerprint."""

REGULAR_EXPRESSION = "trainer.metrics.line"
"""A key whose values nobody can read in a name: labels give their numbers."""

BATCH = "global_batch_size"
SMALLEST_PLAIN, LARGEST_PLAIN = 0.01, 1000.0
"""Other numbers are written with an exponent, such as 3.4e-3."""

LONGEST_OF_A_LIST = 30
"""Characters of the words by which a label tells a list from others; beyond, it is called by its number."""

LONGEST_IN_FOLDER = 120
"""Characters of a folder's name, which may have 255, for values of any length."""


class Labels:
    """The labels of the trials of one sweep.

    Attributes:
        names: of every key beside the layout that labels mention, its short name.
        heading: of the column of labels in a table.
        names_layouts: True if labels say layouts, because these differ or nothing else does; scripts have none.
    """

    def __init__(
        self, points: Sequence[tuple[Mapping[str, Value], Experiment | None]], keys: Iterable[str] | None = None
    ) -> None:
        """Find out what tells the points apart.

        Args:
            keys: what labels say beside layouts, where that is already known.
        """
        self._experiments = [experiment for _, experiment in points if experiment]
        self._impossible = [point for point, experiment in points if experiment is None]
        self._layouts = {experiment.label for experiment in self._experiments}
        telling = self._telling_keys(points) if keys is None else list(keys)
        stated_keys = {key for point, _ in points for key in point}
        # A search's first trial is called by what its point sets, as it will be when the second comes.
        is_first = keys is None and not telling and len(self._layouts) <= 1
        self.names = short_names(sorted(stated_keys - OF_LAYOUTS) if is_first else telling)
        differ = len(self._layouts) > 1
        self._says_batch = bool(self.names) and differ and len(set(map(_without_batch, self._experiments))) == 1
        says_first = is_first and bool(stated_keys & OF_LAYOUTS)
        self._says_whole = not self.names or (differ and not self._says_batch) or says_first
        has_layouts = any(not each.trainer.is_script for each in self._experiments)
        self.names_layouts = self._says_whole and has_layouts
        self.heading = "trial" if self.names or not has_layouts else "layout"
        self._texts = {
            key: (_numbers_of if key == REGULAR_EXPRESSION else _distinct_texts)(self._values(key))
            for key in self.names
        }

    def of(self, point: Mapping[str, Value], experiment: Experiment | None, *, leave_out: str = "") -> str:
        """The label of a trial, perhaps without one key, such as the seed; of an impossible point, its values."""
        of_layout = {key: value for key, value in point.items() if key in OF_LAYOUTS}
        layout = self._layout(experiment) if experiment else label_of_point(of_layout)
        return " ".join(filter(None, (layout, *self._words(point, experiment, leave_out))))

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Every short name, with the key that it stands for."""
        batch = ((SHORT_NAMES[BATCH_KEY], BATCH_KEY),) if self._says_batch else ()
        return (*batch, *((name, key) for key, name in self.names.items() if key not in (name, PARAMS + name)))

    def _words(self, point: Mapping[str, Value], experiment: Experiment | None, leave_out: str) -> Iterator[str]:
        for key, name in self.names.items():
            if key != leave_out and (experiment or key in point):
                value = dotted_value(experiment, key) if experiment else point[key]
                yield f"{name}={self._texts[key].get(str(value)) or _short(value)}"

    def _layout(self, experiment: Experiment) -> str:
        if self._says_batch:
            return f"{SHORT_NAMES[BATCH_KEY]}{experiment.batch.global_batch_size}"
        return experiment.label if self._says_whole else ""

    def _telling_keys(self, points: Sequence[tuple[Mapping[str, Value], Experiment | None]]) -> list[str]:
        """The keys beside the layout whose values differ: those that points set, and others where these do not do."""
        stated = sorted({key for point, _ in points for key in point if key not in OF_LAYOUTS})
        keys = [key for key in stated if len(set(map(str, self._values(key)))) > 1]
        for key in _differing_keys(self._experiments):
            if key not in keys and self._is_needed(key, keys):
                keys.append(key)
        return sorted(keys, key=lambda key: (key == "training.seed", key))

    def _is_needed(self, key: str, keys: Sequence[str]) -> bool:
        """True if some trials that are alike in all of `keys` differ in this one."""
        seen: dict[tuple[str, ...], set[str]] = {}
        for experiment in self._experiments:
            alike = (experiment.label, *(str(dotted_value(experiment, other)) for other in keys))
            seen.setdefault(alike, set()).add(str(dotted_value(experiment, key)))
        return any(len(values) > 1 for values in seen.values())

    def _values(self, key: str) -> list[object]:
        impossible = [point[key] for point in self._impossible if key in point]
        return [*(_part_at(experiment, key) for experiment in self._experiments), *impossible]


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """A name for each key; where two would be called the same, by their whole keys."""
    named = {key: SHORT_NAMES.get(key, key.rsplit(".", 1)[-1]) for key in keys}
    return {key: key if list(named.values()).count(name) > 1 else name for key, name in named.items()}


def distinct_names(labels: Sequence[str]) -> list[str]:
    """The labels, later namesakes numbered: as of other code, or of bars that would become one."""
    seen: Counter[str] = Counter()
    names = []
    for label in labels:
        seen[label] += 1
        names.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return names


def name_of_point(point: Mapping[str, Value]) -> str:
    """Return, for the name of a folder, the values that a point sets beside its layout; empty if there are none."""
    keys = sorted(key for key in point if key not in OF_LAYOUTS)
    names = short_names(keys)
    text = "-".join(f"{names[key]}={_short(point[key])}" for key in keys)
    return re.sub(r"[^\w=.,+-]", "_", text)[:LONGEST_IN_FOLDER]


def _without_batch(experiment: Experiment) -> tuple[tuple[str, Any], ...]:
    knobs = labelled_values(experiment.parallel, experiment.batch, experiment.layers_per_stage)
    return tuple((knob.name, value) for knob, value in knobs if knob.name != BATCH)


def _differing_keys(experiments: Sequence[Experiment]) -> Iterator[str]:
    """Keys beside the layout in which experiments differ. Only groups that differ are taken apart, to save time."""
    for group in ("model", "precision", "data", "training", "checkpoint", "trainer"):
        parts = {id(part): part for part in (getattr(each, group) for each in experiments)}
        first, *others = parts.values() or (None,)
        if any(part != first for part in others):
            yield from _differing_names([part.model_dump(mode="json") for part in parts.values()], group)


def _differing_names(trees: Sequence[Any], prefix: str) -> Iterator[str]:
    if not all(isinstance(tree, dict) for tree in trees):
        if any(tree != trees[0] for tree in trees):
            yield prefix
        return
    for key in dict.fromkeys(key for tree in trees for key in tree):
        name = f"{prefix}.{key}"
        if name not in NOT_MEASURED and name not in OF_LAYOUTS:
            yield from _differing_names([tree.get(key) for tree in trees], name)


def dotted_value(experiment: Experiment, key: str) -> Value:
    """An experiment's value of a dotted key; None where it has none, as of a key that only names the place."""
    found = _part_at(experiment, key)
    return found if isinstance(found, bool | int | float | str) or found is None else str(found)


def whole_point(point: Mapping[str, Value], experiment: Experiment | None, keys: Iterable[str]) -> dict[str, Value]:
    """The point with a value of each of the keys: where the point leaves one, the configuration's."""
    left = {key: dotted_value(experiment, key) for key in keys if key not in point} if experiment else {}
    return {**point, **left}


def _part_at(experiment: Experiment, key: str) -> object:
    found: Any = experiment
    while key:
        if isinstance(found, Mapping) and (path := path_in(found, key)):
            return reduce(getitem, path, found)  # keys may have dots themselves
        name, _, key = key.partition(".")
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return found


def _distinct_texts(values: Iterable[object]) -> dict[str, str]:
    """A text for every value, as short as lets all of them be told apart."""
    distinct = {str(value): value for value in values}
    if any(isinstance(value, list | tuple) for value in distinct.values()):
        return _texts_of_lists(distinct)
    short = {exact: _short(value) for exact, value in distinct.items()}
    shown = Counter(short.values())
    return {exact: text if shown[text] == 1 else exact for exact, text in short.items()}


def _texts_of_lists(distinct: Mapping[str, object]) -> dict[str, str]:
    """The words that not all have, such as `new.py`; where these do not tell them apart in short, `#1`, `#2`."""
    words = {
        exact: list(map(str, value if isinstance(value, list | tuple) else [value]))
        for exact, value in distinct.items()
    }
    common = set.intersection(*map(set, words.values()))
    texts = {exact: ",".join(word for word in own if word not in common) for exact, own in words.items()}
    is_short = all(0 < len(text) <= LONGEST_OF_A_LIST for text in texts.values())
    if is_short and len(set(texts.values())) == len(texts):
        return texts
    return _numbers_of(distinct)


def _numbers_of(values: Iterable[object]) -> dict[str, str]:
    """A number for every value, in their order; none for what is not there."""
    exact = dict.fromkeys(str(value) for value in values if value is not None)
    return {"None": "none"} | {value: f"#{number}" for number, value in enumerate(exact, 1)}


def _short(value: object) -> str:
    if isinstance(value, float):
        exact, rounded = f"{value:.3e}", f"{value:.2e}"  # 0.9995 is no 1
        mantissa, _, exponent = (exact if float(exact) == value else rounded).partition("e")
        is_plain = not value or SMALLEST_PLAIN <= abs(value) < LARGEST_PLAIN
        return f"{float(f'{mantissa}e{exponent}'):g}" if is_plain else f"{float(mantissa):g}e{int(exponent)}"
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "none"}[value]
    return str(value).rsplit("/", 1)[-1]
