"""The main process of a worker hangs: a lease is renewed as long as a body goes on, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.tools import DIES, counts
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.workers import Workers

HANGING = "tests.support.apps.hanging"


@pytest.mark.parametrize(
    ("when", "name", "parked"),
    [("in its end", "pair", False), ("amid its work", "pair", True), ("in its end", "late", True)],
)
def test_permit_of_an_ended_body_comes_free(
    workers: Workers, journal: Journal, state: State, tmp_path: Path, when: str, name: str, parked: bool
) -> None:
    """A task that is acknowledged late, and that only the store has, runs again, as if its worker had died."""
    sign = tmp_path / "hangs"
    hung = workers.start(HANGING, queues="hung", conf=DIES, env={"SIGN": str(sign)})
    app = workers.app(HANGING)
    task, limit = getattr(app, name), state.limit(name)
    if parked:
        limit.pause()
    ends, goes_on = (task.apply_async([label], queue="hung") for label in ("ends", "goes on"))
    if parked:
        state.wait_parked(ends, goes_on)
        limit.resume()
    journal.wait_running(2)
    sign.touch()
    if when == "in its end":
        hung.term()
    else:
        app.hang.apply_async(["hang"], queue="hung")
    hung.wait_for_log("hangs$")
    workers.start(HANGING, queues="celery,hung")
    third, fourth = task.delay("third"), task.delay("fourth")
    state.wait_parked(third, fourth)

    journal.let_go("ends")

    hung.wait_for_log(rf"{ends.id}\] has ended, and this worker, which hangs, has not noticed for 0\.7 s")
    journal.wait_running(1, "third")
    assert state.holders == {goes_on.id, third.id}
    journal.let_go("third")
    journal.wait_running(1, "fourth")
    journal.let_go("fourth")
    again = name == "late"
    if again:
        journal.wait_started(2, "ends")
    assert journal.running("goes on")
    sign.unlink()
    journal.let_all_go()
    if when == "in its end":
        assert hung.wait() == 0
    journal.wait_finished(4 + again + (when == "amid its work"))
    state.wait_clean()
    assert {label: number for label, number in counts(journal).items() if number > 1} == ({"ends": 2} if again else {})
