"""What the scripts answer, as values with names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = ["Answer", "Grant", "Reply", "Withdrawn", "grants", "reply", "withdrawn"]


class Answer(IntEnum):
    """What became of one permit asked for."""

    MUST_PARK = 0
    GRANTED = 1
    ALREADY_PARKED = 2
    GRANTED_LAST = 3


@dataclass(frozen=True)
class Grant:
    """A parked task that has its permit now and starts in the caller's slot."""

    task_id: str
    nonce: str
    limit: str
    attempt: int
    queue: str
    deliveries: int
    message: bytes


@dataclass(frozen=True)
class Reply:
    """The answer to an exchange, a park or a look.

    Attributes:
        answers: one for each permit asked for; for a park, whether the call was carried out now.
        grants: parked tasks to start.
        wait: seconds after which to look again, 0 if there is no need.
        more: whether there is more to start than the caller had slots for.
        emptied: limits with a free permit and nobody in line whom the caller could start.
    """

    answers: tuple[int, ...]
    grants: tuple[Grant, ...]
    wait: float
    more: bool
    emptied: tuple[str, ...]


@dataclass(frozen=True)
class Withdrawn:
    """A task that was taken out of its line."""

    task_id: str
    limit: str
    queue: str
    message: bytes


def reply(raw: Any) -> Reply:
    """Read the reply of exchange.lua, park.lua or look.lua."""
    answers, granted, wait_ms, more, emptied = raw
    return Reply(
        tuple(answers) if isinstance(answers, list) else (answers,),
        grants(granted) if granted else (),
        wait_ms / 1000,
        bool(more),
        tuple(limit.decode() for limit in emptied),
    )


def grants(raw: Any) -> tuple[Grant, ...]:
    """Read a list of grants."""
    return tuple(
        Grant(task.decode(), nonce.decode(), limit.decode(), attempt, queue.decode(), deliveries, message)
        for task, nonce, limit, attempt, _ticket, queue, deliveries, message in raw
    )


def withdrawn(raw: Any) -> tuple[Withdrawn, ...]:
    """Read the reply of withdraw.lua."""
    return tuple(
        Withdrawn(task.decode(), limit.decode(), queue.decode(), message) for task, limit, queue, message in raw
    )
