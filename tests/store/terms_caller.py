"""A worker as the store sees it, whose tasks need more than one permit of one limit."""

from __future__ import annotations

import re
from typing import Any

from redis import Redis

from celery_throttle.core.facts import Facts
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs, Policy, Values
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Grant
from tests.store.caller import Asked, Caller, started
from tests.store.peek import peek

__all__ = ["TermsCaller", "lines", "started", "terms", "used"]


class KnownTerms(Policy):
    """Policy whose needs know of which limits they are."""

    def needs(self, values: Values) -> Needs:
        return Asked(**vars(super().needs(values)), limits=self.limits)


def terms(*limits: Limit, **options: Any) -> Policy:
    """The terms of a task with these limits; those with a key come first, as the options of a task have them."""
    return KnownTerms(tuple(sorted(limits, key=lambda limit: limit.key is None)), **options)


class TermsCaller(Caller):
    """A `Caller` whose tasks have the needs of their terms; it declares these limits when it meets them."""

    def arrive(self, task: str, needs: Needs, *, slots: int = 0) -> Arrival | None:
        """Arrive at the gate; return the holder, or None if the task was parked (or refused)."""
        answer, arrival = self.ask(task, needs)
        if answer == Answer.GRANTED:
            return arrival
        self.put(task, needs, slots=slots)
        return None

    def end(self, run: Arrival | Grant, how: str | Facts = "done", *, slots: int = 0) -> tuple[str, ...]:
        """Give back; return the tasks that are started in the slots."""
        return started(self.release(run, how, slots=slots))


def used(client: Redis) -> dict[str, int]:
    """Permits held, by limit, limit/key or limit/site."""
    return {re.sub("[\x1f\x1d]+", "/", bucket): held for bucket, held in peek(client).used.items()}


def lines(client: Redis) -> dict[str, list[str]]:
    """Return the tasks of each line, oldest first."""
    store = peek(client)
    found: dict[str, list[str]] = {}
    for task, record in sorted(store.parked.items(), key=lambda item: item[1].ticket):
        found.setdefault(store.line_of(record).replace("\x1f", "/"), []).append(task)
    return found
