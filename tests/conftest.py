"""What launcher and Slurm tests share: a sweep of exactly the points that a test names."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hydra
import pytest
from hypothesis import settings as hypothesis_settings

from conf.types.schema import Value
from conf.types.sites import TrackingSpec
from conf.types.sweep_spec import PointSet
from rates.plan import rates_plan
from rates.record import AttentionShape, Product, RatesPlan
from sweeps.points.plan import make_trials
from sweeps.trial import SweepRecord
from tests.composed import compose_choices_once, compose_tree, forget_own_files, load, load_cluster
from tests.covering import covering
from tests.messages import BOOK
from tests.rewritten_once import rewrite_all

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TESTS = Path(__file__).parent
BuildRecord = Callable[[Sequence[Mapping[str, Value]], Sequence[str]], SweepRecord]
TinyRatesPlan = Callable[[int], RatesPlan]
SHARED = {
    "slurm_cluster": "slurm",
    "worlds": "worlds",
    "finished": "finished",
    "empty_store": "mlflow",
    "priced": "benchmarks",
}
"""Fixtures that take long to set up, and the group of the files that use them: all tests of a group run on one worker.
Any other file is a group of its own, so that what its fixtures set up is set up once."""

FURTHER_CLUSTERS = {
    "slurm-2": [f"slurm/test_{of}.py" for of in ("allocation", "requeue", "stages")],
    "slurm-3": [f"slurm/test_{of}.py" for of in ("budget", "chaos", "pbs")],
}
"""Thirds of the tests on Slurm, which mostly wait, in groups with a cluster of their own. Where the environment names a
cluster, there is only that one."""


# Thousands of tests, and the libraries that they import, stay until the end. Looking through them for garbage as often
# as Python does took a third of the time in which every worker collects tests.
gc.set_threshold(100_000, *gc.get_threshold()[1:])

# `test_composed` holds them against Hydra's own, which a command uses that is started as a user starts it.
hydra.compose = compose_choices_once  # type: ignore[assignment]

# How long an example takes depends on what else the machine does, and is no property of the code.
hypothesis_settings.register_profile("any-machine", deadline=None)
hypothesis_settings.load_profile("any-machine")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what it puts into the background like this, every process below inherits it, and then no test could
    # interrupt the command that it started.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="run every test and every case, not few")
    parser.addoption("--rewrite-messages", action="store_true", help="record what users are told in messages.golden")
    parser.addoption("--fast", action="store_true", help="leave out what is slow or needs a cluster, server or browser")


def pytest_configure(config: pytest.Config) -> None:
    BOOK.rewrites = config.getoption("rewrite_messages")
    config.pluginmanager.register(BOOK, "messages")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before pytest-xdist starts workers."""
    if hasattr(session.config, "workerinput"):
        return
    forget_own_files()
    if session.config.getoption("numprocesses", None):
        rewrite_all(session.config, TESTS)


def pytest_collection(session: pytest.Session) -> None:
    """Say in the first lines what this machine lacks, and not only in the number of skipped tests at the end."""
    if hasattr(session.config, "workerinput"):
        return
    for words in _lacking():
        session.config.get_terminal_writer().line(f"Skipped here: {words}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say at the end, too, what was not run and how to have it: nobody scrolls back past thousands of tests."""
    for words in [] if config.getoption("fast") else _lacking():
        terminalreporter.write_line(f"Not run here: {words}")


def _lacking() -> Iterator[str]:
    can_install = os.geteuid() == 0 and shutil.which("apt-get") is not None
    if os.geteuid():
        yield "tests on a real Slurm cluster, which only root can start: give make test as root"
    elif not (shutil.which("slurmctld") or can_install):
        yield "tests on a real Slurm cluster: neither Slurm nor Debian's apt-get, to install it with, is here"
    if _find_chromium() is None and not can_install:
        yield "pages in a browser: install Chromium with the system's packages (as root on Debian, make test does)"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before pytest-xdist reads the groups. Workers take groups in this order: the long ones first, side by side.

    What comes last runs alone while the other workers have nothing left, so it should be short.
    """
    if config.getoption("fast"):
        _deselect(config, items, [item for item in items if _is_heavy(item)])
    if not config.getoption("all_cases"):
        _leave_out(config, items)
    group_of = _groups(items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of[item.path]))
    order = [*FURTHER_CLUSTERS, *SHARED.values()]
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))

    def place(item: pytest.Item) -> tuple[int, int]:
        group = group_of[item.path]
        return order.index(group) if group in order else len(order), -num_slow[item.path]

    items.sort(key=place)
    groups = list(dict.fromkeys(group_of[item.path] for item in items))
    dealt = dealt_groups(groups, getattr(config, "workerinput", {}).get("workercount", 0))
    items.sort(key=lambda item: dealt.index(group_of[item.path]))


def dealt_groups(longest_first: list[str], num_workers: int) -> list[str]:
    """The groups in the order in which workers get them, with the shortest in the second round.

    pytest-xdist gives each worker two groups at the start, so that the second waits until a long first one is over.
    """
    num_second = max(0, min(num_workers, len(longest_first) - num_workers))
    end = len(longest_first) - num_second
    return [*longest_first[:num_workers], *longest_first[end:], *longest_first[num_workers:end]]


def pytest_collection_finish() -> None:
    gc.freeze()


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What only `make test-all` runs: of functions with many cases most of them, and all that is `thorough`."""
    _deselect(config, items, [item for item in items if item.get_closest_marker("thorough")])
    grids: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and any(map(item.get_closest_marker, ("covering", "one_in"))):
            grids.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept = {id(item) for grid in grids.values() for item in _few_of(grid)}
    _deselect(config, items, [item for grid in grids.values() for item in grid if id(item) not in kept])


def _few_of(cases: Sequence[pytest.Function]) -> Sequence[pytest.Function]:
    """Of a function's cases those that bring a new pair of values, or every n-th where it is marked `one_in(n)`."""
    marker = cases[0].get_closest_marker("one_in")
    return covering(cases, options_of) if marker is None else cases[:: marker.args[0]]


def options_of(case: pytest.Function) -> dict[str, str]:
    """The values that a case of a grid was given, by name. Its indices would not do: pytest 9 counts cases there."""
    return {name: repr(value) for name, value in case.callspec.params.items()}


def _is_heavy(item: pytest.Item) -> bool:
    marked = any(item.get_closest_marker(name) for name in ("slow", "slurm"))
    return marked or bool({*SHARED, "browser"}.intersection(getattr(item, "fixturenames", ())))


def _deselect(config: pytest.Config, items: list[pytest.Item], unwanted: Sequence[pytest.Item]) -> None:
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        left_out = {id(item) for item in unwanted}
        items[:] = [item for item in items if id(item) not in left_out]


def _groups(items: Iterable[pytest.Item]) -> dict[Path, str]:
    """The group of each file: that of the costliest fixture which any of its tests uses, or its own."""
    groups: dict[Path, str] = {}
    for item in items:
        shared = (SHARED[name] for name in SHARED if name in getattr(item, "fixturenames", ()))
        group = next(shared, str(item.path.relative_to(TESTS)))
        if groups.get(item.path) not in SHARED.values():
            groups[item.path] = group
    if "SLURM_TEST_DIR" not in os.environ:
        own = {TESTS / file: cluster for cluster, files in FURTHER_CLUSTERS.items() for file in files}
        groups |= {path: own[path] for path in groups if path in own}
    return groups


class RecordOf(Protocol):
    """`record_of([{"key": value}, ...], "override", ...)`: a record of these points."""

    def __call__(self, points: Sequence[Mapping[str, Value]], *overrides: str) -> SweepRecord: ...


@pytest.fixture(scope="session")
def build_record() -> BuildRecord:
    """A record that measures the given points of the tiny model, composed with the overrides."""

    def build(points: Sequence[Mapping[str, Value]], overrides: Sequence[str]) -> SweepRecord:
        chosen = ["sweep=smoke", "training.num_steps=3", *overrides]
        settings, tree = load(chosen), compose_tree(chosen)
        assert settings.sweep is not None
        trials = make_trials(tree, PointSet(axes={}, points=tuple(map(dict, points)), baseline=dict(points[0])), {})
        return SweepRecord(
            name="test",
            mode="cluster",
            spec=settings.sweep,
            tracking=settings.tracking,
            git_sha="test",
            created=time.time(),
            plan=(),
            trials=tuple(trial.model_copy(update={"selected": True}) for trial in trials),
        )

    return build


@pytest.fixture(scope="session")
def tiny_rates_plan() -> TinyRatesPlan:
    """What `trisweep calibrate` measures on CPU ranks, at sizes that take little time and say little.

    They are large enough that waiting for a core on a busy machine does not make rates that are refused as impossible.
    """

    def build(world_size: int) -> RatesPlan:
        product = Product(rows=64, columns=64, depth=64)
        shape = AttentionShape(num_sequences=1, num_heads=2, seq_length=16, head_size=8)
        tiny = {
            "dtypes": ("fp32",),
            "large_products": (product,),
            "thin_products": (product,),
            "attention_shapes": (shape,),
            "memory_bytes": 2**20,
            "num_small_kernels": 3,
            "message_bytes": (64, 2**20),
            "num_samples": 2,
            "sample_seconds": 1e-4,
        }
        return rates_plan(load_cluster("local"), "cpu", world_size).model_copy(update=tiny)

    return build


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with MLflow's tables and nothing in them, to be copied, because making them takes seconds."""
    from results.mlflow.store import connect, database_path  # what stands above costs tests of other things nothing

    output_dir = tmp_path_factory.mktemp("empty")
    connect(TrackingSpec(kind="sqlite", uri=None, experiment="made-up"), output_dir).search_experiments()
    return database_path(output_dir)


@pytest.fixture(scope="session", autouse=True)
def code_is_compiled_once() -> None:
    """A submission keeps the code, compiled: a third of a second less for each after the first in this process."""
    from tests.compiled_once import take_what_is_compiled  # imports what tests of other things do not need

    take_what_is_compiled()


@pytest.fixture(autouse=True)
def no_cluster_of_others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that asks for no cluster finds none, though one that ran before it in this process has started one."""
    if "slurm_cluster" not in request.fixturenames:
        monkeypatch.delenv("SLURM_CONF", raising=False)


CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_SECONDS = 280
INSTALL_CHROMIUM = (
    "command -v chromium || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive"
    " apt-get install -y -qq --no-install-recommends chromium; }"
)
LOCK_OF_PACKAGES = "/tmp/slurm_test_clusters.lock"
"""That of tests/slurm/cluster.sh: apt-get of another worker would refuse beside it."""


def _find_chromium() -> str | None:
    return next((found for name in CHROMIUM_NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, which is installed where root and Debian's apt-get are, as Slurm is for its tests.

    Every module starts its own: while one runs, Playwright's event loop keeps others from running in this process.
    """
    found = _find_chromium()
    said = ""
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["flock", "-o", LOCK_OF_PACKAGES, "sh", "-c", INSTALL_CHROMIUM]
        said = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False).stderr
        found = _find_chromium()
    if found is None:
        pytest.skip(f"no Chromium on this machine: install it with the system's packages. {said[-200:]}".rstrip())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
