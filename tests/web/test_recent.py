"""Readings that are kept for all viewers: one reading for many, none that is old, none from before a change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, StoreUnavailable, ThrottleControl
from celery_throttle.control.findings import Commands
from celery_throttle.web import asgi
from celery_throttle.web.overview import overview
from celery_throttle.web.readings import Readings, Recent
from tests.control.test_looking import API, fill
from tests.store.cost import commands
from tests.store.terms_caller import TermsCaller
from tests.support.waiting import until
from tests.web.conftest import SAME, TOKEN, Site, own_server, visited
from tests.web.test_pages import rows


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


def test_one_reading_serves_all_viewers_of_a_moment(source: Source) -> None:
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


def wait_long(_: Recent[object]) -> None:
    long_after = monotonic() + 0.05
    until(lambda: monotonic() > long_after)


@pytest.mark.parametrize(
    ("kept", "happens"),
    [
        pytest.param(0.05, wait_long, id="it takes longer than it would be kept"),
        pytest.param(60, lambda recent: recent.forget(), id="something was changed meanwhile"),
    ],
)
def test_reading_that_goes_on_is_not_for_the_next_viewer_if(
    source: Source, kept: float, happens: Callable[[Recent[object]], None]
) -> None:
    recent = Recent(source.read, kept)
    source.goes_on.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(recent, "a")
        until(lambda: source.began)
        source.value = 2
        happens(recent)
        second = threads.submit(recent, "a")
        until(lambda: len(source.began) == 2)
        source.goes_on.set()
    assert (first.result(), second.result(), recent("a")) == (1, 2, 2)


def test_change_is_read_by_each_page_of_a_process(app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    pages = [Readings(app, Commands()) for _ in range(2)]
    for page in pages:
        page.overview = Recent(partial(overview, app), 60)
    before = [page.overview("", 9) for page in pages]
    ThrottleControl(app).limit("api").pause()
    assert not any(page.overview("", 9) is old for page, old in zip(pages, before, strict=True))


def test_an_error_is_not_kept_and_a_result_not_for_long(source: Source) -> None:
    recent = Recent(source.read, 60)
    source.value = StoreUnavailable("away")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="away"):
            recent("a")
    source.value = 2
    assert recent("a") == 2
    assert len(source.began) == 3
    recent = Recent(source.read, 0.05)
    assert recent("a") == 2
    source.value = 3
    until(lambda: recent("a") == 3)


def test_kept_readings_are_bounded(source: Source) -> None:
    recent = Recent(source.read, 60)
    for number in (*range(100), 99, 84, 83):
        recent(number)
    assert [what for (what,) in source.began] == [*range(100), 83]


def test_single_reading_has_no_other_beside_it(source: Source) -> None:
    recent = Recent(source.read, 0.05, one_at_a_time=True)

    async def ask() -> list[object]:
        source.goes_on.clear()
        first = asyncio.create_task(recent.without_thread("a"))
        await asyncio.to_thread(until, lambda: source.began)
        long_after = monotonic() + 0.05
        await asyncio.to_thread(until, lambda: monotonic() > long_after)
        second = asyncio.create_task(recent.without_thread("a"))
        await asyncio.sleep(0)
        source.goes_on.set()
        return [await first, await second]

    assert (asyncio.run(ask()), source.began) == ([1, 1], [("a",)])
    source.value = 2
    assert recent("a") == 2


def test_viewer_that_gives_up_stops_no_shared_reading(source: Source) -> None:
    recent = Recent(source.read, 60)

    async def ask() -> list[object]:
        source.goes_on.clear()
        first = asyncio.create_task(recent.without_thread("a"))
        await asyncio.to_thread(until, lambda: source.began)
        impatient, patient = (asyncio.create_task(recent.without_thread("a")) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        source.goes_on.set()
        return [await first, await patient, impatient.cancelled()]

    assert asyncio.run(ask()) == [1, 1, True]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_many_viewers_cost_the_store_as_much_as_one(app: Any, worker: TermsCaller, redis: Redis) -> None:
    worker.declare(*(Limit(f"limit-{number}", 1) for number in range(20)))
    costs = []
    with visited(asgi(app)) as page:
        for viewers in (1, 10):
            ThrottleControl(app).limit("api").pause()  # every kept reading is dropped
            with commands(redis) as made, ThreadPoolExecutor(10) as threads:
                answers = list(threads.map(lambda _: page.get("?part=live"), range(viewers)))
            assert {each.status_code for each in answers} == {200}
            assert len({each.text for each in answers}) <= 2, "the moment when it was read is in it"
            costs.append(made["evalsha"])
    assert costs[1] <= 2 * costs[0], "they may need more than a second"


def test_a_change_by_this_process_is_seen_at_once(page: Site, app: Any, worker: TermsCaller) -> None:
    fill(worker, 5)
    assert "paused" not in rows(page.get(""))[1]
    for path, change, shown, is_there in (
        ("limit/change?name=api", "pause", "paused", True),
        ("limit/change?name=api", "resume", "paused", False),
        ("limit/change?name=api", "set", "override 2", True),
        ("task/drop?id=t4", "", "api 2 of 2 2 ", True),
        ("limit/change?name=api", "drop", "api 2 of 2 0 ", True),
    ):
        page.post(path, {"change": change, "permits": "2"})
        assert (shown in rows(page.get(""))[1]) is is_there, change
    ThrottleControl(app).limit("api").pause()
    assert "paused" in rows(page.get(""))[1]


class Workers:
    """Stands for asking the workers by remote control, which takes until they may answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = threading.Event()

    def consumed(self, _: object) -> set[str]:
        self.asked += 1
        assert self.answer.wait(20)
        return {"q"}


@pytest.fixture
def workers(worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """The workers that a report asks, since a task is parked."""
    fill(worker, 3)
    workers = Workers()
    monkeypatch.setattr("celery_throttle.control.checks.consumed", workers.consumed)
    return workers


@pytest.mark.parametrize("path", ["report", "api/report"])
def test_parallel_reports_ask_once_and_leave_room_for_pages(page: Site, app: Any, workers: Workers, path: str) -> None:
    """Pages are made in threads, 40 in a process: reports that wait take none."""
    with ThreadPoolExecutor(60) as threads:
        asked = [threads.submit(page.get, path) for _ in range(60)]
        until(lambda: workers.asked)
        assert [page.get("").status_code for _ in range(3)] == [200] * 3
        workers.answer.set()
        assert {each.result().status_code for each in asked} == {200}
    assert workers.asked <= 2, "the last of them may have come more than three seconds later"
    before = workers.asked
    ThrottleControl(app).limit("api").pause()
    assert "api is paused" in page.get(path).text.lower(), "a change of this process is seen at once"
    assert workers.asked == before + 1


def test_workers_are_asked_only_for_visitors_that_may_read(app: Any, workers: Workers) -> None:
    workers.answer.set()
    refusing = (asgi(app, lambda _: None), own_server(app, token=TOKEN), own_server(app))
    for each in refusing:
        with visited(each) as page:
            for path in ("report", "api/report", "api/doctor", "metrics"):
                assert page.get(path, headers={"Host": "evil.example"}).status_code in (400, 401, 403)
            assert page.post("report", None, Host="evil.example", **SAME).status_code in (400, 401, 403)
    assert workers.asked == 0
    with visited(asgi(app)) as page:
        assert page.get("report").status_code == 200
    assert workers.asked == 1
