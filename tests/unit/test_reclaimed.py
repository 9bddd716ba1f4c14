"""The log line about permits of a lost worker."""

from __future__ import annotations

import pytest

from celery_throttle.core.task_codes import TaskNames, code_of
from celery_throttle.store.exchange_reply import Cleared, read_cleared
from celery_throttle.store.reclaimed import reclaimed_text

NAMES = TaskNames({"shop.call": {"api"}, "shop.sync": {"shop.sync"}})
CODE = code_of("shop.call", {"api"})
FROM_CALL = "Permit of limit api reclaimed from task shop.call[t1]"


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (
            Cleared("t1", "1:api", "w1", CODE, 72.4),
            f"{FROM_CALL}: worker w1 is lost or cut off from the store, and the lease ended 1m 12s ago",
        ),
        (Cleared("t1", "1:api", code="ffffffff"), "Permit of limit api reclaimed from task t1"),
        (Cleared("t1", "1:shop.sync"), "Permit of limit shop.sync reclaimed from task shop.sync[t1]"),
        (Cleared("t1", "1:tenant\x1facme"), "Permit of limit tenant[acme] reclaimed from task t1"),
        (Cleared("t1", ""), "Identity lock reclaimed from task t1"),
        (Cleared("t\x1b[2J", "1:api\x07"), r"Permit of limit api\x07 reclaimed from task t\x1b[2J"),
    ],
)
def test_log_line_has_the_available_facts(holder: Cleared, text: str) -> None:
    assert reclaimed_text(holder, NAMES) == text


def test_a_row_may_have_task_and_needs_alone() -> None:
    assert read_cleared(b"t1", b"1:api") == Cleared("t1", "1:api")
    assert read_cleared(b"t1", b"1:api", b"w1:2", b"c", 1500) == Cleared("t1", "1:api", "w1", "c", 1.5)
