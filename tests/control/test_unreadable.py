"""Looking at a store in which much cannot be read: in one line at the most, never a traceback."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import httpx
import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control import queues
from celery_throttle.control import reader as reader_module
from celery_throttle.control.reader import readers
from celery_throttle.core.buckets import Bucket
from celery_throttle.errors import StoreUnavailable
from celery_throttle.web import asgi
from tests.control.conftest import Run
from tests.store.peek import _SETS, KEY
from tests.store.terms_caller import TermsCaller, terms

ONE = terms(Limit("api", 1)).same
COMMANDS = ["status", "show api", "explain t1", "explain t2", "report", "doctor", "locks", "audit", "metrics", "drain"]
PAGES = ["", "limit?name=api", "task?id=t2", "locks", "audit", "report", "metrics", "api/limits", "api/report"]
GARBAGE = [b"garbage", b"[[1]]", b"7x", b'{"v":2}', b"\xff", b"[" * 1100, b'{"v":2,"since":"x","why":null}']


@pytest.fixture(params=GARBAGE)
def spoiled(request: pytest.FixtureRequest, worker: TermsCaller, redis: Redis) -> None:
    """A holder, a parked task and an override; each hash has one unreadable field."""
    for task in ("t1", "t2"):
        worker.arrive(task, ONE)
    for key in KEY:
        if key not in _SETS and not key.endswith("messages"):
            for field in (*redis.hkeys(KEY[key]), b"api", b"t\xff1"):
                redis.hset(KEY[key], field, request.param)
    for name in ("records", "aside"):
        redis.hset(KEY[name], "t2", request.param)
    redis.delete(KEY["audit"])
    redis.zadd(KEY["audit"], {request.param: 7})


@pytest.fixture(autouse=True)
def _nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_PATIENCE", 0.05)


def pages(app: Any, *paths: str) -> list[httpx.Response]:
    """Return these pages of an app, without a server."""

    async def get() -> list[httpx.Response]:
        site = httpx.ASGITransport(asgi(app, lambda _: "all"))
        async with httpx.AsyncClient(transport=site, base_url="http://localhost") as client:
            return [await client.get(f"/{path}") for path in paths]

    return asyncio.run(get())


@pytest.mark.usefixtures("spoiled")
def test_commands_and_pages_answer_and_report_what_was_set_aside(app: Any, run: Run) -> None:
    for command in COMMANDS:
        ended = run(*command.split())  # which raises any error of a command
        assert ended.code in (0, 1), (command, ended.err)
    for answer in pages(app, *PAGES):
        assert answer.status_code == 200, (answer.url, answer.text[:500])
    ThrottleControl(app).repair()
    found = ThrottleControl(app).set_aside(most=1000)
    assert {(each.key, each.field) for each in found} >= {("limits", "api"), ("records", "t1")}
    assert all(str(each) for each in found)
    assert run("doctor").code == 1


def test_a_reply_that_no_reader_can_read_is_the_stores_affair(app: Any, worker: TermsCaller, run: Run) -> None:
    """For each cause: one line, and the exit code for it."""
    worker.arrive("t1", ONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "read_statuses", lambda raw: raw["no such thing"])
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            ThrottleControl(app).status()
        ended = run("status")
    assert ended.code == 3
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("pages", [1, 2, 3, 7])
def test_lines_that_are_out_of_order_are_read_to_an_end(
    app: Any, worker: TermsCaller, redis: Redis, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """Something else has changed the scores of their members, which are all the same otherwise."""
    for number in range(20):
        worker.arrive(f"t{number:02}", ONE)
    members: Any = redis.zrange(KEY["lines"], 3, -1)
    for member in members[::2]:
        redis.zadd(KEY["lines"], {member: -1})
    (reader,) = readers(app)
    monkeypatch.setattr(reader_module, "AT_ONCE", pages)
    reader.parked(Bucket("api"), 50)
    assert {each.task for each in islice(reader.parked_ids(None), 1000)} <= {f"t{number:02}" for number in range(20)}
    assert len(list(islice(reader.parked_ids(None), 1000))) < 1000


@pytest.mark.parametrize("score", [float("inf"), 9e14, float("-inf")])
def test_a_lease_without_end_is_shown(app: Any, worker: TermsCaller, redis: Redis, score: float) -> None:
    worker.take("t1", ONE)
    redis.zadd(KEY["leases"], {"t1": score})
    (answer,) = pages(app, "limit?name=api")
    assert (answer.status_code, "t1" in answer.text) == (200, True)
