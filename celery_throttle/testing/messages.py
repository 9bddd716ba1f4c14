"""The words of failures: the expectation, the state instead, and the output of explain and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.errors import ThrottleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.control.throttle_control import ThrottleControl

__all__ = ["EAGER", "NOT_ENTERED", "NO_WORKER", "TURNED_OFF", "WITHIN", "failure", "ids", "short"]

#: Seconds to wait for a state that has to come: enough for a busy machine, since they pass only if it does not come.
WITHIN = 10.0

NOT_ENTERED = "The test has not begun, and the app has its own store: write with ThrottleTest(app) as throttle: ..."
EAGER = (
    "Eager mode: nothing is parked or held, so only assert_needs works. Use throttle_worker, and turn eager mode off "
    "for this test: ThrottleTest(app, task_always_eager=False) or @pytest.mark.throttle(task_always_eager=False)."
)
TURNED_OFF = (
    "throttle_enabled is False: nothing is parked or held, so only assert_needs works. Turn it on for this test: "
    "ThrottleTest(app, throttle_enabled=True) or @pytest.mark.throttle(throttle_enabled=True)."
)
NO_WORKER = "No worker runs, so no task starts: use the fixture throttle_worker, or with throttle.run_worker()."


def short(task_id: str) -> str:
    """Return the beginning of a task id, for the first line of a message; "outside" for a permit outside of tasks."""
    return task_id.partition(":")[0][:8]


def ids(task_ids: Iterable[str], none: str = "empty") -> str:
    """Return the beginnings of task ids: ``2f0c41aa, 5a11b3c4``."""
    return ", ".join(map(short, task_ids)) or none


def failure(sentence: str, control: ThrottleControl, task_ids: Iterable[str]) -> AssertionError:
    """Return the error of an assertion: its sentence, then the output of explain and status, indented.

    Without the tasks that the store does not have, and the limits that are not in use.
    """
    try:
        found = [each for each in map(control.explain, task_ids) if each.state != "unknown"]
        used = [each for each in control.status() if each.held or each.parked or each.changes]
        looks = [*map(str, found), *(f"status: {each}" for each in used)] or ["status: no limit is in use"]
    except ThrottleError as error:
        looks = [f"explain and status: {error}"]
    return AssertionError("\n  ".join([sentence, *(line for each in looks for line in each.splitlines())]))
