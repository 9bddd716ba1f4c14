"""Which task each holder is, however it came to hold."""

from __future__ import annotations

import json
from typing import Any

from redis import Redis

from celery_throttle.core.facts import Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, held_by, passed
from tests.store.peek import KEY


def codes(client: Redis) -> dict[str, str]:
    """Return the codes in the records."""
    records: Any = client.hgetall(KEY["records"])
    return {task.decode(): json.loads(record).get("code") for task, record in records.items()}


def test_it_is_kept_until_the_end(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.arrival("t1", one)._replace(code="00000001")
    assert worker.exchange(asked=[held]).asked == (Answer.GRANTED,)
    assert codes(redis) == {"t1": "00000001"}

    to = worker.arrival("t2", one)._replace(code="00000002")
    worker.exchange(passed=[passed(held.task, held.nonce, Result.SUCCESS, to)])
    assert codes(redis) == {"t2": "00000002"}

    worker.exchange(parked=[worker.parcel("t3", one)._replace(code="00000003")])
    (grant,) = worker.release(to, slots=1).grants
    assert grant.code == "00000003"
    assert codes(redis) == {"t3": "00000003"}

    redis.flushall()
    worker.know(one)
    worker.declare(one)
    assert worker.renew(held_by(grant)._replace(code=grant.code)) == [2]
    assert codes(redis) == {"t3": "00000003"}


def test_nothing_is_kept_of_one_without(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.take("t1", one)
    assert codes(redis) == {"t1": None}
