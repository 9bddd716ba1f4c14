"""A record that cannot be read is set aside with its reason; the line, and everything else of its group, goes on."""

from __future__ import annotations

import pytest

from celery_throttle import ThrottleControl
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, corrupt_record, counts
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

GARBAGE = ["", "garbage", '["P",{}]', '{"version":9000,"state":"parked"}', "null"]


@pytest.mark.parametrize("content", GARBAGE)
def test_record_of_a_parked_task_that_cannot_be_read(
    workers: Workers, journal: Journal, state: State, content: str
) -> None:
    workers.conf["throttle_lease"] = LONG_LEASE
    app = workers.start_app(DOORS, concurrency=3)
    journal.wait_begun(app.hold.delay("first"))
    broken, after = app.hold.delay("broken"), app.hold.delay("after")
    state.wait_parked(broken, after)
    with state.client() as client:
        corrupt_record(client, broken.id, content)

    journal.let_all_go()

    journal.wait_finished(1, "after", timeout=AT_ONCE)
    app.pair.delay("of another limit").get(timeout=AT_ONCE)
    app.hold.delay("new").get(timeout=AT_ONCE)
    assert counts(journal) == {"first": 1, "after": 1, "of another limit": 1, "new": 1}
    # Each reader gets a note of it, and all else.
    assert state.explain(broken).state != "held"
    until(lambda: not state.used)
    assert broken.id in state.ids()


def test_record_with_a_byte_that_is_no_text_costs_its_task_alone(
    workers: Workers, journal: Journal, state: State
) -> None:
    """Lua's JSON reads it, Python's does not: the worker goes on, with plain tasks, too."""
    workers.conf["throttle_lease"] = LONG_LEASE
    app = workers.start_app(DOORS, concurrency=3)
    journal.wait_begun(app.hold.delay("first"))
    broken, after = app.hold.delay("broken"), app.hold.delay("after")
    state.wait_parked(broken, after)
    with state.client() as client:
        corrupt_record(client, broken.id, lambda record: record[:-1] + b',"code":"\xff"}')

    journal.let_all_go()

    journal.wait_finished(1, "after", timeout=AT_ONCE)
    app.plain.delay("plain").get(timeout=AT_ONCE)
    app.hold.delay("new").get(timeout=AT_ONCE)
    (aside,) = until(ThrottleControl(app.app).set_aside, timeout=AT_ONCE)
    assert aside.task_id == broken.id
    assert aside.why
    until(lambda: not state.used)
