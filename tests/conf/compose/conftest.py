"""What is composed here, Hydra composes whole."""

from __future__ import annotations

import hydra
import pytest

from tests.composed import compose_with_hydra


@pytest.fixture(autouse=True)
def whole_compositions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydra, "compose", compose_with_hydra)
