"""The energy of a GCD of an AMD card.

A card of two GCDs (MI250, MI250X) has one counter, which AMD SMI shows at the first of them, while the second shows
zero. Each GCD gets an equal part of its card's energy. Source: github.com/ml-energy/zeus, pull request 203.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from conf.units import MICRO
from train_core.watch.energy.counter import EnergyCounter


def amd_counter(pci_address: str) -> EnergyCounter | None:
    """The counter of the GCD at this address on the PCI bus, such as `0000:c1:00.0`; None where there is none."""
    amdsmi, handles = amd_gpus()
    counting = {address for address, handle in handles.items() if _counts(amdsmi, handle)}
    card = _card_of(pci_address.lower(), counting, sorted(handles))
    if not card:
        return None
    read = partial(_joules, amdsmi, handles[card[0]])
    return EnergyCounter(pci_address.lower(), "AMD SMI", "device", read, share=1 / len(card))


def amd_gpus() -> tuple[Any, dict[str, Any]]:
    """AMD SMI, and its handle of every GCD by the address on the PCI bus; none where it is not installed."""
    try:
        amdsmi = importlib.import_module("amdsmi")  # comes with ROCm, and not from a package index
    except (ImportError, OSError, KeyError):  # it looks for its library when it is imported
        return None, {}
    try:
        amdsmi.amdsmi_init()
        every = amdsmi.amdsmi_get_processor_handles()
        return amdsmi, {str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower(): handle for handle in every}
    except amdsmi.AmdSmiException:
        return None, {}


def _card_of(address: str, counting: Collection[str], every: Sequence[str]) -> list[str]:
    """The GCDs of a card, first the one that counts: those without a counter belong to the one before them."""
    cards: list[list[str]] = []
    for each in every:
        if each in counting:
            cards.append([each])
        elif cards:
            cards[-1].append(each)
    return next((card for card in cards if address in card), [])


def _counts(amdsmi: Any, handle: Any) -> bool:
    return bool(_joules(amdsmi, handle))


def _joules(amdsmi: Any, handle: Any) -> float | None:
    try:
        told = amdsmi.amdsmi_get_energy_count(handle)
        # The accumulator was called `power` before ROCm 6.2.1; the resolution is in microjoules.
        ticks = told["energy_accumulator"] if "energy_accumulator" in told else told["power"]
        return float(ticks) * float(told["counter_resolution"]) * MICRO
    except (amdsmi.AmdSmiException, ValueError):  # a GCD without a counter may also show the text N/A
        return None
