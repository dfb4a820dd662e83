"""Columns of a table of configurations: those that are read, and what a row may not say in any other. Their names are
in `columns.yaml`.

Prices come from columns alone, never from free text. A row that says in a column that its price is another one, and
that nothing reads, is refused: priced without it, it would be priced as something else.
"""

from __future__ import annotations

import re

from conf.errors import ConfigError
from conf.folders import package_content
from sweeps.table.cells import Row, text_of

TREE = package_content("columns.yaml", "sweeps.table")
LISTS = ("required", "device", "optional", "measured", "unread", "by_turns", "usually_one")
REQUIRED_COLUMNS, DEVICE_COLUMNS, OPTIONAL_COLUMNS, MEASURED_COLUMNS, UNREAD_COLUMNS, BY_TURNS, USUALLY_ONE = (
    tuple(TREE[name].split()) for name in LISTS
)
NAMED_OTHERWISE = {other: known for known, others in TREE["named_otherwise"].items() for other in others.split()}
MODEL_COLUMNS: dict[str, str] = TREE["of_keys"]
NOTHING = ("", "0", "no", "none", "false")


def require_read(row: Row) -> None:
    """Raises ConfigError for a row that says something about its price which nothing reads, or too little for one."""
    is_whole = _says_something(row, "dense_layers") and text_of(row, "pp").removesuffix(".0") == "1"
    for column in UNREAD_COLUMNS:
        if _says_something(row, column) and not (is_whole and column in BY_TURNS):
            remedy = "Leave the cell empty only if it does not apply."
            if column in BY_TURNS:
                remedy = "Leave the row out; with pp = 1 fill in dense_layers."
            raise ConfigError(column, text_of(row, column), "changes the price, and is not modelled", remedy)
    for column, known in NAMED_OTHERWISE.items():
        if _says_something(row, column) and not text_of(row, known):
            raise ConfigError(column, text_of(row, column), f"is called {known} here", "Rename the column.")
    for part in TREE["parts_of_models"]:
        column = part["column"]
        if not text_of(row, column) and re.search(part["names"], text_of(row, "model").lower()):
            problem = f"has {part['part']}, and {column} is empty"
            raise ConfigError("model", text_of(row, "model"), problem, f"Fill in {column}; `no` if it has none.")


def _says_something(row: Row, column: str) -> bool:
    plain = (*NOTHING, "1") if NAMED_OTHERWISE.get(column) in USUALLY_ONE else NOTHING
    return text_of(row, column).lower().removesuffix(".0") not in plain
