"""The first page: the last hour of each limit, and the cost of reading all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
from redis import Redis

from celery_throttle import Limit
from celery_throttle.web.charts import SPARK_HEIGHT, outline
from tests.control.hours import tell_counts
from tests.control.test_looking import API, ONE, TENANT
from tests.store.cost import commands
from tests.store.terms_caller import TermsCaller, terms
from tests.web.conftest import Site
from tests.web.test_pages import NONE, rows, text


@pytest.fixture
def count(worker: TermsCaller) -> Callable[..., None]:
    return partial(tell_counts, worker)


# -- the last hour -----------------------------------------------------------------------------------------------------


def test_the_last_hour_of_each_limit(page: Site, count: Callable[..., None], worker: TermsCaller) -> None:
    count(API, at_once=1200, waited=40)
    count(Limit("quick", 3), at_once=5)
    count(TENANT, waited=7)
    worker.know(Limit("idle", 1))
    answer = page.get("")
    found = {each.split()[0]: each for each in rows(answer)[1:]}
    assert found["api"].replace("\N{NO-BREAK SPACE}", " ") == f"api 0 of 2 0 {NONE} 0.0 s 1 240 started 40 waited"
    assert found["quick"].endswith(f"{NONE} 0.0 s 5 started")
    assert found["tenant"].endswith(f"{NONE} 1.3 s 7 started 7 waited")
    assert found["idle"].endswith(f"0 of 1 0 {NONE} {NONE} {NONE}")
    assert re.findall(r'role="img" aria-label="([^"]*)"', answer.text) == [
        "1240 starts in the busiest minute", "5 starts in the busiest minute", "7 starts in the busiest minute",
    ]  # fmt: skip
    assert answer.text.count('<path class="late"') == 2
    assert "95 % of the tasks that started in the last hour had waited at most this long" in text(answer)
    assert "Both are read for the first" not in text(answer)


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
    assert SPARK_HEIGHT == 16


def test_where_there_are_very_many_it_is_that_of_the_first(page: Site, count: Callable[..., None]) -> None:
    limits = [Limit(f"limit-{number:03}", 1) for number in range(302)]
    count(*limits, at_once=1)
    answer = page.get("?most=1000")
    found = rows(answer)[1:]
    assert all(each.endswith("0.0 s 1 started") for each in found[:300])
    assert [each.split(" ", 1)[0] for each in found if each.endswith("not read not read")] == [
        "limit-300", "limit-301",
    ]  # fmt: skip
    assert "Both are read for the first 300 limits." in text(answer)
    assert "Both are" not in text(page.get(""))


# -- the oldest wait ---------------------------------------------------------------------------------------------------


def test_the_oldest_wait_of_each_limit(page: Site, worker: TermsCaller) -> None:
    """Also beside more lines than a page can look at one by one."""
    worker.put("late", ONE, age=7200)
    for number in range(120):
        for _ in range(2):
            worker.put(f"{number} {_}", terms(TENANT).needs({"keys": {"tenant": str(number)}}))
    worker.know(Limit("idle", 1))
    found = {each.split()[0]: each for each in rows(page.get(""))[1:]}
    assert "2h 0m" in found["api"]
    assert re.search(r" 240 \d+(\.\d)? s", found["tenant"])
    assert not any("not read" in each for each in found.values())


# -- costs -------------------------------------------------------------------------------------------------------------


def test_a_limit_more_is_no_call_more(
    page: Site, count: Callable[..., None], worker: TermsCaller, redis: Redis
) -> None:
    """This holds where a task waits, and where one has started."""
    page.get("")
    calls = []
    for first, after in ((0, 2), (2, 60)):
        some = [Limit(f"limit-{number}", 1) for number in range(first, after)]
        count(*some, at_once=3)
        for limit in some:
            for number in range(2):
                worker.arrive(f"{limit.name} {number}", terms(limit).same)
        with commands(redis) as made:
            answer = page.get(f"?most={99 - first}")  # the other one is known for a moment
        calls.append(made["evalsha"])
        assert len([each for each in rows(answer) if re.search(r"[\d.]+ s 0.0 s 3 started full", each)]) == after
    assert calls[0] == calls[1]
