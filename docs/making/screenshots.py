"""python -m docs.making.screenshots REPORT makes the pictures of README and docs from a report, with Debian's Chromium.

Look at them before they are committed: no test can say whether a picture is a good one.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

PICTURES = Path(__file__).parent.parent
WIDTH, HEIGHT = 1280, 960
BELOW_TITLE = 24


@dataclass(frozen=True)
class Picture:
    """What is shown: a section of the report alone, or the first screen where `section` is empty."""

    scheme: Literal["light", "dark"] = "light"
    section: str = ""


SHOWN: Mapping[str, Picture] = {
    "report.png": Picture(),
    "report-dark.png": Picture(scheme="dark"),
    "report-predicted.png": Picture(section="predicted"),
    "report-timeline.png": Picture(section="timeline"),
}


def make_pictures(report: Path, folder: Path) -> None:
    """Write every picture into the folder; one of a section that the report has not is left out."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("No Chromium on this machine: install it with the system's packages.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, picture in SHOWN.items():
            _take(_open_page(browser, report, picture), picture, folder / name)
        browser.close()


def _open_page(browser: Browser, report: Path, picture: Picture) -> Page:
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=picture.scheme)
    page.goto(report.absolute().as_uri())
    page.wait_for_selector("html[data-plots=drawn]")
    return page


def _take(page: Page, picture: Picture, path: Path) -> None:
    if not picture.section:
        page.screenshot(path=path)
    elif page.locator(f"#{picture.section}").count():
        box = page.locator(f"#{picture.section}").bounding_box()
        assert box is not None
        height = min(box["height"] + 2 * BELOW_TITLE, HEIGHT)
        clip = {"x": 0.0, "y": box["y"] - BELOW_TITLE, "width": float(WIDTH), "height": height}
        page.screenshot(path=path, full_page=True, clip=clip)  # type: ignore[arg-type]
    page.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit(f"{' '.join(sys.argv[1:])}: no such report. Make one first: make sweep-175b")
    make_pictures(Path(sys.argv[1]), PICTURES)
