"""Reading the answers of the scripts, and passing them on to the gate."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.store.exchange_reply import Answer, read_exchanged
from celery_throttle.store.reading import UnreadableReply
from celery_throttle.worker.store_side.decisions import deliver

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


def test_error_about_one_row_leaves_the_others() -> None:
    done: list[Any] = []

    def take(row: Any, *_: object) -> None:
        done.append(row)
        raise ValueError(row)

    gate: Any = SimpleNamespace(
        **dict.fromkeys(
            ("refused", "parked", "has_run", "crowded", "sent_back", "granted", "resumed", "withdrawn"), take
        )
    )
    batch: Any = SimpleNamespace(arrived=["t1", "t2"])
    rows: Any = SimpleNamespace(arrived=[Answer.PARKED, Answer.GRANTED], grants=["t3", "t4"], withdrawn=["t5", "t6"])
    deliver(gate, "", batch, rows)
    assert done == ["t1", "t2", "t3", "t4", "t5", "t6"]
