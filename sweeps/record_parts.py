"""The parts that the trials of a record share: each different one is written once, and made once when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from conf.plan.experiment import Experiment
from train_core.costs import Estimate


def json_text(content: object) -> str:
    """JSON in one line; a loss that diverged stays NaN."""
    return to_json(content, inf_nan_mode="constants").decode()


class PartWriter:
    """Gives different parts numbers, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        """The parts as JSON."""
        return list(self._numbers)

    def experiment(self, experiment: Experiment) -> int:
        fields = from_json(experiment.model_dump_json())
        return self._number_of({name: self._number_of(value) for name, value in fields.items()})

    def estimate(self, estimate: Estimate) -> int:
        fields = from_json(estimate.model_dump_json())
        return self._number_of(fields | {"stages": [self._number_of(stage) for stage in fields["stages"]]})

    def _number_of(self, content: object) -> int:
        return self._numbers.setdefault(json_text(content), len(self._numbers))


class PartReader:
    """Makes each part once, however many trials name it.

    What is no such part raises a ValueError, LookupError, TypeError or AttributeError.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._made: dict[tuple[str, int], Any] = {}

    def experiment(self, number: int) -> Experiment:
        if ("experiment", number) not in self._made:
            fields = {name: self._group(name, part) for name, part in self._parts[number].items()}
            self._made["experiment", number] = Experiment.model_validate(fields)
        return self._made["experiment", number]

    def estimate(self, number: int) -> Estimate:
        if ("estimate", number) not in self._made:
            content = self._parts[number]
            stages = [self._parts[stage] for stage in content["stages"]]
            self._made["estimate", number] = Estimate.model_validate_json(json_text(content | {"stages": stages}))
        return self._made["estimate", number]

    def _group(self, name: str, number: int) -> Any:
        """One group of an experiment, such as its model."""
        if (name, number) not in self._made:
            self._made[name, number] = _adapter(name).validate_json(json_text(self._parts[number]))
        return self._made[name, number]


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """Return the reader of a group of an experiment; a name that is no group's raises a KeyError."""
    field = Experiment.model_fields[name]
    group: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(group)
