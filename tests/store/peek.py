"""Everything the store keeps, read without its scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tests.store.caller import KEYS

if TYPE_CHECKING:
    from redis import Redis

LIMITS, USED, LEASES, RECORDS, PARKED, MESSAGES, META, *_ = KEYS.all

_TICKET_DIGITS = 16


class Record(NamedTuple):
    """What the store knows of one delivery."""

    state: str
    nonce: str
    limit: str
    attempt: int
    ticket: str
    queue: str
    deliveries: int
    lock: list[Any] | bool | None = None
    more: dict[str, Any] | None = None

    @property
    def needs(self) -> list[tuple[str, int]]:
        """What it takes of which limits."""
        if self.more and "n" in self.more:
            return [(limit, cost) for limit, cost in self.more["n"]]
        return [(self.limit, 1)]


class Place(NamedTuple):
    """A place in a line."""

    limit: str
    queue: str
    ticket: str
    task: str


@dataclass(frozen=True)
class Snapshot:
    """The store at one instant. A twin is the second delivery of a task id, kept beside the first."""

    #: as last declared; those that have more than a number are left out
    limits: dict[str, int]
    used: dict[str, int]
    leases: dict[str, float]
    records: dict[str, Record]
    twins: dict[str, Record]
    line: tuple[Place, ...]
    messages: dict[str, bytes]
    twin_messages: dict[str, bytes]
    meta: dict[str, str]
    #: server time in milliseconds
    now: float

    @property
    def offers(self) -> dict[tuple[str, str], str]:
        """The queues that it is the turn of, or that are passed over, by limit and queue."""
        fields = {name.removeprefix("offer:"): value for name, value in self.meta.items() if name.startswith("offer:")}
        return {cast("tuple[str, str]", tuple(name.split("\0"))): value for name, value in fields.items()}

    def holders(self, limit: str) -> list[str]:
        return sorted(task for task, record in self.records.items() if record.state == "H" and record.limit == limit)

    def waiting(self, limit: str) -> list[str]:
        """Who waits for this limit, first come first."""
        places = sorted((place for place in self.line if place.limit == limit), key=lambda place: place.ticket)
        return [place.task for place in places]


def peek(client: Redis) -> Snapshot:
    """Read the store while nobody writes to it."""
    # No transaction: Redis 7.0 refuses even one that only reads when it is out of memory.
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        for name in (LIMITS, USED, RECORDS, MESSAGES, META):
            pipe.hgetall(name)
        pipe.zrange(LEASES, 0, -1, withscores=True)
        pipe.zrange(PARKED, 0, -1)
        (seconds, microseconds), limits, used, packed, messages, meta, leases, members = pipe.execute()
    records = {field.decode(): Record(*json.loads(value)) for field, value in packed.items()}
    texts = {field.decode(): value for field, value in messages.items()}
    return Snapshot(
        limits={name.decode(): int(value) for name, value in limits.items() if value.isdigit()},
        used={name.decode(): int(value) for name, value in used.items()},
        leases={task.decode(): until for task, until in leases},
        records={task: record for task, record in records.items() if not task.startswith("\0")},
        twins={task[1:]: record for task, record in records.items() if task.startswith("\0")},
        line=tuple(_place(member.decode()) for member in members),
        messages={task: text for task, text in texts.items() if not task.startswith("\0")},
        twin_messages={task[1:]: text for task, text in texts.items() if task.startswith("\0")},
        meta={name.decode(): value.decode() for name, value in meta.items()},
        now=seconds * 1000 + microseconds // 1000,
    )


def _place(member: str) -> Place:
    limit, queue, rest = member.split("\0")
    return Place(limit, queue, rest[:_TICKET_DIGITS], rest[_TICKET_DIGITS:])


def check(store: Snapshot) -> None:
    """Whether all the indexes say the same; true at any instant."""
    held = {task: record for task, record in store.records.items() if record.state == "H"}
    parked = {task: record for task, record in store.records.items() if record.state == "P"}
    assert held.keys() | parked.keys() == store.records.keys()
    hurried = {task for task, record in parked.items() if record.more and "d" in record.more}
    assert held.keys() | hurried == store.leases.keys()
    used: dict[str, int] = {}
    for limit, cost in [need for record in held.values() if record.limit for need in record.needs]:
        used[limit] = used.get(limit, 0) + cost
    assert store.used == used
    places = {Place(record.limit, record.queue, record.ticket, task) for task, record in parked.items()}
    assert set(store.line) == places
    assert parked.keys() <= store.messages.keys() <= store.records.keys()
    assert store.twins.keys() == store.twin_messages.keys()
    assert store.twins.keys() <= store.records.keys()
    assert all(record.state == "T" for record in store.twins.values())
    # Who takes turns may have the same place as somebody else.
    waiting = (*parked.values(), *store.twins.values())
    shared = {"f", "x"}  # one that only has to be told that it expired, too
    tickets = [record.ticket for record in waiting if not shared & (record.more or {}).keys()]
    assert len(tickets) == len(set(tickets)), "two tasks have the same place"
    assert all(len(ticket) == _TICKET_DIGITS for ticket in tickets)
    assert store.offers.keys() <= {(place.limit, place.queue) for place in store.line}


def expire(client: Redis, *tasks: str) -> None:
    """Let the leases of these holders end, as if their workers had been silent for so long."""
    for task in tasks:
        client.zadd(LEASES, {task: 1}, xx=True)


def pass_over(client: Redis, limit: str, queue: str, *, for_ms: int = 60_000) -> None:
    """Let the offer to a queue end unanswered: it is passed over from now on, for so long."""
    client.hset(META, f"offer:{limit}\0{queue}", f"{peek(client).now - 1:.0f} {for_ms}")
