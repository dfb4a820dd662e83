"""The HTML report in a real browser: two tabs, of which each test finds what those before it left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from results.render.charts import category, layer, quantity
from results.render.page import page
from results.render.section import Head, Plot, Section
from tests.results.conftest import report_of, sweep_writer
from tests.results.report.conftest import Visit, open_page
from tests.results.report.test_report import HOW, PLAN, PROXY_TRIALS, PUBLISHED

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_sweep = sweep_writer(tmp_path_factory.mktemp("page"))
    return report_of(write_sweep(PROXY_TRIALS, HOW, plan=PLAN, published=PUBLISHED)).html


@pytest.fixture(scope="module")
def wide(report: Path, browser: Browser) -> Visit:
    return open_page(browser, report, color_scheme="light")


@pytest.fixture(scope="module")
def phone(report: Path, browser: Browser) -> Visit:
    return open_page(browser, report, width=390, color_scheme="dark")


def test_the_page_draws_all_plots_without_a_message_or_a_request(report: Path, wide: Visit) -> None:
    assert wide.troubles == []
    assert wide.requests == [report.as_uri()]
    names = wide.page.locator(".plot:has(svg)").evaluate_all("places => places.map(place => place.id)")
    assert {"plot-measured-rate", "plot-loss", "plot-step-terms", "plot-memory", "plot-timeline"} <= set(names)
    assert len(names) == wide.page.locator(".plot").count()


def test_the_page_itself_never_scrolls_sideways(wide: Visit, phone: Visit) -> None:
    widths = [seen.page.evaluate("document.documentElement.scrollWidth") for seen in (wide, phone)]
    assert widths == [1400, 390]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [390, 700, 1280])
def test_long_names_in_a_legend_stay_within_their_plot(browser: Browser, tmp_path: Path, width: int) -> None:
    names = [f"lr={number}.593e-4 warmup=4 steps=128 wd=0.2581" for number in range(8)]
    values = [{"point": name, "step": step} for name in names for step in (1, 2)]
    marks = layer({"type": "line"}, values, x=quantity("step", "step"), color=category("point"))
    shown = Section("losses", "Losses", None, "", (Plot("losses", "", marks),))
    (tmp_path / "page.html").write_text(page(Head("", "", "", "", ""), [shown], []))
    tab = open_page(browser, tmp_path / "page.html", width=width).page
    plot, *labels = tab.locator("#plot-losses svg, .role-legend-label text").evaluate_all(
        "found => found.map(each => each.getBoundingClientRect().right)"
    )
    assert len(labels) == len(names)
    assert max(labels) <= plot


@pytest.mark.parametrize("tab", ["wide", "phone"])
def test_axe_finds_no_violation(tab: str, request: pytest.FixtureRequest) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(request.getfixturevalue(tab).page)
    assert found.violations_count == 0, found.generate_report()


def test_a_click_on_a_head_sorts_and_a_second_turns_the_order_round(wide: Visit) -> None:
    wide.click_head("tokens/s")
    assert wide.column(7)[:4] == ["190", "150", "120", "100"]
    wide.click_head("tokens/s")
    assert wide.column(7)[:5] == ["100", "120", "150", "190", "-"]
    wide.click_head("layout")
    assert wide.column(2)[0] == "tp1-pp1-dp1-mb1-gb8 (baseline)"


def test_a_head_sorts_by_the_keyboard_too(wide: Visit) -> None:
    wide.page.locator("#table-trials th button", has_text="tokens/s").focus()
    wide.page.keyboard.press("Enter")
    assert wide.column(7)[0] == "190"


def test_rows_are_filtered_by_text_and_by_outcome(wide: Visit) -> None:
    tools = wide.page.locator('.tools[data-table="table-trials"]')
    tools.get_by_label("outcome").select_option("failed")
    assert wide.column(2) == ["tp2-pp1-dp1-mb1-gb8-sp"]
    assert tools.locator("output").inner_text() == "1 of 7 rows"
    tools.get_by_label("outcome").select_option("")
    tools.get_by_label("Filter").fill("TP2-")
    assert wide.column(2) == ["tp2-pp1-dp1-mb1-gb8", "tp2-pp1-dp1-mb1-gb8-sp"]


def test_on_paper_everything_is_open_and_light(phone: Visit) -> None:
    page = phone.page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert background_of(phone) == "rgb(255, 255, 255)"
    assert page.locator("details:not([open])").count() == 0
    assert page.locator(".scroll").first.evaluate("place => getComputedStyle(place).maxHeight") == "none"
    page.emulate_media(media="screen")


def test_the_theme_follows_the_system_until_somebody_chooses(wide: Visit, phone: Visit) -> None:
    light, dark = "rgb(246, 247, 249)", "rgb(18, 22, 28)"
    assert (background_of(wide), background_of(phone)) == (light, dark)
    phone.page.get_by_role("button", name="Theme").click()
    phone.page.wait_for_function(BACKGROUND_IS, arg=light)
    phone.page.reload()
    phone.page.wait_for_function(BACKGROUND_IS, arg=light)


BACKGROUND_IS = "colour => getComputedStyle(document.body).backgroundColor === colour"


def background_of(seen: Visit) -> str:
    colour: str = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour
