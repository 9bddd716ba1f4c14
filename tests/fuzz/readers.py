"""All readers: the views of operators while something is wrong."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import httpx
from celery import Celery

from celery_throttle import ThrottleControl, Throttled
from celery_throttle.control import queues
from celery_throttle.control.checks import diagnose
from celery_throttle.web import asgi
from tests.control.conftest import run_in
from tests.fuzz.town import API, GPU, LEASE
from tests.store.caller import KEYS

__all__ = ["Readers", "make_app", "no_patience", "what"]

_TASKS = ("g1", "g2", "both2", "l1", "l2", "n2", "bad2", "unknown", "f3")
_COMMANDS = (
    *("status", "status --json", "locks", "audit", "doctor", "doctor --json", "report", "metrics", "runnable celery"),
    *("drain --why x", "show gpu", "show api", "history gpu", "explain g2", "explain l2", "explain bad2"),
)
_PAGES = (
    *("", "limit?name=gpu", "limit?name=api", "task?id=g2", "task?id=bad2", "locks", "audit", "report", "metrics"),
    *("api/limits", "api/limit?name=gpu", "api/task?id=g1", "api/doctor", "api/report"),
)


def make_app(url: str) -> Any:
    """Return an app with some of the limits in the town's store."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(throttle_prefix=KEYS.prefix, throttle_lease=LEASE)

    @app.task(base=Throttled, limit=GPU, name="render", shared=False)
    def render() -> None: ...

    @app.task(base=Throttled, limit=API, name="call", shared=False)
    def call() -> None: ...

    return app


@contextmanager
def no_patience() -> Iterator[None]:
    """There are no workers that could answer a remote control command."""
    with patch.object(queues, "_PATIENCE", 0.01):
        yield


class Readers:
    """Reads as Python, a command and a page do."""

    def __init__(self, app: Any) -> None:
        self._app, self._throttle = app, ThrottleControl(app)
        self._site = httpx.ASGITransport(asgi(app, lambda _: "all", lambda _: "ana"))

    def look(self, random: Random) -> Iterator[str]:
        """Yield the reading errors: of each method, and of a command and a page by chance."""
        throttle = self._throttle
        looks: dict[str, Callable[[], Any]] = {
            "status": lambda: throttle.status(last_hour=True),
            "holders": throttle.holders,
            "parked": throttle.parked,
            "set_aside": throttle.set_aside,
            "audit": throttle.audit,
            "locks": throttle.locks,
            "report": throttle.report,
            "metrics": throttle.metrics,
            "runnable": throttle.runnable,
            "doctor": lambda: diagnose(self._app),
            "drain": lambda: throttle.drain(dry_run=True),
            "limits": self._limits,
            "explain": lambda: [throttle.explain(task) for task in _TASKS],
            "command": lambda: self._command(random.choice(_COMMANDS)),
            "page": lambda: self._page(random.choice(_PAGES)),
        }
        for name, function in looks.items():
            try:
                function()
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                yield f"{name}: {what(error)}"

    def _limits(self) -> None:
        for limit in (self._throttle.limit("gpu"), self._throttle.limit("api")):
            for read in (limit.status, limit.keys, limit.holders, limit.parked, limit.history, limit.audit):
                read()

    def _command(self, words: str) -> None:
        ended = run_in(self._app, *words.split())
        if ended.code not in (0, 1):
            raise AssertionError(f"{words!r} ended with {ended.code}: {ended.err}")

    def _page(self, path: str) -> None:
        answer = asyncio.run(self._get("/" + path))
        if answer.status_code != 200:
            raise AssertionError(f"/{path} answered {answer.status_code}: {answer.text[:500]}")

    async def _get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._site, base_url="http://localhost") as client:
            return await client.get(path)


def what(error: Exception) -> str:
    """Return an error, and where it came from."""
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-4:])}"
