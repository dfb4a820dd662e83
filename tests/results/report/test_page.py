"""The HTML report in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.results.conftest import report_of, sweep_writer
from tests.results.report.conftest import Open
from tests.results.report.test_report import HOW, PLAN, PROXY_TRIALS, PUBLISHED

WIDTHS = (390, 1400)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_sweep = sweep_writer(tmp_path_factory.mktemp("page"))
    return report_of(write_sweep(PROXY_TRIALS, HOW, plan=PLAN, published=PUBLISHED)).html


@pytest.mark.slow
def test_the_page_draws_all_plots_without_a_message_or_a_request(report: Path, visit: Open) -> None:
    seen = visit(report)
    assert seen.troubles == []
    assert seen.requests == [report.as_uri()]
    names = seen.page.locator(".plot:has(svg)").evaluate_all("places => places.map(place => place.id)")
    assert {"plot-measured-rate", "plot-loss", "plot-step-terms", "plot-memory", "plot-timeline"} <= set(names)
    assert len(names) == seen.page.locator(".plot").count()


@pytest.mark.slow
def test_a_click_on_a_head_sorts_and_a_second_turns_the_order_round(report: Path, visit: Open) -> None:
    seen = visit(report)
    seen.click_head("tokens/s")
    assert seen.column(7)[:4] == ["190", "150", "120", "100"]
    seen.click_head("tokens/s")
    assert seen.column(7)[:5] == ["100", "120", "150", "190", "-"]
    seen.click_head("layout")
    assert seen.column(2)[0] == "tp1-pp1-dp1-mb1-gb8 (baseline)"


@pytest.mark.slow
def test_a_head_sorts_by_the_keyboard_too(report: Path, visit: Open) -> None:
    seen = visit(report)
    seen.page.locator("#table-trials th button", has_text="tokens/s").focus()
    seen.page.keyboard.press("Enter")
    assert seen.column(7)[0] == "190"


@pytest.mark.slow
def test_rows_are_filtered_by_text_and_by_outcome(report: Path, visit: Open) -> None:
    seen = visit(report)
    tools = seen.page.locator('.tools[data-table="table-trials"]')
    tools.get_by_label("outcome").select_option("failed")
    assert seen.column(2) == ["tp2-pp1-dp1-mb1-gb8-sp"]
    assert tools.locator("output").inner_text() == "1 of 7 rows"
    tools.get_by_label("outcome").select_option("")
    tools.get_by_label("Filter").fill("TP2-")
    assert seen.column(2) == ["tp2-pp1-dp1-mb1-gb8", "tp2-pp1-dp1-mb1-gb8-sp"]


@pytest.mark.slow
def test_the_theme_follows_the_system_until_somebody_chooses(report: Path, visit: Open) -> None:
    backgrounds = {}
    for scheme in ("light", "dark"):
        page = visit(report, color_scheme=scheme).page
        backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert backgrounds == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 28)"}
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == backgrounds["light"]
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == backgrounds["light"]


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_itself_never_scrolls_sideways(report: Path, visit: Open, width: int) -> None:
    page = visit(report, width).page
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_axe_finds_no_violation(report: Path, visit: Open, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(visit(report, width, color_scheme=scheme).page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.slow
def test_on_paper_everything_is_open_and_light(report: Path, visit: Open) -> None:
    page = visit(report, 390, color_scheme="dark").page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("details:not([open])").count() == 0
    assert page.locator(".scroll").first.evaluate("place => getComputedStyle(place).maxHeight") == "none"
