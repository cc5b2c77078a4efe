"""What the page shows of measurements, and how its parts are made larger, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from support.annotated import annotated
from support.browser import Page

NET = "net (float[2] x) => (float[2] y) <float[4] w = {-1, 0, 0, 3}> { h = Relu(x)  i = Add(h, w)  y = Tanh(i) }"
SCOPES = ["a", "a", "b"]
TIMES = {
    "total_us": 2000.0,
    "calls": [
        {"module": "", "call": 0, "own_us": 0.0, "total_us": 2000.0},
        {"module": "a", "call": 0, "own_us": 1800.0, "total_us": 1800.0},
        {"module": "b", "call": 0, "own_us": 200.0, "total_us": 200.0},
    ],
}
ERRORS = {
    "calls": [
        {
            "module": "b",
            "call": 0,
            "introduced": {"relative": 0.25},
            "accumulated": {"relative": None},
            "verdict": "wrong",
        }
    ]
}


@pytest.fixture
def page(browser: Page, tmp_path: Path) -> Page:
    return browser.show(tmp_path, annotated(NET, SCOPES), profile=TIMES, verify=ERRORS)


def test_the_tree_has_times_and_errors_with_bars(page: Page) -> None:
    assert page.texts(".row.head .num")[3:] == ["own", "time", "introduced", "accum."]
    cells = {path: page.row(path).find_elements(By.CSS_SELECTOR, ".num")[3:] for path in ("a", "b")}
    assert [cell.text for cell in cells["a"]] == ["1.80 ms", "1.80 ms", "", ""]
    assert [cell.text for cell in cells["b"]] == ["200 µs", "200 µs", "2.5e-1", "∞"]
    part = "return getComputedStyle(arguments[0]).getPropertyValue('--part')"
    shares = [page.driver.execute_script(part, cell[1]) for cell in cells.values()]
    assert shares == ["90%", "10%"]


def test_colours_show_time_and_error(page: Page) -> None:
    page.colour_by("Time")
    assert [page.box(f"{name} ·", "call").get_attribute("class").split()[-1] for name in "ab"] == ["h5", "h1"]
    assert page.texts(".legend span") == ["90 % of the time", "10 % of the time"]
    page.colour_by("Error")
    assert "h5" in page.box("b ·", "call").get_attribute("class")
    assert "not compared" in page.texts(".legend span")
    page.click_box("b ·", "call")
    assert "introduced 2.50e-1, accumulated ∞: wrong" in page.details


def test_a_weight_has_its_statistics_where_they_were_made(browser: Page, tmp_path: Path) -> None:
    page = browser.show(tmp_path, annotated(NET, SCOPES), "#/Net/a", statistics=True)
    page.click(next(link for link in page.driver.find_elements(By.CSS_SELECTOR, ".details .link") if link.text == "w"))
    for line in ("range -1 … 3", "mean 0.5 ± 1.5", "zeros 2 (50 %)"):
        assert line in page.details
    heights = page.driver.execute_script(
        "return [...document.querySelectorAll('.bars rect')].map(r => r.getBBox().height)"
    )
    assert [height for height in heights if height] == [20, 40, 20]
    page = browser.show(tmp_path, annotated(NET, SCOPES), "#/Net/a")
    page.click(next(link for link in page.driver.find_elements(By.CSS_SELECTOR, ".details .link") if link.text == "w"))
    assert "hieronnx view --statistics" in page.details
    assert page.messages() == []


def test_parts_of_the_page_are_made_larger_with_the_mouse_and_the_keyboard(page: Page) -> None:
    height, width = page.find(".details").size["height"], page.find(".tree-box").size["width"]
    level, upright = page.find(".splitter.level"), page.find(".splitter.upright")
    webdriver.ActionChains(page.driver).drag_and_drop_by_offset(level, 0, -100).perform()
    assert page.find(".details").size["height"] == pytest.approx(height + 100, abs=6)
    page.driver.execute_script("arguments[0].focus()", upright)
    page.type(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.find(".tree-box").size["width"] == pytest.approx(width + 0.04 * 1280, abs=6)
    assert page.boxes("call") == ["Net", "Net"]  # nothing was clicked


def test_what_is_read_is_above_what_reads_it_whichever_runs_first(browser: Page, tmp_path: Path) -> None:
    """A decoder may embed its own input before the encoder runs, and still be below it."""
    nodes = "e = Neg(d)  h = Relu(x)  y = Add(e, h)"
    model = annotated(f"net (float[2] x, float[2] d) => (float[2] y) {{ {nodes} }}", ["decoder", "encoder", "decoder"])
    page = browser.show(tmp_path, model)
    tops = [page.box(f"{name} ·", "call").rect["y"] for name in ("encoder", "decoder")]
    assert tops[0] + 40 < tops[1]
