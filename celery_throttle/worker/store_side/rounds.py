"""How often a task has gone back in line since the outside was asked too often: a count in its own message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.tasks.publish import HEADER

if TYPE_CHECKING:
    from kombu.message import Message

__all__ = ["count_round"]

_ROUNDS = "rounds"


def count_round(message: Message, most: int | None) -> bool:
    """Count that the task goes back once more; False if it has done so as often as it may."""
    headers: dict[str, Any] = message.headers
    about = headers.get(HEADER)
    header = about if isinstance(about, dict) else {}
    rounds = header.get(_ROUNDS)
    before = rounds if isinstance(rounds, int) else 0
    if most is not None and before >= most:
        return False
    headers[HEADER] = {**header, _ROUNDS: before + 1}
    return True
