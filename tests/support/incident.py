"""An incident in a store, as an operator meets it: much of it is loud, and the cause is easily hidden.

Workers are stand-ins with calls to the real store: two that work, one that is frozen and one that was killed; one of
them is of an older release. There are seven limits, 1 501 keys and a paused tenant limit with many keys. Nothing starts
in a GPU line, and no worker consumes one queue.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from redis import Redis

from celery_throttle import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.store.scripts import execute
from tests.store.caller import KEYS
from tests.store.peek import KEY, expire, peek
from tests.store.terms_caller import TermsCaller, terms

__all__ = ["HOUR", "LIMITS", "Incident", "incident"]

HOUR = 3600.0
#: Parked tasks of one call.
_ROWS = 100

API = Limit("api", 2)
GPU = Limit("gpu", 1)
MAIL = Limit("mail", rate="100/m")
ORDERS = Limit("orders", 4)
REPORTS = Limit("reports", 1)
TENANT = Limit("tenant", 1, key="tenant_id")
USER = Limit("user", 1, key="user_id")
LIMITS = (API, GPU, MAIL, ORDERS, REPORTS, TENANT, USER)


@dataclass
class Incident:
    """The parts of the incident.

    Attributes:
        works: a worker that answers.
        frozen: one that has not renewed for long.
        parked: how many tasks wait, by limit.
    """

    works: TermsCaller
    frozen: TermsCaller
    parked: dict[str, int] = field(default_factory=dict)

    def park(self, tasks: list[tuple[str, Needs, float]], queue: str = "q") -> None:
        """Set tasks aside: name, needs, and for how many seconds they have waited."""
        for begin in range(0, len(tasks), _ROWS):
            some = tasks[begin : begin + _ROWS]
            rows = [self.works.parcel(name, needs, queue=queue, age=age) for name, needs, age in some]
            self.works.exchange(parked=rows)


def incident(client: Redis, *, paused_keys: int = 51, keys: int = 1501) -> Incident:
    """Fill an empty store.

    Args:
        client: of the store.
        paused_keys: of the paused limit ``tenant``, each with one task that waits.
        keys: of ``tenant`` and ``user`` together; those of ``user`` have one task that waits each.
    """
    works, frozen, killed, old = (TermsCaller(client, letter * 8, "q", prefix=KEYS.prefix) for letter in "abcd")
    made = Incident(works, frozen)
    old.declare(Limit("orders", 8))
    old.look(0)
    works.declare(*LIMITS)
    works.look(0)
    for worker, task in ((frozen, "frozen"), (killed, "killed")):
        worker.know(ORDERS)
        worker.take(task, terms(ORDERS).same)
    works.take("trains", terms(GPU).same)
    _held_since(client, "trains", 2 * HOUR)
    tenants = [(f"tenant {number}", _of(TENANT, f"t{number}"), HOUR / 2 + number) for number in range(paused_keys)]
    users = [(f"user {number}", _of(USER, f"u{number}"), 1.0) for number in range(keys - paused_keys)]
    _pause(works, "tenant")
    made.park(tenants + users)
    made.park([(f"gpu {number}", terms(GPU).same, 700.0 - number) for number in range(3)])
    made.park([(f"export {number}", terms(REPORTS).same, HOUR) for number in range(2)], queue="exports")
    expire(client, "frozen", "killed")  # last, because each call reclaims ended leases
    made.parked = {"tenant": len(tenants), "user": len(users), "gpu": 3, "reports": 2}
    return made


def _of(limit: Limit, key: str) -> Needs:
    return terms(limit).needs({"keys": {limit.name: key}})


def _held_since(client: Redis, task: str, ago: float) -> None:
    record = peek(client).records[task].raw
    client.hset(KEY["records"], task, json.dumps(record | {"since": record["since"] - ago * 1000}))


def _pause(worker: TermsCaller, limit: str) -> None:
    execute(worker.client, worker.store.control(limit, "pause", "1", "0", "ana", "incident 42"))
