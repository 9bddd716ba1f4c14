"""The page in a real Chromium: clicks, updates without a reload, light and dark, a phone, the keyboard.

Needs Debian's ``chromium`` and ``chromium-driver``, and the dependency group ``web-browser``: ``tox -e browser``.
"""

from __future__ import annotations

import shutil
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("selenium", reason="the dependency group web-browser is not installed")

from collections.abc import Iterator

from axe_core_python.selenium import Axe
from redis import Redis
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from celery_throttle import Limit, ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.web import asgi
from tests.control.conftest import make_app
from tests.control.hours import tell_counts
from tests.control.test_looking import API, fill_and_park, of, park
from tests.store.terms_caller import TermsCaller, terms
from tests.support.waiting import until
from tests.web.conftest import TOKEN, own_server, served
from tests.web.test_pages import HOSTILE, KEYS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
LONG = "a-very-long-name-of-a-limit-" * 7
WIDE, PHONE = (1100, 800), (360, 780)

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with its driver here"),
    pytest.mark.slow,
]


class Browser:
    """A Chromium, and the actions of a person in it.

    Args:
        driver: selenium's.
    """

    def __init__(self, driver: Any) -> None:
        self.driver, self.url = driver, ""

    def open(self, path: str = "") -> None:
        self.driver.get(self.url + path)

    def look(self, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
        """Take a screen of this size, in light or dark."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    @property
    def text(self) -> str:
        return str(self.driver.find_element(By.TAG_NAME, "body").text)

    def sees(self, words: str) -> bool:
        try:
            return words in self.text
        except (NoSuchElementException, StaleElementReferenceException):  # on the way to another page
            return False

    def shows(self, words: str) -> None:
        """Wait until they are there."""
        until(lambda: self.sees(words))

    def shows_soon(self, words: str) -> None:
        """Wait until they are there, for as long as some looks of the page take."""
        until(lambda: self.sees(words), timeout=20)

    def arrives(self, words: str) -> None:
        """Wait until they are in the address."""
        until(lambda: words in self.driver.current_url)

    def click(self, words: str) -> None:
        """Click the link or button with just these words."""
        until(lambda: self._clicked(words))

    def _clicked(self, words: str) -> bool:
        found = self.driver.find_elements(By.CSS_SELECTOR, "main a, main button")
        try:
            next(each for each in found if each.text == words).click()
        except (StaleElementReferenceException, StopIteration):  # the live part was just looked at again
            return False
        return True

    def write(self, name: str, words: str) -> None:
        field = self.driver.find_element(By.CSS_SELECTOR, f"main [name={name}]:not([type=hidden])")
        field.clear()
        field.send_keys(words)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def wait(self, seconds: float) -> None:
        self.driver.set_script_timeout(20)
        self.driver.execute_async_script(f"setTimeout(arguments[0], {seconds * 1000})")

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self) -> str:
        return str(self.run("return document.activeElement.textContent.trim()"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium: Browser, app: Any, worker: TermsCaller) -> Iterator[Browser]:
    """At the page of an app whose limit ``api`` is full, as ana, with all rights."""
    fill_and_park(worker, 3)
    app.conf.update(throttle_environment="production")
    with served(asgi(app, lambda _: "all", lambda _: "ana", command="celery -A shop")) as url:
        chromium.url = url
        chromium.look()
        chromium.driver.get_log("browser")
        yield chromium
        chromium.driver.get("about:blank")  # nothing is asked for any more


def stands(app: Any) -> Any:
    return ThrottleControl(app).limit("api").status()


# -- clicks ------------------------------------------------------------------------------------------------------------


def test_every_change_is_clicked(browser: Browser, app: Any) -> None:
    for change, fields, said, holds in (
        ("Override", {"permits": "3", "for": "2h"}, "api is overridden.", lambda: stands(app).in_force == 3),
        ("Reset", {}, "api is not overridden any more.", lambda: stands(app).override is None),
        ("Pause", {"for": "10m"}, "api is paused.", lambda: stands(app).paused),
        ("Resume", {}, "api is not paused any more.", lambda: not stands(app).paused),
        ("Disable", {}, "api is disabled.", lambda: stands(app).disabled),
        ("Enable", {}, "api is not disabled any more.", lambda: not stands(app).disabled),
        ("Drop", {}, "3 tasks dropped.", lambda: stands(app).parked == 0),
    ):
        browser.open()
        browser.click("api")
        browser.click(f"{change} …")
        for name, value in (fields | {"why": f"{change} <it>"}).items():
            browser.write(name, value)
        browser.click("Show the effect only")
        browser.arrives(urlencode({"why": f"{change} <it>"}))
        browser.shows(f"why={change} <it>")
        browser.click(change)
        browser.shows(said)
        assert holds(), change
    changes = ThrottleControl(app).audit()
    assert [(each.by, each.why) for each in changes[-2:]] == [("ana", "Reset <it>"), ("ana", "Override <it>")]
    assert len(changes) == 7


def test_enter_in_the_reason_drops_nothing(browser: Browser, app: Any) -> None:
    browser.open("limit/change?name=api&change=drop")
    browser.write("why", "wrong input")
    browser.press(Keys.ENTER)
    browser.arrives("why=wrong+input")
    browser.shows("3 tasks would be dropped.")
    assert stands(app).parked == 3


def test_a_form_is_mended_and_sent(browser: Browser, app: Any) -> None:
    """A time that is written replaces "until taken back"."""
    browser.open("limit/change?name=api&change=set&for=2h&ever=1")
    assert browser.driver.find_element(By.NAME, "ever").is_selected()
    browser.write("for", "soon")
    browser.click("Override")
    browser.shows("'soon' is no duration")
    browser.write("for", "1h")
    browser.click("Override")
    browser.shows("api is overridden.")
    assert stands(app).override.until


def test_a_task_is_dropped_and_a_lock_taken_away(browser: Browser, app: Any) -> None:
    browser.open("limit?name=api")
    browser.click("t3")
    browser.shows("parked, place 2 in the line of api")
    browser.click("Drop the task …")
    browser.click("Drop")
    browser.shows("1 task dropped.")
    app.tasks["charge"].apply_async((17, 5))
    browser.open("locks")
    browser.click("Unlock …")
    browser.write("why", "lost")
    browser.click("Unlock")
    browser.shows("The lock is free.")
    assert [each.action for each in ThrottleControl(app).audit()] == ["unlock", "drop"]


def test_a_command_is_copied(browser: Browser) -> None:
    browser.open("limit/change?name=api&change=pause&why=it%27s")
    button = browser.driver.find_element(By.CSS_SELECTOR, "[data-copy]")
    button.click()
    until(lambda: button.text in ("Copied", "Selected"))
    assert browser.run("return getSelection().toString().trim()").startswith("celery -A shop throttle pause ")


# -- updates without a reload ------------------------------------------------------------------------------------------


def test_a_change_is_seen(browser: Browser, app: Any) -> None:
    browser.open()
    browser.run("window.same = true; document.querySelector('tbody a').focus()")
    browser.shows("live")
    ThrottleControl(app).limit("api").pause(by="bob", why="incident 42", until=3600)
    until(lambda: browser.sees("paused by bob until") and browser.sees("incident 42"), timeout=15)
    assert browser.focused == "api"
    assert browser.run("return window.same")


def test_open_page_looks_for_alarms_by_itself(browser: Browser) -> None:
    browser.open("task")
    until(lambda: browser.driver.find_element(By.ID, "alarms").text == "no alarm, not all checked", timeout=15)


def test_chart_shows_the_value_under_the_slider(crowded: Browser) -> None:
    crowded.open("limit?name=api")
    figure = crowded.driver.find_element(By.CSS_SELECTOR, "figure")
    values = figure.get_attribute("data-values").split("|")
    slider = figure.find_element(By.CSS_SELECTOR, ".period")
    slider.send_keys(Keys.ARROW_LEFT)
    shown = figure.find_element(By.TAG_NAME, "output")
    until(lambda: shown.text == values[-2])


def test_waits_go_on(browser: Browser) -> None:
    browser.open("limit?name=api")
    script = "return [...document.querySelectorAll('time[data-ago]')].map(each => parseFloat(each.textContent))"
    first = browser.run(script)
    until(lambda: all(now > before for now, before in zip(browser.run(script), first, strict=True)), timeout=10)


def test_name_that_is_being_written_stays(browser: Browser, worker: TermsCaller) -> None:
    for tenant in ("acme", "other"):
        park(worker, f"waits {tenant}", of(tenant))
    browser.open("limit?name=tenant")
    browser.shows("live")
    browser.write("find", "acm")
    park(worker, "waits zoo", of("zoo"))
    browser.wait(4)  # a look
    assert browser.driver.find_element(By.ID, "find").get_attribute("value") == "acm"
    browser.press(Keys.ENTER)
    browser.arrives("find=acm")
    browser.shows("1 key. Sorted:")


def test_a_tab_that_is_hidden_asks_for_nothing(browser: Browser, app: Any) -> None:
    browser.open()
    browser.shows("live")
    browser.run(
        "window.asked = 0; const real = fetch; window.fetch = (...a) => { window.asked += 1; return real(...a); }"
    )
    until(lambda: browser.run("return window.asked") > 0, timeout=10)
    browser.run("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true}); window.asked = 0")
    ThrottleControl(app).limit("api").pause()
    browser.wait(7)  # two looks
    assert browser.run("return window.asked") == 0
    browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: browser.sees("paused"), timeout=2)


def test_store_that_goes_away_stops_the_clocks_until_it_is_back(chromium: Browser, own_server: EmbeddedServer) -> None:
    app = make_app(own_server.url)
    clocks = "return [...document.querySelectorAll('main time')].map(each => each.textContent).join()"
    with served(asgi(app)) as url:
        chromium.url = url
        with Redis.from_url(own_server.url) as client:
            TermsCaller(client, "aaaaaaaa", "q").know(API)
            ThrottleControl(app).limit("api").pause(until=3600)
        chromium.open()
        chromium.shows("live")
        own_server.kill()
        chromium.shows_soon("The store does not answer. These are the values of ")
        banner = chromium.driver.find_element(By.ID, "away")
        assert banner.get_attribute("role") == "alert"
        assert "stale" in str(chromium.driver.find_element(By.ID, "live").get_attribute("class"))
        before = chromium.run(clocks)
        assert "59m" in before
        chromium.wait(2.5)  # two ticks
        assert chromium.run(clocks) == before
        own_server.restart()
        until(lambda: not banner.is_displayed(), timeout=15)
        assert "stale" not in str(chromium.driver.find_element(By.ID, "live").get_attribute("class"))
        chromium.driver.get("about:blank")


def test_page_without_a_store_asks_again_by_itself(chromium: Browser, own_server: EmbeddedServer) -> None:
    with served(asgi(make_app(own_server.url))) as url:
        chromium.url = url
        own_server.kill()
        chromium.open("locks")
        chromium.shows("The page tries again on its own.")
        own_server.restart()
        chromium.shows_soon("Identity locks")
        chromium.driver.get("about:blank")


def test_it_is_read_without_a_script(browser: Browser, app: Any, worker: TermsCaller) -> None:
    worker.know(Limit("gpu", 3))
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open()
        browser.write("find", "AP")
        browser.press(Keys.ENTER)
        browser.arrives("find=AP")
        assert [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, "tbody th")] == ["api"]
        browser.click("api")
        browser.shows("Parked tasks")
        browser.click("Pause …")
        browser.click("Pause")
        browser.shows("api is paused.")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert stands(app).paused


# -- light and dark, a phone, the keyboard -----------------------------------------------------------------------------

PAGES = (
    *("", "limit?name=api", "limit?name=tenant", "task", "task?id=t3", "workers", "locks", "audit", "report"),
    *("limit/change?name=api&change=set&permits=x", "limit/change?name=api&change=drop", "limit?name=nope"),
    "limit/change?name=api&change=set&permits=4&simulate=1&arrivals=5/s&run_time=2s",
    f"limit?{urlencode({'name': LONG})}",
)


@pytest.fixture
def crowded(browser: Browser, app: Any, worker: TermsCaller) -> Browser:
    """With something of everything, and names that are long or hostile."""
    for limit in (Limit(LONG, 1), Limit(HOSTILE, 1)):
        for number in range(3):
            worker.arrive(f"{'long' * 20}{number}{limit.name[:3]}", terms(limit).same)
    for key in (*KEYS, LONG):
        worker.arrive(f"holds {key}", of(key))
        park(worker, f"waits {key}", of(key))
    tell_counts(worker, API, Limit(LONG, 1), at_once=10**7, waited=10**8)
    app.tasks["charge"].apply_async((17, 5))
    throttle = ThrottleControl(app)
    throttle.limit("api").override(3, by="x" * 100, why="w" * 200)
    throttle.limit(LONG).pause(until=3600, why=HOSTILE)
    throttle.limit("tenant").disable()
    return browser


def test_light_and_dark(browser: Browser) -> None:
    seen = []
    for dark in (False, True):
        browser.look(dark=dark)
        browser.open()
        script = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        seen.append([[int(each) for each in part[4:-1].split(",")] for part in browser.run(script)])
    (light_page, light_text), (dark_page, dark_text) = seen
    assert min(light_page) - max(light_text) > 150
    assert min(dark_text) - max(dark_page) > 150


def test_last_hour_is_visible_and_has_a_text(crowded: Browser) -> None:
    for size in (PHONE, WIDE):
        crowded.look(size)
        crowded.open()
        drawn = crowded.driver.find_elements(By.CSS_SELECTOR, "td svg.spark")
        assert len(drawn) == 2
        for each in drawn:
            assert each.size["width"] >= 100
            assert each.size["height"] >= 10
            assert each.accessible_name == "110000000 starts in the busiest minute"
            started, late = each.find_elements(By.CSS_SELECTOR, "path")
            assert started.value_of_css_property("fill") != late.value_of_css_property("fill")
            assert started.size["height"] > late.size["height"] > 0


@pytest.mark.timeout(300)
def test_each_page_fits_and_has_nothing_that_axe_finds(crowded: Browser) -> None:
    """Contrast, labels, order of headings, names of links and tables.

    The console has neither a script that failed, nor one that the policy kept from running, nor a missing file.
    """
    for size, dark in ((WIDE, False), (WIDE, True), (PHONE, False)):
        crowded.look(size, dark=dark)
        for path in PAGES:
            crowded.open(path)
            width, screen = crowded.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert width <= screen == size[0], path
            found = Axe().run(crowded.driver)["violations"]
            assert [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in found] == [], path
    told = [each["message"] for each in crowded.driver.get_log("browser")]
    assert [each for each in told if "400 (Bad Request)" not in each and "404 (Not Found)" not in each] == []


def test_the_keyboard_is_enough(browser: Browser, app: Any) -> None:
    browser.open()
    browser.press(Keys.TAB)
    assert browser.focused == "Skip to content"
    assert browser.run("return document.activeElement.getBoundingClientRect().left >= 0")
    seen = []
    while browser.focused != "api":
        browser.press(Keys.TAB)
        seen.append(browser.focused)
        assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
        assert len(seen) < 20
    assert seen[1:6] == ["Limits", "Task", "Workers", "Locks", "Audit"]
    browser.press(Keys.ENTER)
    browser.shows("Parked tasks")
    while browser.focused != "Pause …":
        browser.press(Keys.TAB)
    browser.press(Keys.ENTER)
    browser.shows("Back, change nothing")
    while browser.focused != "Pause":
        browser.press(Keys.TAB)
    browser.press(Keys.ENTER)
    browser.shows("api is paused.")
    assert stands(app).paused


# -- safe --------------------------------------------------------------------------------------------------------------


def test_hostile_names_run_nothing(crowded: Browser) -> None:
    for path in ("", "limit?name=tenant", "audit", "report", f"limit?{urlencode({'name': HOSTILE})}"):
        crowded.open(path)  # an alert would raise
        assert crowded.run("return document.querySelectorAll('main script, main img').length") == 0
    crowded.open()
    assert HOSTILE in crowded.text


def test_another_site_changes_nothing(browser: Browser, app: Any) -> None:
    """A form that sends itself, on a page of another host, to ours."""
    action = f"{browser.url}limit/change?name=api"
    sends = "<script>document.forms[0].submit()</script>"
    form = f"<form method=post action='{action}'><input name=change value=pause></form>{sends}"
    with served(Starlette(routes=[Route("/", lambda _: HTMLResponse(form))])) as url:
        browser.driver.get(url.replace("127.0.0.1", "localhost"))
        browser.shows("This request came from another site")
    assert not stands(app).paused


def test_a_token_in_a_browser(chromium: Browser, app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    with served(own_server(app, token=TOKEN)) as url:
        chromium.url = url
        chromium.open()
        chromium.shows("A token is needed to see this page.")
        chromium.write("token", "not the right one")
        chromium.click("Sign in")
        chromium.shows("This is not the token.")
        chromium.write("token", TOKEN)
        chromium.click("Sign in")
        chromium.shows("live")
        assert "token" not in chromium.driver.current_url.lower()
        assert chromium.run("return document.cookie") == ""
        chromium.click("api")
        chromium.click("Pause …")
        chromium.click("Pause")
        chromium.shows("api is paused.")
        chromium.driver.delete_all_cookies()
        chromium.driver.get("about:blank")
