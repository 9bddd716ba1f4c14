"""A record that cannot be read is set aside with its reason; the line, and everything else of its group, goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle import ThrottleControl
from celery_throttle.core.keys import Keys
from tests.failures.tools import AT_ONCE, DOORS, counts
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

#: Python cannot read either of them; Lua's JSON reads the second.
CONTENTS: dict[str, str | Callable[[bytes], bytes]] = {
    "no JSON": "garbage",
    "a byte that is no text": lambda record: record[:-1] + b',"code":"\xff"}',
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_record_that_cannot_be_read_costs_its_task_alone(
    workers: Workers, journal: Journal, state: State, content: str | Callable[[bytes], bytes]
) -> None:
    """All else goes on, in all workers; and each reader gets a note of it."""
    app = workers.start_app(DOORS, concurrency=3)
    journal.wait_begun(app.hold.delay("first"))
    broken, after = app.hold.delay("broken"), app.hold.delay("after")
    state.wait_parked(broken, after)
    with state.client() as client:
        records = Keys("throttle").key("records")
        record: Any = client.hget(records, broken.id)
        client.hset(records, broken.id, content if isinstance(content, str) else content(record))

    journal.let_all_go()

    journal.wait_finished(1, "after", timeout=AT_ONCE)
    others = {"plain": app.plain, "of another limit": app.pair, "new": app.hold}
    for label, task in others.items():
        task.delay(label).get(timeout=AT_ONCE)
    assert counts(journal) == dict.fromkeys(("first", "after", *others), 1)
    assert state.explain(broken).state != "held"
    (aside,) = until(ThrottleControl(app.app).set_aside, timeout=AT_ONCE)
    assert aside.task_id == broken.id
    assert aside.why
    until(lambda: not state.used)
