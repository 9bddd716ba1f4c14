"""A worker as the store sees it, whose tasks need more than one permit of one limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from celery_throttle.core.terms import Needs, Terms
from celery_throttle.store import replies
from celery_throttle.store.scripts import execute
from tests.store.caller import Caller, message_of
from tests.store.peek import LEASES, LIMITS, MESSAGES, PARKED, RECORDS, USED

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.core.limits import Limit
    from celery_throttle.store.replies import Grant, Reply


class Permit(NamedTuple):
    """What a task holds."""

    task: str
    nonce: str
    needs: Needs


def terms(*limits: Limit, **options: Any) -> Terms:
    """The terms of a task with these limits; those with a key come first, as the options of a task have them."""
    return Terms(tuple(sorted(limits, key=lambda limit: limit.key is None)), **options)


class TermsCaller(Caller):
    """A `Caller` that asks for what a task's terms say."""

    def arrive(self, task: str, needs: Needs, *, slots: int = 0) -> Permit | None:
        """Arrive at the gate: what it holds, or None if it was parked (or refused even that)."""
        answer, permit = self.ask_for(task, needs)
        if answer in (replies.Answer.GRANTED, replies.Answer.GRANTED_LAST):
            return permit
        self.put_for(task, needs, slots=slots)
        return None

    def ask_for(self, task: str, needs: Needs) -> tuple[int, Permit]:
        permit = Permit(task, self.nonce(), needs)
        reply = replies.reply(execute(self.client, self.store.exchange(self.nonce(), 0, asked=[self._row(permit)])))
        return reply.answers[0], permit

    def put_for(self, task: str, needs: Needs, *, slots: int = 0, queue: str | None = None, number: int = 0) -> Reply:
        row = (task, needs.pool, needs.declared, 0, queue or self.queues[0], message_of(task), "", needs.more)
        number = number or next(self._numbers)
        return replies.reply(execute(self.client, self.store.park(self.nonce(), slots, self.name, number, [row])))

    def end(self, permit: Permit | Grant, outcome: str = "done", *, slots: int = 0) -> tuple[str, ...]:
        """Give back; who is started in the slots."""
        task = permit.task if isinstance(permit, Permit) else permit.task_id
        return started(self.exchange(slots, released=[(task, permit.nonce, outcome)]))

    def renew_for(self, permit: Permit) -> int:
        (answer,) = cast("list[int]", execute(self.client, self.store.renew([self._row(permit)])))
        return answer

    def _row(self, permit: Permit) -> tuple[str, str, str, str, int, str, str]:
        needs = permit.needs
        return permit.task, permit.nonce, needs.pool, needs.declared, 0, "", needs.more


def started(reply: Reply) -> tuple[str, ...]:
    """Whom a reply starts."""
    return tuple(grant.task_id for grant in reply.grants)


def used(client: Redis) -> dict[str, int]:
    """Permits held, by limit."""
    held = cast("dict[bytes, bytes]", client.hgetall(USED))
    return {name.decode().replace("\x1f", "/"): int(value) for name, value in held.items()}


def lines(client: Redis) -> dict[str, list[str]]:
    """Who is in each line, first come first."""
    found: dict[str, list[str]] = {}
    raw = cast("list[bytes]", client.zrange(PARKED, 0, -1))
    members = sorted((member.decode().split("\0") for member in raw), key=lambda each: each[2])
    for limit, _queue, place in members:
        found.setdefault(limit.replace("\x1f", "/"), []).append(place[16:])
    return found


def nothing_left(client: Redis) -> bool:
    """Whether all that the tasks had is gone."""
    return not client.exists(USED, LEASES, RECORDS, PARKED, MESSAGES) and client.hlen(LIMITS) > 0
