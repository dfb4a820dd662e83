from __future__ import annotations

import gc
import subprocess
import sys

import torch

from train_core.process.long_lived import importing_torch

FRESH = """
import gc
from train_core.process.long_lived import importing_torch

with importing_torch():
    assert not gc.isenabled()
assert gc.isenabled()
assert gc.get_freeze_count() > 0
"""


def test_a_fresh_process_looks_for_no_garbage_while_it_imports_torch_and_freezes_what_came() -> None:
    subprocess.run([sys.executable, "-c", FRESH], check=True, timeout=60)


def test_where_torch_is_already_imported_nothing_is_frozen() -> None:
    assert torch.__version__
    frozen = gc.get_freeze_count()
    with importing_torch():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
