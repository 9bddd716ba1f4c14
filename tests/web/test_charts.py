"""The history of a limit, drawn: of the last hour and day, with the changes in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle import ThrottleControl
from tests.control.hours import tell_counts
from tests.control.test_looking import API, TENANT
from tests.store.caller import needs_of
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import Site


@pytest.fixture
def count(worker: TermsCaller) -> Callable[..., None]:
    return lambda limit=API: tell_counts(worker, limit, at_once=6, waited=6, parked=6, failed=2)


def charts(answer: Any) -> dict[str, str]:
    """The charts of a page, by their names."""
    found = re.findall(r"<figure .*?</figure>", answer.text, flags=re.DOTALL)
    return {re.findall(r"<figcaption>(.*?) <small>", each)[0]: each for each in found}


def test_the_last_hour(page: Site, count: Callable[..., None]) -> None:
    count()
    drawn = charts(page.get("limit?name=api"))
    assert list(drawn) == [
        "Started",
        "Wait, 95 % within",
        "Held at once",
        "Parked at once",
        "Failed",
    ]
    assert "at most 12" in drawn["Started"]
    assert "at most 1.3 s" in drawn["Wait, 95 % within"]
    assert 'aria-label="Started: 12 in the busiest of 60 periods."' in drawn["Started"]
    (bar,) = re.findall(r'<rect x="(\d+)" y="([\d.]+)".*?<title>(.*?)</title>', drawn["Started"])
    assert int(bar[0]) in (58, 59)
    assert (float(bar[1]), bar[2].partition(",")[0]) == (0, "12")
    assert "<rect" not in drawn["Parked at once"], "nothing is no bar"


def test_a_chart_has_times_and_a_value_for_each_period(page: Site, count: Callable[..., None]) -> None:
    """Also on touch screens, and of periods without a bar."""
    count()
    for more, time, periods, minutes in (("", "hour", 60, 60), ("&day=1", "day", 96, 24 * 60)):
        answer = page.get(f"limit?name=api{more}")
        assert f">The last {time}</h2>" in answer.text
        drawn = charts(answer)["Started"]
        assert f'viewBox="0 0 {periods} ' in drawn
        (axis,) = re.findall(r'<p class="axis">(.*?)</p>', drawn)
        begin, middle, end = re.findall(r"<span>(\d\d:\d\d)(?: UTC)?</span>", axis)
        apart = [(_minute(later) - _minute(earlier)) % (24 * 60) for earlier, later in ((begin, middle), (middle, end))]
        assert apart == [minutes / 2] * 2
        (values,) = re.findall(r'data-values="(.*?)"', drawn)
        listed = values.split("|")
        assert len(listed) == periods
        assert sorted({each.partition(",")[0] for each in listed}) == ["0", "12"]
        assert f'type="range" min="0" max="{periods - 1}"' in drawn


def _minute(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


def test_when_each_task_in_line_starts(page: Site, worker: TermsCaller) -> None:
    """Two at once, of two seconds each, are one a second."""
    worker.know(API)
    for number in range(4):
        worker.arrive(f"t{number}", needs_of(API))
    assert "Starts in about" not in page.get("limit?name=api").text, "nothing is counted yet"
    tell_counts(worker, API, at_once=10, ended=8, run_time=16_000)
    found = re.findall(r'data-label="Starts in about" class="right">(.*?)</td>', page.get("limit?name=api").text)
    assert found == ["1.0 s", "2.0 s"]


def test_changes_are_marked(page: Site, app: Any, count: Callable[..., None]) -> None:
    count()
    ThrottleControl(app).limit("api").override(7, by="<ana>", why="big day")
    marks = re.findall(
        r'class="mark" x1="([\d.]+)".*?<title>(.*?)</title>', charts(page.get("limit?name=api"))["Started"]
    )
    assert len(marks) == 1
    assert 58 <= float(marks[0][0]) <= 60
    assert "&lt;ana&gt;" in marks[0][1]
    assert "7" in marks[0][1]


def test_nothing_was_counted(page: Site, worker: TermsCaller) -> None:
    worker.know(API)
    answer = page.get("limit?name=api")
    assert charts(answer) == {}
    assert "Nothing was counted." in answer.text


def test_a_limit_with_keys_has_them_and_a_key_has_not(page: Site, count: Callable[..., None]) -> None:
    count(TENANT)
    assert "of all keys together" not in page.get("limit?name=api").text
    assert charts(page.get("limit?name=tenant"))
    assert not charts(page.get("limit?name=tenant&key=acme"))


def test_they_are_not_looked_at_again_and_again(page: Site, count: Callable[..., None]) -> None:
    count()
    assert not charts(page.get("limit?name=api&part=live"))
