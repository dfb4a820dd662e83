"""A report in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DRAWN_MILLISECONDS = 120_000


@dataclass
class Visit:
    """A page that was opened, and what it should not do."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def column(self, number: int, table: str = "trials") -> list[str]:
        """The texts of the visible rows in a column, which counts from 1, without the remarks below them."""
        cells = self.page.locator(f"#table-{table} tbody tr:visible td:nth-child({number})")
        return [text.partition("\n")[0] for text in cells.all_inner_texts()]

    def click_head(self, name: str, table: str = "trials") -> None:
        self.page.locator(f"#table-{table} th button", has_text=name).first.click()


Open = Callable[..., Visit]


def open_page(browser: Browser, path: Path, width: int = 1400, **settings: Any) -> Visit:
    """Open a file in a new tab and wait until its plots are drawn."""
    seen = Visit(browser.new_context(viewport={"width": width, "height": 900}, **settings).new_page())
    seen.page.on("console", lambda message: seen.troubles.append(message.text))
    seen.page.on("pageerror", lambda error: seen.troubles.append(str(error)))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.goto(path.as_uri(), timeout=DRAWN_MILLISECONDS)
    seen.page.wait_for_selector("html[data-plots=drawn]", timeout=DRAWN_MILLISECONDS)
    return seen


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """`open_page`, whose tabs are closed after the test."""
    yield partial(open_page, browser)
    for context in browser.contexts:
        context.close()
