"""The speed of the search: strategies a second, whole searches, the command from start to table, memory.

python -m benchmarks search

Times are wall time on the machine that runs this, the best of a few runs where the search alone is timed and the median
where a command is: whatever else runs there counts against them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from benchmarks.target import Target, at_least, at_most, figure
from conf.compose.load import compose, load, load_cluster
from conf.compose.settings import Settings
from conf.overrides import Overrides
from conf.units import MEBIBYTE
from costs import IMPLEMENTATIONS, estimate
from costs.price import price
from costs.setting import Setting
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.mixed import choose_mixed
from sweeps.planner.plans.blocks import blocks
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.strategy import strategies_of
from sweeps.planner.plans.whole_space import search_space
from sweeps.planner.request import search_request

Result = TypeVar("Result")
NUM_RUNS = 5
NUM_COMPARED = 10_000
BATCH = 1536
GPT_3 = ("model=gpt-175b", "cluster=selene", "precision=bf16", f"batch.global_batch_size={BATCH}")
OTHERS = {
    "Llama 3.1 405B, 512 H100": (("model=llama-3.1-405b", "cluster=dgx-h100", "precision=bf16"), 512, 1440),
    "BLOOM, 384 A100": (("model=bloom-176b", "cluster=jean-zay", "precision=bf16"), 384, 2048),
    "GPT 22B, 96 GCDs": (("model=gpt-22b", "cluster=frontier", "precision=bf16"), 96, 480),
}
MIXED = {
    "two types, 1,024 devices": (("selene", 512), ("dgx-h100", 512)),
    "three types, 1,024 devices": (("selene", 512), ("dgx-h100", 256), ("dgx-h200", 256)),
}
PEAK = (
    "import pathlib, sys; from cli.main import app\ntry: app()\nfinally: print(pathlib.Path('/proc/self/status')"
    ".read_text().partition('VmHWM:')[2].split()[0], file=sys.stderr)"
)
"""A run that says its peak in KiB as it ends. `ru_maxrss` would be that of the process which started it, if larger."""


def main() -> list[Target]:
    """Measure, and return every figure beside its target."""
    gpt_3 = space_of(GPT_3, 1024, BATCH)[1]
    found, seconds = _timing_of(lambda: search_space(gpt_3, 10))
    rate = found.num_strategies / seconds / 1e6
    command_seconds, peak = _command()
    return [
        at_least("million strategies a second, one core: GPT-3 175B, 1,024 A100", 1.0, rate),
        *_other_rates(),
        at_most(f"search of GPT-3 175B, 1,024 A100, {found.num_strategies:,} plans", 0.5, seconds, " s"),
        at_most("every number of nodes up to 10,240 H100: GPT-3 175B", 3.0, _every_number(), " s"),
        at_most("trisweep plan, from start to table", 1.2, command_seconds, " s", f"median of {NUM_RUNS}"),
        *(at_most(f"mixed: {name}", 5.0, _seconds_of_mixed(offers), " s") for name, offers in MIXED.items()),
        at_most("memory of trisweep plan", 500, peak, " MiB"),
        at_least(
            f"plans of {NUM_COMPARED:,} whose search price is their estimate, bit for bit", NUM_COMPARED, _num_equal()
        ),
    ]


def space_of(overrides: Sequence[str], world_size: int, global_batch_size: int) -> tuple[Settings, Space]:
    settings = load(overrides)
    setting = Setting(settings.model, settings.cluster, settings.precision.dtype, IMPLEMENTATIONS["trisweep"])
    return settings, Space(setting, world_size, global_batch_size)


def _other_rates() -> list[Target]:
    targets = []
    for name, described in OTHERS.items():
        space = space_of(*described)[1]
        found, seconds = _timing_of(lambda space=space: search_space(space, 10))  # type: ignore[misc]
        rate = found.num_strategies / seconds / 1e6
        targets.append(figure(f"the same: {name}", rate, "", f"{found.num_strategies:,} plans"))
    return targets


def _timing_of(function: Callable[[], Result]) -> tuple[Result, float]:
    """A result and the shortest time that it took."""
    times = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    # Whatever else runs on the machine can only make a time longer, so the shortest is nearest to the truth.
    return result, min(times)


def _every_number() -> float:
    """Seconds of `--devices all` on 1,280 nodes."""
    asked = compose(Overrides.parse([*GPT_3, "cluster=dgx-h100", "cluster.num_nodes=1280"]))
    return choose_plans(search_request(asked, devices="all").spaces, "time", Training(), 10).search_seconds


def _seconds_of_mixed(offers: Sequence[tuple[str, int]]) -> float:
    model = load(GPT_3).model
    trainer = IMPLEMENTATIONS["trisweep"]
    spaces = [Space(Setting(model, load_cluster(name), "bf16", trainer), number, BATCH) for name, number in offers]
    return choose_mixed(spaces, 10).search_seconds


def _command() -> tuple[float, float]:
    """Seconds of the command from its start to its end, and the most memory in MiB that it held."""
    arguments = ["plan", *GPT_3, "parallel.world_size=1024"]
    trisweep = Path(sys.executable).with_name("trisweep")
    times = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        subprocess.run([trisweep, *arguments], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    # The peak is measured in a run of its own, by the process itself as it ends.
    done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True)
    # Linux tells ru_maxrss in KiB.
    return median(times), int(done.stderr.split()[-1]) * 1024 / MEBIBYTE


def _num_equal() -> int:
    """The number of random plans that have the same price, in every term and byte, in the search and in `estimate`."""
    rng = np.random.default_rng(0)
    described = [(GPT_3, 1024, BATCH), *OTHERS.values()]
    return sum(_num_equal_in(*space_of(*one), rng, NUM_COMPARED // len(described)) for one in described)


def _num_equal_in(settings: Settings, space: Space, rng: np.random.Generator, number: int) -> int:
    found = list(blocks(space))
    sizes = np.array([block.num_strategies for block in found], dtype=np.float64)
    equal = 0
    # Blocks differ in size by orders of magnitude; every plan of the space is equally likely to be drawn.
    drawn = zip(found, rng.multinomial(number, sizes / sizes.sum()).tolist(), strict=True)
    for block, count in ((block, count) for block, count in drawn if count):
        legal = np.flatnonzero(np.broadcast_to(block.legal, block.shape))
        plans = block.rows(rng.choice(legal, size=count))
        prices = price(space.setting, plans)
        strategies = strategies_of(plans, settings.model.num_layers, tensor_parallel_across_nodes=False)
        for row, strategy in enumerate(strategies):
            predicted = estimate(strategy.experiment(settings))
            terms = (getattr(prices.step, name)[row] == value for name, value in predicted.step_terms.by_term().items())
            same_bytes = prices.peak_memory_bytes[row] == predicted.peak_memory_bytes
            equal += bool(all(terms) and same_bytes and prices.step_seconds[row] == predicted.step_seconds)
    return equal
