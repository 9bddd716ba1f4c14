"""The page of workers, queues, and records that are set aside."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.web import fleet
from tests.control.test_looking import ONE
from tests.store.peek import KEY
from tests.store.terms_caller import TermsCaller
from tests.support.incident import incident
from tests.web.conftest import Site
from tests.web.test_pages import HOSTILE, rows, text


def test_workers_have_their_permits_and_last_calls(page: Site, redis: Redis) -> None:
    made = incident(redis)
    found = {each.split()[0]: each for each in rows(page.get("workers"))}
    assert "1 task" in found[made.works.name]
    assert "lease ended" in found[made.frozen.name]
    assert "7 limits" in found[made.works.name]


def test_queues_show_their_parked_tasks_and_consumers(
    page: Site, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident(redis)
    answers: dict[str, set[str] | None] = {"taken": {"q", "idle"}}
    monkeypatch.setattr(fleet, "consumed", lambda _: answers["taken"])
    found = {each.split()[0]: each for each in rows(page.get("workers"))}
    assert found["exports"].startswith("exports 2 1h 0m no worker that answers")
    assert found["q"].endswith("yes")
    assert found["idle"].startswith("idle 0")
    assert list(found).index("exports") < list(found).index("q")
    page.post("limit/change?name=gpu", {"change": "pause"})  # it is read again
    answers["taken"] = None
    answer = page.get("workers")
    assert "not known" in next(each for each in rows(answer) if each.startswith("exports"))
    assert "no worker answered a remote control command" in text(answer)


def test_set_aside_records_are_listed(page: Site, worker: TermsCaller, redis: Redis) -> None:
    assert "Nothing is set aside." in text(page.get("workers"))
    worker.put(HOSTILE, ONE)
    redis.hset(KEY["records"], HOSTILE, "not a record")
    worker.exchange(2)  # which finds it
    page.post("limit/change?name=api", {"change": "pause"})
    answer = page.get("workers")
    assert any(each.startswith(HOSTILE) for each in rows(answer)), text(answer)
    assert HOSTILE not in answer.text
