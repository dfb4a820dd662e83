"""Models that people name and whose sizes no file of theirs says: by the name alone, and marked so.

Source: config.json of each model at huggingface.co.
"""

from __future__ import annotations

import re

from conf.folders import package_content
from diagnose.readers.columns.words import words_of
from diagnose.readers.said import Columns
from diagnose.runs import Fact, SaidBy

NAMES = words_of("models")["names"]
FIELDS = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "tied_embeddings", "gated_mlp", "head_dim")
OTHERS = re.compile(r"(?:^|-)(?:vl|vision|omni|audio|vla|next|moe)(?:-|$)|mixtral|a\d+b(?:-|$)")
"""Parts of the names of models that have more than a decoder of dense layers."""
ROWS = tuple(
    (re.compile(rf"(?:^|-|[a-z](?=llama))({pattern})(?![\d.a-z]|-\d+b)"), sizes.split())
    for pattern, sizes in package_content("models.yaml", __package__).items()
)


def fill_named(columns: Columns) -> None:
    """Put the sizes of the model that a run names, where nobody says them and those that are said are the model's."""
    stated = {column: fact.value for column, fact in columns.run.columns.items() if fact.said_by is not SaidBy.ASSUMED}
    for fact in filter(None, (columns.settings.fact(name) for name in NAMES)):
        name = re.sub(r"[^a-z0-9]+", "-", fact.value.strip("'\"").lower())
        found = next(((match[1], sizes) for row, sizes in ROWS if (match := row.search(name))), None)
        if found is None or OTHERS.search(name):
            continue
        compared = zip(FIELDS[:5], found[1], strict=False)  # not vocabularies, which are padded
        if any(stated.get(column, size) != size for column, size in compared):
            return
        note = f"{found[0]}, by its name alone"
        for column, size in zip(FIELDS, found[1], strict=False):
            known = columns.run.columns.get(column)
            if known is None or known.said_by is SaidBy.ASSUMED:
                columns.run.columns[column] = Fact(size, SaidBy.ASSUMED, fact.at, note)
        return
