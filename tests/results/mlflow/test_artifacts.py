"""What MLflow gets of a job's script: its variables by name alone."""

from __future__ import annotations

import shlex

import pytest

from conf.credentials import HIDDEN
from results.mlflow.run_content import EXPORTED


@pytest.mark.parametrize("value", ["plain", "two words", "it's", 'a "b" $c', "two\nlines"])
def test_what_a_variable_is_set_to_is_hidden_however_it_is_quoted(value: str) -> None:
    script = f"export PYTHONPATH=/code\nexport TOKEN={shlex.quote(value)}\nsrun program\n"
    hidden = EXPORTED.sub(rf"\1{HIDDEN}", script)
    assert hidden == "export PYTHONPATH=/code\nexport TOKEN=***\nsrun program\n"
