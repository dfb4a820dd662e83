"""Steps of a program that nobody here knows, by the patterns of `trainer.log` of a file of group trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from conf.errors import ConfigError
from conf.folders import options, path_of
from conf.nearest import nearest
from conf.yaml_text import file_text, yaml_content
from diagnose.readers.steps import read_number

USUAL = "command"
"""The file whose patterns are those of lines such as `step 3/10 loss 4.1023 time 0.210 s`."""
QUANTITIES = {
    "step_seconds": ("seconds", 1.0),
    "step_milliseconds": ("seconds", 1e-3),
    "tokens_per_second": ("tokens", 1.0),
    "tokens_per_second_per_device": ("tokens_per_device", 1.0),
    "samples_per_second": ("samples", 1.0),
    "steps_per_second": ("batches", 1.0),
    "tflops": ("tflops", 1.0),
    "memory_bytes": ("memory", 1.0),
    "memory_mib": ("memory", 2.0**20),
    "memory_gib": ("memory", 2.0**30),
    "loss": ("loss", 1.0),
}


@cache
def patterns_of(trainer: str) -> tuple[re.Pattern[str], ...]:
    """The patterns of a file of group trainer.

    Raises:
        ConfigError: there is no such file, or its programs print nothing.
    """
    path = path_of("trainer", trainer)
    if path is None:
        raise ConfigError("trainer", trainer, "is not known", nearest(trainer, options("trainer")))
    content = yaml_content(file_text(path), path, "trainer")
    log = content.get("log") if isinstance(content, dict) else None
    patterns = log.get("patterns") if isinstance(log, Mapping) else None
    if not isinstance(patterns, Mapping):
        raise ConfigError("trainer", trainer, "has no patterns of a log", "Choose one with log.patterns.")
    return tuple(re.compile(str(pattern)) for pattern in patterns.values())


def step_in(text: str, patterns: tuple[re.Pattern[str], ...]) -> tuple[int | None, dict[str, float]]:
    """The number of the step that a line tells of, if it does, and the figures that the patterns find."""
    step, found = None, dict[str, float]()
    for match in filter(None, (pattern.search(text) for pattern in patterns)):
        for name, said in match.groupdict().items():
            value = read_number(said, name) if said else None
            if value is None:
                continue
            if name == "step":
                step = int(value)
            elif name in QUANTITIES:
                quantity, scale = QUANTITIES[name]
                found.setdefault(quantity, value * scale)
    return step, found
