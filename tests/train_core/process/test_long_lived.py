from __future__ import annotations

import subprocess
import sys

import pytest

FRESH = """
import gc
from train_core.process.long_lived import importing_torch

with importing_torch():
    assert not gc.isenabled()
assert gc.isenabled()
assert gc.get_freeze_count() > 0
"""
ALREADY_IMPORTED = """
import gc
import torch
from train_core.process.long_lived import importing_torch

with importing_torch():
    assert gc.isenabled()
assert gc.get_freeze_count() == 0
"""


# In processes of their own, as what another test froze may be let go at any moment.
@pytest.mark.parametrize("program", [FRESH, ALREADY_IMPORTED])
def test_a_process_looks_for_no_garbage_while_it_imports_torch_for_the_first_time_and_freezes_what_came(
    program: str,
) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
