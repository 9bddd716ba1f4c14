"""A healthy group of limits: all kinds of records at once, and a way back to it."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from kombu.message import Message
from redis import Redis

from celery_throttle.core.dedup import fenced
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival, Delivery
from celery_throttle.store.exchange_reply import Answer, Grant
from celery_throttle.store.history import Counted
from celery_throttle.store.parcel import pack
from celery_throttle.store.scripts import execute
from tests.store.lock_caller import KEEP_LAST, LockCaller, plan_of
from tests.store.peek import KEY
from tests.store.steering import Steering
from tests.store.terms_caller import terms

__all__ = ["LEASE", "LIMITS", "Town", "needs_for"]

LEASE = 600.0
GPU, API = Limit("gpu", 1), Limit("api", 2, rate="6000/m", burst=100)
TENANT, FAIR = Limit("tenant", 1, key="tenant"), Limit("fair", 1, fair_by="who", max_parked=50)
LIMITS = (GPU, API, TENANT, FAIR)
_QUEUE = "12345678:q"


def needs_for(*limits: Limit, who: str = "a") -> Any:
    """Return the permits of a call for these, of the key ``who``."""
    policy = terms(*limits)
    return policy.needs({"keys": {each.name: who for each in limits if each.key}, "fair": [who, 1]})


class Town:
    """Two workers, and a store with some of everything.

    Attributes:
        held: the permits of each worker, by task.
    """

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.workers = [LockCaller(client, f"w@h:1/{name * 8}", _QUEUE, lease=LEASE) for name in "ab"]
        self.held: list[dict[str, Arrival | Grant]] = [{}, {}]
        self._fill()
        self._kept: dict[Any, Any] = {key: client.dump(key) for key in client.keys("*")}
        self._state = [(each.number, deepcopy(each.declared)) for each in self.workers], deepcopy(self.held)

    def restore(self) -> None:
        """Go back to how everything was at first."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for key, packed in self._kept.items():
                pipe.restore(key, 0, packed)
            pipe.execute()
        workers, held = self._state
        for worker, (number, declared) in zip(self.workers, workers, strict=True):
            worker.number, worker.declared = number, deepcopy(declared)
        self.held = deepcopy(held)

    def tasks(self) -> set[str]:
        """Every task in the store."""
        found: list[Any] = self.client.hkeys(KEY["records"])
        return {task.decode(errors="replace") for task in found}

    def _take(self, which: int, task: str, what: Any, **options: Any) -> None:
        worker = self.workers[which]
        arrival = worker.arrival(task, what, **options)
        reply = worker.exchange(asked=[arrival])
        if reply.asked[0] > max(Answer):
            arrival = arrival._replace(lock=fenced(options["lock"], reply.asked[0])[0])
        assert reply.asked[0] == 1 or reply.asked[0] > max(Answer), (task, reply.asked)
        self.held[which][task] = arrival

    def _put(self, which: int, task: str, what: Any, **options: Any) -> None:
        message = pack(Message(body="[]", headers={"task": "call", "id": task}, properties={}, content_type="json"))
        self.workers[which].put(task, what, message=message, **options)

    def _fill(self) -> None:
        a, b = self.workers
        for worker in self.workers:
            execute(self.client, worker.store.declare("", [(each.name, each.declared) for each in LIMITS]))
            worker.declared = {each.name: each.declared for each in LIMITS}
        steering = Steering(self.client)
        steering.say("gpu", "override", 1)
        steering.say("api", "override", json.dumps({"permits": 2, "rates": [[6000, 60_000_000, 90]]}))
        steering.say("tenant\x1fslow", "pause", until="+600000")
        self._take(0, "g1", needs_for(GPU))
        self._take(1, "a1", needs_for(API))
        self._take(1, "t1", needs_for(TENANT, who="a"))
        self._take(0, "f1", needs_for(FAIR))
        for number in range(2, 5):
            self._put(number % 2, f"g{number}", needs_for(GPU))
            self._put(number % 2, f"f{number}", needs_for(FAIR, who="ab"[number % 2]))
            self._put(number % 2, f"both{number}", needs_for(TENANT, API))
        self._put(0, "deadline", needs_for(GPU), wait_ms=6_000_000)
        self._put(0, "paused", needs_for(TENANT, who="slow"))
        # Another delivery of one that runs, one that the broker keeps, and one that has run.
        self._put(1, "g1", needs_for(GPU))
        self._put(0, "kept", needs_for(GPU), unacked=True)
        self._take(0, "over", needs_for(API))
        self._put(1, "over", needs_for(API))
        b.exchange(unacked=[Delivery("over", 0, "x:1")])
        a.release(self.held[0].pop("over"))
        # Locks: one that runs, with a follower; one with a next; one that is remembered; queued; awaited.
        first = plan_of("first")
        self._take(0, "l1", needs_for(API), lock=first.spec)
        self._put(1, "l2", needs_for(API), lock=first.spec)
        last = KEEP_LAST
        self._take(1, "n1", None, lock=last.spec)
        self._put(0, "n2", None, lock=last.spec)
        done = plan_of("done", remember=600.0)
        run = a.start("d1", done)
        a.claim("d2", done, awaited=True)
        a.end(run)
        a.claim("q1", plan_of("queued"))
        self._put(0, "q2", needs_for(GPU), lock=plan_of("queued2").spec)
        execute(self.client, a.store.count([Counted("gpu", False, [0, 1])]))
        steering.drop("gpu", "g4")
        self._put(0, "bad", needs_for(GPU))
        self.client.hset(KEY["aside"], "bad2", '{"v":2,"why":"not readable","since":1700000000000,"record":"x"}')
        self.client.zadd(KEY["ends"], {"aside:bad2": 4e12})
        a.exchange(errors=2)
