"""The HTML report in a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.results.conftest import WriteSweep, report_of
from tests.results.report.test_report import HOW, PLAN, PROXY_TRIALS, PUBLISHED

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_SECONDS = 280


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="module", autouse=True)
def browser() -> None:
    """A page that no browser has opened is not tested: continuous integration installs one, a person is told."""
    if find_browser():
        return
    if os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
        install = "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium"
        subprocess.run(["sh", "-c", install], capture_output=True, timeout=INSTALL_SECONDS, check=True)
    if not find_browser():
        pytest.skip("no Chromium on this machine: install it with the system's packages")


WATCH = """<script>
window.troubles = [];
addEventListener("error", (event) => window.troubles.push(String(event.message)));
addEventListener("unhandledrejection", (event) => window.troubles.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => window.troubles.push(event.blockedURI));
for (const level of ["error", "warn"]) console[level] = (...words) => window.troubles.push(words.join(" "));
</script>
"""
REPORT = """<script>
addEventListener("load", () => setTimeout(() => {
  const cells = (n) => document.querySelectorAll(`#table-measured tbody td:nth-child(${n})`);
  const column = (n) => [...cells(n)].map((cell) => cell.textContent);
  const click = (n) => document.querySelector(`#table-measured th:nth-child(${n}) button`).click();
  const seen = {};
  click(6); seen.descending = column(6);
  click(6); seen.ascending = column(6);
  click(2); seen.names = column(2);
  seen.plots = [...document.querySelectorAll(".plot")].map((p) => [p.id, p.querySelectorAll("svg.main-svg").length]);
  seen.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.width = document.documentElement.clientWidth;
  seen.background = getComputedStyle(document.body).backgroundColor;
  seen.troubles = window.troubles;
  const place = document.createElement("pre");
  place.id = "seen";
  place.textContent = JSON.stringify(seen);
  document.body.append(place);
}, 500));
</script>
"""


def visit(page: Path, *flags: str) -> dict[str, Any]:
    """What a script inside a copy of the page saw."""
    watched = page.with_name("watched.html")
    text = page.read_text().replace("<head>", "<head>\n" + WATCH, 1)
    watched.write_text(text.replace("</body>", REPORT + "</body>"))
    command = [str(find_browser()), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [
        "--no-first-run",
        "--disable-component-update",
        "--hide-scrollbars",
        f"--user-data-dir={page.parent / 'browser'}",
        *flags,
    ]
    command += ["--virtual-time-budget=10000", "--dump-dom", watched.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    return seen


@pytest.fixture
def page(write_sweep: WriteSweep) -> Path:
    return report_of(write_sweep(PROXY_TRIALS, HOW, plan=PLAN, published=PUBLISHED)).html


def test_the_page_works_without_errors_or_requests_and_its_tables_sort(page: Path) -> None:
    seen = visit(page, "--window-size=1280,900")
    assert seen["troubles"] == []
    assert seen["resources"] == []
    assert seen["descending"] == ["190", "150", "120", "100"]
    assert seen["ascending"] == ["100", "120", "150", "190"]
    assert seen["names"] == [
        "tp1-pp1-dp1-mb1-gb8 (baseline)",
        "tp1-pp1-dp2-mb1-gb8-full",
        "tp1-pp1-dp2-mb1-gb16",
        "tp2-pp1-dp1-mb1-gb8",
    ]
    assert {name for name, drawn in seen["plots"] if drawn} == {
        "plot-measured-rate",
        "plot-loss",
        "plot-step-terms",
        "plot-memory",
    }


@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_itself_never_scrolls_sideways(page: Path, width: int) -> None:
    seen = visit(page, f"--window-size={width},900")
    assert seen["width"] == width
    assert seen["overflow"] == 0


def test_it_follows_the_dark_theme_of_the_system(page: Path) -> None:
    light = visit(page)["background"]
    dark = visit(page, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")["background"]
    assert (light, dark) == ("rgb(246, 247, 249)", "rgb(18, 22, 28)")
