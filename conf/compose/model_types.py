"""The types of models that a Hugging Face config.json may name, of `model_types.yaml`: which keys mean what in each."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, field_validator

from conf.folders import package_content
from conf.types.model_spec import Part, Scores
from conf.types.schema import Family, Frozen

Names = Annotated[tuple[str, ...], Field(strict=False)]
OF_A_FIELD = ("qkv_bias", "qk_norm")
"""Parts that a model has a key of its own for."""


class ModelType(Frozen):
    """One type. Keys of a file stand here by the names that Llama's has, but in `names`.

    Attributes:
        family: as `ModelSpec.family`; `gated` and `scores` likewise, `scores` null where a type has no experts.
        latent: queries, keys and values are made from short vectors.
        full_every: where a file names a window, every so many layers one sees all tokens; 0: none; null: windows are
            not read.
        linear_but_every: every so many layers one has softmax attention, and the others linear one; null: all have.
        caps: scores and logits may be capped, and scores be divided by another root than that of the head size.
        fits_window: sequences are no longer than the window unless model.seq_length says so.
        text: the type of the part that reads text, in `text_config`, where this one has others beside it.
        names: a type's own names of a key, in the order in which they count; none where it has no such key.
        absent: what a file means that does not name a key, where that is not the default of `model_from`.
        only: keys of which these values alone are understood; an absent key means the first one.
        parts: parts of the model by the keys that ask for them, or true.
        known: keys that change nothing of what is priced or trained.
        left_out: keys that change the model, and are told and not priced, with the value that changes nothing.
    """

    family: Family = "llama"
    gated: bool = True
    scores: Scores | None = None
    latent: bool = False
    full_every: int | None = None
    linear_but_every: int | None = None
    caps: bool = False
    fits_window: bool = False
    text: str | None = None
    names: dict[str, Names] = Field(default_factory=dict)
    absent: dict[str, Any] = Field(default_factory=dict)
    only: dict[str, Annotated[tuple[Any, ...], Field(strict=False)]] = Field(default_factory=dict)
    parts: dict[Part | Literal["qkv_bias", "qk_norm"], bool | str | Names] = Field(default_factory=dict)
    known: Names = ()
    left_out: dict[str, Any] = Field(default_factory=dict)

    @field_validator("known", mode="before")
    @classmethod
    def _lists_are_one(cls, value: list[Any]) -> list[str]:
        return list(chain.from_iterable(each if isinstance(each, list) else [each] for each in value))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that it knows beside those that every model has."""
        of_parts = chain.from_iterable(keys if isinstance(keys, tuple) else [keys] for keys in self.parts.values())
        return (*self.known, *self.only, *self.left_out, *(key for key in of_parts if isinstance(key, str)))


@cache
def model_types() -> dict[str, ModelType]:
    """All types by their names in a file."""
    table = package_content("model_types.yaml")
    whole = {name: _with_like(table, name) for name in table if name != "base"}
    return TypeAdapter(dict[str, ModelType]).validate_python(whole)


@cache
def all_keys() -> frozenset[str]:
    """The keys that some type knows: where another's file says that it has no such thing, nothing is wrong."""
    return frozenset(chain.from_iterable(kind.keys for kind in model_types().values()))


def _with_like(table: dict[str, Any], name: str) -> dict[str, Any]:
    """The entry of a type, with that of the one that it is like: mappings and lists of both together."""
    own = dict(table[name])
    base = _with_like(table, own.pop("like")) if "like" in own else {}
    for key, value in own.items():
        known = base.get(key)
        base[key] = known | value if isinstance(known, dict) else known + value if isinstance(known, list) else value
    return base
