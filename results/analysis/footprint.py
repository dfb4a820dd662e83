"""The energy, money and carbon that a training takes, from the time of its step.

Energy is counted, where devices had counters, or the declared watts of the devices times the time. Money and carbon are
always declared prices and declared emissions, times that. What was measured and what is only predicted or declared is
said of every figure, and none of them holds two kinds.

All that is said of costs anywhere follows one rule, which is here:

- Devices are those that are kept. A measurement knows how many those were, and ranks that took turns on one device keep
  one; a prediction gives each rank a device of its own.
- A job over several types of devices pays for all of them: their price and their watts are the means over its devices,
  and there is no price where one type has none.
- Nothing is added for failures, checkpoints or a job's start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from conf.plan.setup import Setup
from conf.types.cluster_spec import SiteSpec
from conf.units import JOULES_PER_KWH, SECONDS_PER_HOUR
from costs import Estimate
from train_core.trial.measurement import Performance

GRAMS_PER_TONNE = 1e6
HOURS_PER_DAY = 24
EnergyIs = Literal["counted", "declared watts"]
TimeIs = Literal["measured", "predicted", "published"]


@dataclass(frozen=True)
class Footprint:
    """The energy, device time and money that each token takes.

    Attributes:
        energy_is: from counters of the devices, or the devices' declared watts all the time.
        time_is: whether the time of a step was measured, is predicted, or follows from a published rate.
        num_devices: that are kept.
        joules_per_token: of the devices alone; hosts, network and cooling are not in it.
        device_seconds_per_token: devices that are kept, times how long.
        price_per_hour: dollars for an hour of one device; None where no price is declared.
        site: what electricity means there; None where the devices stand at several sites.
    """

    energy_is: EnergyIs
    time_is: TimeIs
    num_devices: int
    joules_per_token: float
    device_seconds_per_token: float
    price_per_hour: float | None
    site: SiteSpec | None

    def days(self, tokens: float) -> float:
        return self.device_hours(tokens) / self.num_devices / HOURS_PER_DAY

    def device_hours(self, tokens: float) -> float:
        return self.device_seconds_per_token * tokens / SECONDS_PER_HOUR

    def kwh(self, tokens: float) -> float:
        """Return the kilowatt hours of the devices alone."""
        return self.joules_per_token * tokens / JOULES_PER_KWH

    def site_kwh(self, tokens: float) -> float | None:
        """Return the kilowatt hours with what the site adds; None if its PUE is not declared."""
        factor = self.site.power_usage_effectiveness if self.site else None
        return None if factor is None else factor * self.kwh(tokens)

    def dollars(self, tokens: float) -> float | None:
        return None if self.price_per_hour is None else self.price_per_hour * self.device_hours(tokens)

    def tonnes_co2(self, tokens: float) -> float | None:
        """Return the tonnes of the site, of the devices if its PUE is not declared; None if the grid is not."""
        grams = self.site.grams_co2(self.kwh(tokens)) if self.site else None
        return None if grams is None else grams / GRAMS_PER_TONNE


def counted_footprint(setup: Setup, measured: Performance) -> Footprint | None:
    """Return the footprint by the counters of a trial's devices; None if it had none."""
    joules = measured.energy_joules_per_token
    if joules is None:
        return None
    return replace(declared_footprint(setup, measured), energy_is="counted", joules_per_token=joules)


def declared_footprint(setup: Setup, step: Performance | Estimate) -> Footprint:
    """Return the footprint by the devices' declared watts, all the time of a step that was measured or is predicted."""
    time_is: TimeIs = "measured" if isinstance(step, Performance) else "predicted"
    devices = step.num_devices if isinstance(step, Performance) else setup.parallel.world_size
    seconds = devices / step.tokens_per_second
    sites = {block.cluster.site for block in setup.blocks}
    site = next(iter(sites)) if len(sites) == 1 else None
    joules = setup.watts * devices / step.tokens_per_second
    return Footprint("declared watts", time_is, devices, joules, seconds, setup.price_per_hour, site)


def best_known_footprint(setup: Setup, measured: Performance) -> Footprint:
    return counted_footprint(setup, measured) or declared_footprint(setup, measured)
