"""What is kept for all who look at the same: one reading for many, none that is old, none from before a change."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle import Limit, StoreUnavailable, ThrottleControl
from celery_throttle.web import asgi
from celery_throttle.web.recent import Recent
from tests.control.test_looking import API
from tests.store.cost import commands
from tests.store.terms_caller import TermsCaller, terms
from tests.support.waiting import until
from tests.web.test_pages import rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from tests.web.conftest import Site


class Source:
    """Something to be read, which takes until it may go on."""

    def __init__(self) -> None:
        self.began: list[tuple[Any, ...]] = []
        self.value: object = 1
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read(self, *what: Any) -> object:
        value = self.value
        self.began.append(what)
        assert self.goes_on.wait(10)
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def source() -> Source:
    return Source()


def test_it_is_read_once_for_all_who_ask_meanwhile_and_soon_after(source: Source) -> None:
    recent = Recent(source.read, 60)
    source.goes_on.clear()
    with ThreadPoolExecutor(10) as threads:
        asked = [threads.submit(recent, "a", 5) for _ in range(10)]
        until(lambda: source.began)
        source.goes_on.set()
    assert [each.result() for each in asked] == [1] * 10
    source.value = 2
    assert recent("a", 5) == 1
    assert recent("b", 5) == 2
    assert source.began == [("a", 5), ("b", 5)]


def test_it_is_not_kept_for_longer(source: Source) -> None:
    recent = Recent(source.read, 0.05)
    assert recent("a") == 1
    source.value = 2
    until(lambda: recent("a") == 2)


def test_a_reading_that_takes_long_is_waited_for_by_nobody_who_comes_late(source: Source) -> None:
    recent = Recent(source.read, 0.05)
    source.goes_on.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(recent, "a")
        until(lambda: source.began)
        source.value, long_after = 2, monotonic() + 0.05
        until(lambda: monotonic() > long_after)
        second = threads.submit(recent, "a")
        until(lambda: len(source.began) == 2)
        source.goes_on.set()
    assert (first.result(), second.result()) == (1, 2)


def test_what_is_being_read_when_something_changes_is_not_kept(source: Source) -> None:
    recent = Recent(source.read, 60)
    source.goes_on.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(recent, "a")
        until(lambda: source.began)
        source.value = 2
        recent.forget()
        second = threads.submit(recent, "a")
        until(lambda: len(source.began) == 2)
        source.goes_on.set()
    assert (first.result(), second.result(), recent("a")) == (1, 2, 2)


def test_an_error_is_not_kept(source: Source) -> None:
    recent = Recent(source.read, 60)
    source.value = StoreUnavailable("away")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="away"):
            recent("a")
    source.value = 2
    assert recent("a") == 2
    assert len(source.began) == 3


def test_what_is_kept_is_bounded(source: Source) -> None:
    recent = Recent(source.read, 60)
    for number in (*range(100), 99, 84, 83):
        recent(number)
    assert [what for (what,) in source.began] == [*range(100), 83]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_many_who_look_cost_the_store_what_one_does(
    app: Any, worker: TermsCaller, redis: Redis, visit: Callable[..., Any]
) -> None:
    worker.declare(*(Limit(f"limit-{number}", 1) for number in range(20)))
    costs = []
    with visit(asgi(app)) as page:
        for viewers in (1, 10):
            ThrottleControl(app).limit("api").pause()  # whatever is kept is forgotten
            with commands(redis) as made, ThreadPoolExecutor(10) as threads:
                answers = list(threads.map(lambda _: page.get("?part=live"), range(viewers)))
            assert {each.status_code for each in answers} == {200}
            assert len({each.text for each in answers}) <= 2, "the moment when it was read is in it"
            costs.append(made["evalsha"])
    assert costs[1] <= 2 * costs[0], "they may need more than a second"


def test_a_change_by_this_process_is_seen_at_once(page: Site, app: Any, worker: TermsCaller) -> None:
    for number in range(5):
        worker.arrive(f"t{number}", terms(API).same)

    def seen() -> str:
        return rows(page.get(""))[1]

    assert "paused" not in seen()
    for change, shown, there in (("pause", "paused", True), ("resume", "paused", False), ("set", "override 2", True)):
        page.post("limit/change?name=api", {"change": change, "permits": "2"})
        assert (shown in seen()) is there
    assert waiting(seen()) == 3
    page.post("task/drop?id=t4")
    assert waiting(seen()) == 2
    page.post("limit/change?name=api", {"change": "drop"})
    assert waiting(seen()) == 0
    ThrottleControl(app).limit("api").pause()
    assert "paused" in seen()


def waiting(row: str) -> int:
    return int(row.split()[4])


def test_a_change_by_others_is_seen_soon(page: Site, worker: TermsCaller) -> None:
    worker.know(API)
    assert waiting(rows(page.get(""))[1]) == 0
    for number in range(5):
        worker.arrive(f"t{number}", terms(API).same)
    until(lambda: waiting(rows(page.get(""))[1]) == 3, timeout=3)
