"""Reading the answers of the scripts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_throttle.store.exchange_reply import read_exchanged
from celery_throttle.store.reading import UnreadableReply

RECORD = {"v": 2, "nonce": "w:1.0", "needs": "1:gpu", "queue": "q", "ticket": 10_000, "since": 2000}


def reply(*grants: Any, asked: Any = ()) -> list[Any]:
    """Return a reply as exchange.lua does."""
    return [1, list(asked), list(grants), 0, 0, [], [], [], 1, []]


def grant(task: str, record: bytes | None = None, **changed: Any) -> list[Any]:
    packed = json.dumps({name: value for name, value in (RECORD | changed).items() if value is not None}).encode()
    return [task.encode(), packed if record is None else record, b"message"]


@pytest.mark.parametrize(
    "bad",
    [
        grant("bad", b'{"code":"\xff"}'),
        grant("bad", b"["),
        grant("bad", b"7"),
        grant("bad", needs="x:gpu"),
        grant("bad", needs=7),
        grant("bad", nonce=None),
        grant("bad", ticket="now"),
        grant("bad", lock={"verdict": "run"}),
        grant("bad", lock=[1]),
    ],
)
def test_a_grant_that_cannot_be_read_costs_itself_alone(bad: list[Any]) -> None:
    found = read_exchanged(reply(grant("t1"), bad, grant("t2")))
    assert found is not None
    assert [each.task for each in found.grants] == ["t1", "t2"]
    ((task, why),) = found.unread
    assert task == "bad"
    assert why


@pytest.mark.parametrize("raw", [b"OK", None, [], [1, 2], reply(asked=["x"]), reply("row"), reply(7)])
def test_a_reply_that_is_none_counts_as_lost(raw: Any) -> None:
    with pytest.raises(UnreadableReply, match="cannot be read"):
        read_exchanged(raw)
