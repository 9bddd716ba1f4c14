"""The history of a limit, drawn: of the last hour and day, with the changes in it; on the first page, a line of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_throttle import Limit, ThrottleControl
from celery_throttle.web.charts import outline
from tests.control.hours import tell_counts
from tests.control.test_looking import API, TENANT, of
from tests.store.caller import needs_of
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import Site
from tests.web.test_pages import NONE, rows, text


@pytest.fixture
def count(worker: TermsCaller) -> Callable[..., None]:
    return partial(tell_counts, worker)


@pytest.fixture
def counted(count: Callable[..., None]) -> None:
    """An hour of the limit ``api``."""
    count(API, at_once=6, waited=6, parked=6, failed=2)


def charts(answer: Any) -> dict[str, str]:
    """The charts of a page, by their names."""
    found = re.findall(r"<figure .*?</figure>", answer.text, flags=re.DOTALL)
    return {re.findall(r"<figcaption>(.*?) <small>", each)[0]: each for each in found}


@pytest.mark.usefixtures("counted")
def test_the_last_hour(page: Site) -> None:
    drawn = charts(page.get("limit?name=api"))
    assert list(drawn) == ["Started", "Wait, 95 % within", "Held at once", "Parked at once", "Failed"]
    assert "at most 12" in drawn["Started"]
    assert "at most 1.3 s" in drawn["Wait, 95 % within"]
    assert 'aria-label="Started: 12 in the busiest of 60 periods."' in drawn["Started"]
    (bar,) = re.findall(r'<rect x="(\d+)" y="([\d.]+)".*?<title>(.*?)</title>', drawn["Started"])
    assert int(bar[0]) in (58, 59)
    assert (float(bar[1]), bar[2].partition(",")[0]) == (0, "12")
    assert "<rect" not in drawn["Parked at once"], "nothing is no bar"


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(("more", "time", "periods", "minutes"), [("", "hour", 60, 60), ("&day=1", "day", 96, 24 * 60)])
def test_a_chart_has_times_and_a_value_for_each_period(
    page: Site, more: str, time: str, periods: int, minutes: int
) -> None:
    """Also on touch screens, and of periods without a bar."""
    answer = page.get(f"limit?name=api{more}")
    assert f">The last {time}</h2>" in answer.text
    assert "of all keys together" not in answer.text
    drawn = charts(answer)["Started"]
    assert f'viewBox="0 0 {periods} ' in drawn
    (axis,) = re.findall(r'<p class="axis">(.*?)</p>', drawn)
    times = re.findall(r"<span>(\d\d):(\d\d)(?: UTC)?</span>", axis)
    begin, middle, end = (int(hours) * 60 + int(minute) for hours, minute in times)
    assert [(middle - begin) % (24 * 60), (end - middle) % (24 * 60)] == [minutes / 2] * 2
    (values,) = re.findall(r'data-values="(.*?)"', drawn)
    listed = values.split("|")
    assert len(listed) == periods
    assert sorted({each.partition(",")[0] for each in listed}) == ["0", "12"]
    assert f'type="range" min="0" max="{periods - 1}"' in drawn


@pytest.mark.usefixtures("counted")
def test_changes_are_marked(page: Site, app: Any) -> None:
    ThrottleControl(app).limit("api").override(7, by="<ana>", why="big day")
    drawn = charts(page.get("limit?name=api"))["Started"]
    ((place, title),) = re.findall(r'class="mark" x1="([\d.]+)".*?<title>(.*?)</title>', drawn)
    assert 58 <= float(place) <= 60
    assert "&lt;ana&gt;" in title
    assert "7" in title


def test_a_whole_limit_has_charts_once_something_is_counted(
    page: Site, worker: TermsCaller, count: Callable[..., None]
) -> None:
    """A key has none, and they are not looked at again and again."""
    worker.know(API)
    answer = page.get("limit?name=api")
    assert charts(answer) == {}
    assert "Nothing was counted." in answer.text
    worker.arrive("t", of("acme"))
    count(TENANT, at_once=6)
    answer = page.get("limit?name=tenant")
    assert charts(answer)
    assert "of all keys together" in answer.text
    for path in ("limit?name=tenant&part=live", "limit?name=tenant&key=acme"):
        assert not charts(page.get(path))


def test_when_each_task_in_line_starts(page: Site, worker: TermsCaller, count: Callable[..., None]) -> None:
    """Two at once, of two seconds each, are one a second."""
    worker.know(API)
    for number in range(4):
        worker.arrive(f"t{number}", needs_of(API))
    assert "Starts in about" not in page.get("limit?name=api").text, "nothing is counted yet"
    count(API, at_once=10, ended=8, run_time=16_000)
    found = re.findall(r'data-label="Starts in about" class="right">(.*?)</td>', page.get("limit?name=api").text)
    assert found == ["1.0 s", "2.0 s"]


# -- the first page ----------------------------------------------------------------------------------------------------


def test_the_last_hour_of_each_limit(page: Site, count: Callable[..., None], worker: TermsCaller) -> None:
    count(API, at_once=1200, waited=40)
    count(Limit("quick", 3), at_once=5)
    count(TENANT, waited=7)
    worker.know(Limit("idle", 1))
    answer = page.get("")
    found = {each.split()[0]: each for each in rows(answer)[1:]}
    assert found["api"] == f"api 0 of 2 0 {NONE} 0.0 s 1 240 started 40 waited"
    assert found["quick"].endswith(f"{NONE} 0.0 s 5 started")
    assert found["tenant"].endswith(f"{NONE} 1.3 s 7 started 7 waited")
    assert found["idle"].endswith(f"0 of 1 0 {NONE} {NONE} {NONE}")
    ground = r'<svg class="spark" viewBox="0 0 (\d+) 16"[^>]*><line class="ground" y1="16" x2="(\d+)" y2="16"/>'
    assert re.findall(ground, answer.text) == [("60", "60")] * 3, "a line below the whole hour"
    labels = re.findall(r'role="img" aria-label="(\d+) starts in the busiest minute"', answer.text)
    assert labels == ["1240", "5", "7"]
    assert answer.text.count('<path class="late"') == 2
    assert "95 % of the tasks that started in the last hour had waited at most this long" in text(answer)


@pytest.mark.parametrize(
    ("started", "waited", "path", "late"),
    [
        ((0, 4, 4, 1), (0, 0, 2, 0), "M0 16H1V0H3V12H4V16Z", "M0 16H2V8H3V16H4V16Z"),
        ((9, 0, 9), (0, 0, 0), "M0 16H0V0H1V16H2V0H3V16Z", "M0 16H3V16Z"),
        ((10_000, 1), (0, 1), "M0 16H0V0H1V15H2V16Z", "M0 16H1V15H2V16Z"),
    ],
)
def test_how_it_is_drawn(started: tuple[int, ...], waited: tuple[int, ...], path: str, late: str) -> None:
    """One is seen beside ten thousand."""
    assert (outline(started, max(started)), outline(waited, max(started))) == (path, late)


def test_where_there_are_very_many_it_is_that_of_the_first(page: Site, count: Callable[..., None]) -> None:
    count(*(Limit(f"limit-{number:03}", 1) for number in range(302)), at_once=1)
    answer = page.get("?most=1000")
    found = rows(answer)[1:]
    assert all(each.endswith("0.0 s 1 started") for each in found[:300])
    assert [row.split()[0] for row in found if row.endswith("not read not read")] == ["limit-300", "limit-301"]
    assert "Both are read for the first 300 limits." in text(answer)
    assert "Both are" not in text(page.get(""))
