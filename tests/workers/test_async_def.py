"""What becomes of a task that is ``async def``, and of its permit and its lock."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from celery_throttle import NotAwaited, Throttled
from celery_throttle.testing import ThrottleTest
from tests.support.kit import new_app, task_maker, throttle_celery_app, throttle_server

__all__ = ["throttle_celery_app", "throttle_server"]

pytestmark = [
    pytest.mark.usefixtures("throttle_worker"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]
BEGUN, GO_ON = threading.Event(), threading.Event()
RUNS: list[str] = []


async def fetch(url: str = "") -> str:
    RUNS.append(url)
    BEGUN.set()
    await asyncio.to_thread(GO_ON.wait)
    return f"fetched {url}"


class Awaits(Throttled):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(super().__call__(*args, **kwargs))


APP = new_app("shop")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", NotAwaited)
    make = partial(task_maker(APP), body=fetch)
    make("limited", base=Throttled, limit=1)
    make("once", base=Throttled, singleton=True, remember=3600)
    make("silent", base=Throttled, singleton=True, remember=3600, ignore_result=True)
    make("awaited", base=Awaits, limit=1, singleton=True)
    APP.finalize()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    BEGUN.clear()
    GO_ON.clear()
    RUNS.clear()
    yield
    GO_ON.set()


def test_it_fails_and_gives_its_permit_back(throttle: ThrottleTest) -> None:
    """The coroutine is no result that JSON could keep."""
    results = [APP.tasks["shop.limited"].delay(each) for each in "ab"]
    outcomes = throttle.drain()
    assert (len(outcomes.failed), RUNS) == (2, [])
    for result in results:
        with pytest.raises(Exception, match="coroutine"):
            result.get(timeout=5)
    throttle.assert_held(APP.tasks["shop.limited"], 0)


def test_a_singleton_fails_and_is_not_remembered(throttle: ThrottleTest) -> None:
    once = APP.tasks["shop.once"]
    once.delay("a")
    assert len(throttle.drain().failed) == 1
    throttle.assert_not_locked(once.s("a"))
    assert RUNS == []


def test_without_a_result_it_counts_as_a_success(throttle: ThrottleTest) -> None:
    """Celery itself sees no failure then: so a singleton remembers a run of nothing."""
    silent = APP.tasks["shop.silent"]
    first = silent.delay("a")
    assert throttle.drain().failed == ()
    assert silent.delay("a").id == first.id
    assert RUNS == []


def test_a_class_that_awaits_holds_the_permit_to_the_end(throttle: ThrottleTest) -> None:
    task = APP.tasks["shop.awaited"]
    first, second = task.delay("a"), task.delay("b")
    assert BEGUN.wait(20)
    throttle.assert_held(task, 1)
    throttle.assert_parked(second)
    throttle.assert_duplicate(task.delay("a"), of=first)
    GO_ON.set()
    assert [each.get(timeout=20) for each in (first, second)] == ["fetched a", "fetched b"]
