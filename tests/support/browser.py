"""A real Chromium that shows a page from disk, and what it says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import onnx
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

import hieronnx

HOW_TO_GET_IT = "the page is tested in a real browser: apt-get install chromium chromium-driver"
SEEN = (
    """return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.textContent)"""
)
# Found and read in one step: the picture may be drawn again in between.
BOX = """return [...document.querySelectorAll(arguments[0])].find(
    e => [...e.querySelectorAll('text')].map(t => t.textContent).join(' ').includes(arguments[1]))"""


class Page:
    """A page in the browser, as a reader sees it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path, link: str = "") -> float:
        """Open a page from disk; return the milliseconds until it could be used."""
        self.driver.get("about:blank")
        self.driver.get(f"{path.resolve().as_uri()}{link}")
        ready = "return document.documentElement.dataset.ready"
        milliseconds = float(WebDriverWait(self.driver, 60, 0.02).until(lambda driver: driver.execute_script(ready)))
        # The picture is drawn once more as soon as it has its size: what was found before would be gone.
        self.driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done))")
        return milliseconds

    def show(self, folder: Path, model: onnx.ModelProto, link: str = "", **options: Any) -> Page:
        """Make the page of a model and open it."""
        hieronnx.view(model, output=folder / "page.html", **options)
        self.open(folder / "page.html", link)
        return self

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds: the browser follows a link when it has time."""
        WebDriverWait(self.driver, 10, 0.02).until(lambda _: holds())

    def texts(self, selector: str) -> list[str]:
        """Return the text of what is in sight."""
        return list(self.driver.execute_script(SEEN, selector))

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def box(self, words: str, kind: str = "") -> WebElement:
        """Return the element of the picture that has these words on it."""
        element = self.driver.execute_script(BOX, f".box{kind and '.' + kind}", words)
        if element is None:
            raise AssertionError(f"no '{words}' in {self.boxes()}")
        return cast("WebElement", element)

    def click(self, element: WebElement) -> None:
        """Click the middle of an element, as a mouse does; fails where something lies over it."""
        webdriver.ActionChains(self.driver).click(element).perform()

    def click_box(self, words: str, kind: str = "") -> None:
        """Bring the whole picture into sight, and click what has these words on it."""
        self.click(self.find("[aria-label='All in sight']"))
        self.click(self.box(words, kind))

    def boxes(self, kind: str = "") -> list[str]:
        """Return what is written on the elements of the picture, the first lines."""
        return self.texts(f".box{kind and '.' + kind} .first")

    def edges(self) -> list[str]:
        """Return what edges say when they are pointed at."""
        titles = "return [...document.querySelectorAll('.edge title')].map(e => e.textContent)"
        return list(self.driver.execute_script(titles))

    @property
    def crumbs(self) -> list[str]:
        return self.texts(".crumbs a")

    @property
    def details(self) -> str:
        return self.find(".details").text

    @property
    def hash(self) -> str:
        return str(self.driver.execute_script("return decodeURIComponent(location.hash)"))

    def row(self, path: str) -> WebElement:
        """Return the row of a call in the tree, by the path of its module."""
        rows = self.driver.find_elements(By.CSS_SELECTOR, ".tree .row")
        return next(row for row in rows if (row.get_attribute("title") or "").split("\n")[0] == path)

    def colour_by(self, what: str) -> None:
        Select(self.find("header select")).select_by_visible_text(what)

    def type(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def search(self, text: str) -> list[str]:
        """Search for a text; return what is listed."""
        field = self.find("input[type=search]")
        field.clear()
        field.send_keys(text)
        return self.texts(".hit")

    def messages(self) -> list[str]:
        """Return what the console has: errors, warnings, refusals."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return what the page loaded since it was opened, itself not counted."""
        return list(self.driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)"))


@contextmanager
def browsing(width: int = 1280, height: int = 800) -> Iterator[Page]:
    """Start Chromium."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        raise FileNotFoundError(HOW_TO_GET_IT)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    logging: dict[str, Any] = {"browser": "ALL"}
    options.set_capability("goog:loggingPrefs", logging)
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Page(chrome)
    finally:
        chrome.quit()
