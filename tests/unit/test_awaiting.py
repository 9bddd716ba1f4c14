"""Tasks that are ``async def``: a warning when they are bound, unless something may await them."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from celery import Celery, Task
from celery.app import trace

from celery_throttle import NotAwaited, Throttled
from celery_throttle.tasks.remarks import remarks

AIO = "celery_aio_pool.pool:AsyncIOPool"


class Awaits(Throttled):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(super().__call__(*args, **kwargs))


class AppsOwn(Task):  # type: ignore[type-arg]
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(super().__call__(*args, **kwargs))


class ForeignPool:
    """Of another package, by its module."""


def awaited(body: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @functools.wraps(body)
    def run(*args: Any) -> Any:
        return asyncio.run(body(*args))

    return run


async def fetch(url: str = "") -> str:
    return url


async def fetch_of(self: Any, url: str = "") -> str:  # noqa: ARG001 - a bound task has it
    return url


def bound(body: Callable[..., Any], *, task_cls: Any = "celery.app.task:Task", conf: Any = None, **options: Any) -> Any:
    """Return an app with a task of this body, and the warnings about it."""
    app: Any = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False, task_cls=task_cls)
    app.conf.update(conf or {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app.task(body, name="shop.fetch", shared=False, **({"base": Throttled} | options))
        app.finalize()
    return app, [each for each in caught if each.category is NotAwaited]


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (fetch, {"limit": 1}),
        (fetch, {"singleton": True}),
        (fetch, {}),
        (fetch_of, {"limit": 1, "bind": True}),
        (fetch, {"limit": 1, "autoretry_for": (OSError,)}),
        (fetch, {"limit": 1, "conf": {"worker_pool": "threads"}}),
        (fetch, {"limit": 1, "conf": {"worker_pool": "celery.concurrency.gevent:TaskPool"}}),
    ],
    ids=range(7),
)
def test_a_coroutine_is_warned_of_once_at_its_line(body: Any, options: dict[str, Any]) -> None:
    app, (warning,) = bound(body, **options)
    assert str(warning.message) == (
        "Task shop.fetch is async def, which Celery's own pools do not await: nothing of it runs. "
        "Write def, and asyncio.run() inside, or name a pool that awaits it in the setting worker_pool"
    )
    assert (warning.filename, warning.lineno) == (__file__, body.__code__.co_firstlineno)
    assert str(warning.message) in list(remarks(app))


def test_a_class_with_a_coroutine_is_warned_of() -> None:
    class Fetch(Throttled):
        name = "shop.fetch"
        limit = 1

        async def run(self) -> None: ...

    app: Any = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    with pytest.warns(NotAwaited, match=r"Task shop\.fetch is async def"):
        app.register_task(Fetch())


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (fetch, {"base": Awaits, "limit": 1}),
        (fetch, {"task_cls": AppsOwn, "limit": 1}),
        (awaited(fetch), {"limit": 1}),
        (fetch, {"limit": 1, "conf": {"worker_pool": AIO}}),
        (fetch, {"base": Task}),
        (fetch.__name__.format, {"limit": 1}),
    ],
    ids=range(6),
)
def test_what_may_be_awaited_is_not(body: Any, options: dict[str, Any]) -> None:
    app, caught = bound(body, **options)
    assert caught == []
    assert not any("async def" in each for each in remarks(app))


def test_a_pool_of_the_environment_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_CUSTOM_WORKER_POOL", AIO)
    _, caught = bound(fetch, limit=1)
    assert caught == []


def test_a_tracer_that_awaits_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*args: Any) -> None: ...

    build.__module__ = "celery_aio_pool.tracer"
    monkeypatch.setattr(trace, "build_tracer", build)
    _, caught = bound(fetch, limit=1)
    assert caught == []


def test_a_worker_remarks_by_its_own_pool() -> None:
    app, _ = bound(fetch, limit=1)
    assert list(remarks(app, ForeignPool)) == []
    app, _ = bound(fetch, limit=1, conf={"worker_pool": AIO})
    assert len(list(remarks(app, "prefork"))) == 1
