"""The site on screens, in a real Chromium: ``tox -e browser``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="the dependency group web-browser is not installed")
pytest.importorskip("furo", reason="the dependency group docs is not installed")

from selenium import webdriver

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
PHONE = 390
WIDTHS = (PHONE, 1280, 1366, 1440, 1600, 1920)

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with its driver here"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def widen(driver: Any, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def test_no_page_and_no_table_scrolls_sideways(driver: Any, site: Path) -> None:
    scrolling = []
    for page in sorted(each for each in site.rglob("*.html") if "_static" not in each.parts):
        widen(driver, PHONE)
        driver.get(page.as_uri())
        for width in WIDTHS:
            widen(driver, width)
            wider = driver.execute_script("""
                return [document.documentElement, ...document.querySelectorAll(".table-wrapper")]
                    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.tagName);""")
            scrolling += [(str(page.relative_to(site)), width, each) for each in wider]
    assert scrolling == []


def test_a_phone_shows_what_an_option_means(driver: Any, site: Path) -> None:
    widen(driver, PHONE)
    driver.get(f"{(site / 'reference/options.html').as_uri()}#option-key")
    left, right, text = driver.execute_script("""
        const cell = document.querySelector("#option-key td:last-child"), box = cell.getBoundingClientRect();
        return [box.left, box.right, cell.innerText];""")
    assert 0 <= left < right <= PHONE
    assert text.startswith("meaning")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_is_light_or_dark_as_the_page_is(driver: Any, site: Path, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get((site / "howto/page.html").as_uri())
    shown = driver.execute_script("""
        return [...document.querySelectorAll("img[src*=page-overview]")]
            .filter(each => each.offsetParent).map(each => each.src);""")
    assert [each.endswith("-dark.png") for each in shown] == [scheme == "dark"]
