"""Memory that plans must leave free: `6GiB` of every device, or `10%` of it."""

from __future__ import annotations

import re

from conf.cluster_spec import DeviceSpec
from conf.errors import ConfigError
from conf.units import GIBIBYTE, MEBIBYTE

UNITS = {"GiB": GIBIBYTE, "MiB": MEBIBYTE, "GB": 10**9, "MB": 10**6}
AMOUNT = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(UNITS)}|%)")


def headroom_bytes(text: str, device: DeviceSpec) -> int:
    """Return how many bytes of the device's memory have to stay free.

    Raises:
        ConfigError: the text is no amount of memory, or all that the device has.
    """
    found = AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ConfigError("headroom", text, "is no amount of memory", "Write 6GiB, 6GB, 500MiB or 10%.")
    number, unit = float(found[1]), found[2]
    amount = int(number / 100 * device.memory_bytes) if unit == "%" else int(number * UNITS[unit])
    if amount >= device.memory_bytes:
        problem = f"leaves nothing of the {device.memory_bytes / GIBIBYTE:.1f} GiB of {device.name}"
        raise ConfigError("headroom", text, problem, "Leave less free.")
    return amount
