"""The buttons of a limit, their order, and the first values in the form of a change."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle import ThrottleControl
from celery_throttle.control.limit_control import LimitControl
from tests.control.test_looking import API, ONE, TENANT, of
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import Site
from tests.web.test_changes import CHANGE, api, copied


def buttons(answer: Any) -> list[str]:
    """The changes that a page offers, in their order."""
    group = answer.text.partition('<p class="changes"')[2].partition("</p>")[0]
    return re.findall(r"change=([\w-]+)", html.unescape(group))


@pytest.fixture(autouse=True)
def _known(worker: TermsCaller) -> None:
    worker.know(API)
    worker.know(TENANT)


#: The task that was sent back waits, too.
HELD_BACK = ["release-hold", "pause", "set", "disable", "drop"]


@pytest.mark.parametrize(
    ("begin", "offers"),
    [
        (lambda limit, worker: None, ["pause", "set", "disable"]),
        (lambda limit, worker: limit.pause(), ["resume", "pause", "set", "disable"]),
        (lambda limit, worker: limit.disable(), ["enable", "pause", "set", "disable"]),
        (lambda limit, worker: limit.override(3), ["reset", "pause", "set", "disable"]),
        (lambda limit, worker: worker.send_back(worker.take("t", API), 900.0), HELD_BACK),
        (lambda limit, worker: worker.put("t", ONE), ["pause", "set", "disable", "drop"]),
    ],
    ids=["runs", "is paused", "is disabled", "is overridden", "is held back", "has parked tasks"],
)
def test_changes_that_are_offered_where_a_limit(
    page: Site, app: Any, worker: TermsCaller, begin: Callable[[LimitControl, TermsCaller], object], offers: list[str]
) -> None:
    begin(api(app), worker)
    assert buttons(page.get("limit?name=api")) == offers


def test_key_of_a_paused_limit_offers_to_resume_the_limit(page: Site, app: Any, worker: TermsCaller) -> None:
    worker.put("t", of("acme"))
    ThrottleControl(app).limit("tenant").pause()
    answer = page.get("limit?name=tenant&key=acme")
    assert buttons(answer)[0] == "resume"
    (link,) = re.findall(r'href="([^"]*change=resume)"[^>]*>Resume tenant', answer.text)
    assert "key=" not in link


def test_buttons_stand_after_the_facts_and_follow_the_state(page: Site, app: Any) -> None:
    shown = page.get("limit?name=api").text
    assert shown.index("Held") < shown.index('<p class="changes"')
    api(app).pause()
    assert buttons(page.get("limit?name=api&part=live"))[0] == "resume"


@pytest.mark.parametrize("change", ["pause", "disable", "set"])
def test_change_lasts_two_hours_unless_something_else_is_chosen(page: Site, app: Any, change: str) -> None:
    shown = page.get(f"{CHANGE}&change={change}")
    assert 'name="for" value="2h"' in shown.text
    assert "--for=2h" in copied(shown)[0]
    fields = {"change": change, "permits": "3", "for": "2h", "ever": "1"}
    assert "--for" not in copied(page.get(f"{CHANGE}&change={change}&permits=3&for=2h&ever=1"))[0]
    page.post(CHANGE, fields)
    status = api(app).status()
    said = status.paused or status.disabled or status.override
    assert said
    assert said.until is None


@pytest.mark.parametrize("path", [f"{CHANGE}&change=drop", f"{CHANGE}&change=disable", "task/drop?id=t"])
def test_first_button_of_a_form_changes_nothing(page: Site, worker: TermsCaller, path: str) -> None:
    """A browser takes the first one when the user presses Enter in a field."""
    worker.put("t", ONE)
    form = page.get(path).text.partition('<form method="post"')[2].partition("</form>")[0]
    assert 'formmethod="get"' in re.findall(r"<button[^>]*>", form)[0]
