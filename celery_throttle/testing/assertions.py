"""The assertions of the kit.

Each waits until nothing moves, or for the expected state; none sleeps for a fixed time. A failure has the expectation,
the state instead, and the output of explain and status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task, states

from celery_throttle.control.known_limits import task_id_of
from celery_throttle.control.limit_control import MOST
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.wording import counted
from celery_throttle.core.wording import times as often
from celery_throttle.tasks.rate_limited import RateLimited
from celery_throttle.tasks.registry import dedup_of, policies_of
from celery_throttle.testing.messages import WITHIN, ids
from celery_throttle.testing.needs import arguments_of, assert_needs, call_of, call_text, needs_of
from celery_throttle.testing.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.testing.bodies import Body

__all__ = ["Assertions"]

__tracebackhide__ = True  # pytest shows the line of the test instead

#: The states of a task that waits in the store.
_PARKED = ("parked", "waiting for its identity lock")


class Assertions(Scene):
    """The assertions about tasks, limits and locks; each raises `AssertionError`, at once in eager mode.

    ``result`` is the value of ``delay``, or a task id. ``limit`` is a `Limit`, its name, or a task with one limit, and
    ``key`` the value of its key. ``call`` is a signature, such as ``charge.s(order_id=7)``. ``within`` is in seconds.
    """

    assert_needs = staticmethod(assert_needs)
    needs_of = staticmethod(needs_of)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def assert_parked(
        self, result: Any, behind: Any = None, key: object = None, place: int | None = None, within: float = WITHIN
    ) -> None:
        """Assert that a task is parked, behind this limit, at this place of the line.

        Without a limit also a task that waits for its identity lock.
        """
        task = self._id("assert_parked", result)
        bucket = None if behind is None else self._bucket(behind, key)

        def is_so() -> bool:
            found = self.control.explain(task)
            return found.state in _PARKED and bucket in (None, found.bucket) and place in (None, found.place)

        if self._settled(is_so, within):
            return
        found, named = self.control.explain(task), self._named(task)
        if found.state not in _PARKED or (bucket and not found.bucket):
            behind = f" behind {bucket}" if bucket else ""
            raise self._failure(f"{named} is not parked{behind}: {self._describe(task)}.", task)
        if bucket not in (None, found.bucket):
            raise self._failure(f"{named} is parked behind {found.bucket}, not behind {bucket}.", task)
        line = [each.task_id for each in self.control.limit(str(found.limit), key=found.key).parked(most=MOST)]
        sentence = f"{named} has place {found.place} behind {found.bucket}, not {place}: the line is {ids(line)}."
        raise self._failure(sentence, task)

    def assert_started(self, result: Any, within: float = WITHIN) -> None:
        """Assert that the body of a task has begun; a body at a gate counts."""
        task = self._id("assert_started", result)
        if not self._until(lambda: bool(self._seen.bodies_of(task)), within):
            raise self._failure(
                f"{self._named(task)} has not started within {within:g} s: {self._describe(task)}.", task
            )

    def assert_not_started(self, result: Any) -> None:
        """Assert that the body of a task has not begun when nothing moves."""
        task = self._id("assert_not_started", result)
        self.settle()
        if self._seen.bodies_of(task):
            raise self._failure(f"{self._named(task)} has started: {self._describe(task)}.", task)

    def assert_dropped(self, result: Any, why: str = "", within: float = WITHIN) -> None:
        """Assert that a task ended as revoked, without a body, and that ``why`` is a part of the reason.

        The reason of a ``start_deadline`` is "expired", that of an operator "dropped by ...". That of a newer
        call is "replaced" or "revoked".
        """
        task = self._id("assert_dropped", result)
        named = self._named(task)
        if not self._until(lambda: self._state(task) == states.REVOKED, within) or self._seen.bodies_of(task):
            raise self._failure(f"{named} is not dropped: {self._describe(task)}.{self._deadline(task)}", task)
        reason = str(self.app.backend.get_result(task))
        if why not in reason:
            raise self._failure(f"{named} was dropped for the reason {reason!r}, not {why!r}.", task)

    def assert_sent_back(self, result: Any, pauses: float | None = None, within: float = WITHIN) -> None:
        """Assert that the body of a task raised `RateLimited`, with this number of seconds."""
        task = self._id("assert_sent_back", result)

        def raised() -> list[float]:
            outcomes = [each.outcome for each in self._seen.bodies_of(task)]
            return [each.retry_after for each in outcomes if isinstance(each, RateLimited)]

        if not self._until(lambda: bool(raised()), within):
            raise self._failure(f"{self._named(task)} was not sent back: {self._describe(task)}.", task)
        if pauses not in (None, raised()[-1]):
            sentence = f"{self._named(task)} pauses its limits for {raised()[-1]:g} s, not for {pauses:g} s."
            raise self._failure(sentence, task)

    def assert_ran(self, call: Any, times: int = 1, within: float = WITHIN) -> None:
        """Assert how often bodies of a call have begun; ``charge`` alone: with any arguments.

        Arguments are compared by name, with defaults; ``unittest.mock.ANY`` stands for any value.
        """
        task, args, kwargs = self._call(call)
        text = str(task.name) if isinstance(call, Task) else call_text(task, args, kwargs)
        wanted = None if isinstance(call, Task) else arguments_of(task, args, kwargs)

        def of_task() -> list[Body]:
            return [each for each in list(self._seen.bodies) if each.name == task.name]

        def ran() -> int:
            return sum(wanted in (None, arguments_of(task, each.args, each.kwargs)) for each in of_task())

        if not self._settled(lambda: ran() == times, within):
            bodies = ", ".join(f"{call_text(task, each.args, each.kwargs)} on {each.node}" for each in of_task())
            sentence = f"{text} ran {often(ran())}, not {often(times)}: {bodies or 'no body of the task began'}."
            raise self._failure(sentence)

    # -- limits --------------------------------------------------------------------------------------------------

    def assert_held(self, limit: Any, permits: int, key: object = None, within: float = WITHIN) -> None:
        """Assert the number of permits in use when nothing moves; without a key, those of all keys."""
        bucket, control = self._bucket(limit, key), self.control.limit(limit, key=key)
        if not self._settled(lambda: control.status().held_in_all == permits, within):
            found = counted(control.status().held_in_all, "permit")
            holders = ids((each.task_id for each in control.holders()), "no task")
            raise self._failure(f"{bucket} has {found} in use, not {permits}, held by {holders}.")

    def assert_line(self, limit: Any, results: Sequence[Any], key: object = None, within: float = WITHIN) -> None:
        """Assert the parked tasks in the line of a limit, in order, when nothing moves."""
        bucket, control = self._bucket(limit, key), self.control.limit(limit, key=key)
        wanted = [self._id("assert_line", each) for each in results]
        line: list[str] = []

        def is_so() -> bool:
            line[:] = [each.task_id for each in control.parked(most=MOST)]
            return line == wanted

        if not self._settled(is_so, within):
            same = next((i for i, pair in enumerate(zip(line, wanted, strict=False)) if pair[0] != pair[1]), None)
            place = 1 + (min(len(line), len(wanted)) if same is None else same)
            sentence = f"The line of {bucket} is {ids(line)}, not {ids(wanted)}: place {place} differs."
            raise self._failure(sentence, *line[place - 1 : place])

    def assert_most_at_once(self, limit: Any, permits: int, key: object = None, *, at_most: bool = False) -> None:
        """Assert the most permits that bodies held at once since the test began, when nothing moves.

        Exactly so many, which shows that the limit was reached; with ``at_most`` so many or fewer. Without a key, each
        key counts by itself. Permits of `hold` do not count.
        """
        bucket = self._bucket(limit, key)
        self.settle()
        most, bodies = max(map(self._with_others, self._holding(bucket)), default=(0, []), key=lambda each: each[0])
        if most > permits:
            sentence = f"{bucket}: {most} at once, not {permits}: {ids(each.task_id for each in bodies)} overlapped."
            raise self._failure(sentence, *(each.task_id for each in bodies))
        if most < permits and not (at_most and most):
            more = "Publish more tasks, or have their bodies wait at a gate()."
            raise self._failure(f"{bucket} was never full: {most} of {permits} at once. {more}")

    def _holding(self, bucket: Bucket) -> list[tuple[Body, Bucket]]:
        """Return the bodies that took permits of a limit (of any key) or of one key."""
        rows = [(body, found) for body in list(self._seen.bodies) for found, _ in body.costs]
        return [row for row in rows if row[1] == bucket or (bucket.key is None and row[1].name == bucket.name)]

    def _with_others(self, row: tuple[Body, Bucket]) -> tuple[int, list[Body]]:
        """Return the permits in use when a body began, and the bodies that had them."""
        at = row[0].began
        bodies = [each for each, _ in self._holding(row[1]) if each.began <= at < each.ended and not each.lost]
        return sum(dict(each.costs)[row[1]] for each in bodies), bodies

    # -- locks ---------------------------------------------------------------------------------------------------

    def assert_duplicate(self, result: Any, of: Any) -> None:
        """Assert that a call is a duplicate of another: it has the same id, or ends without a body of its own."""
        first, task = self._id("assert_duplicate", of), task_id_of("assert_duplicate", result)
        if task == first or (getattr(result, "state", "") == states.REVOKED and first in str(result.result)):
            return
        named = self._named(self._id("assert_duplicate", result))
        self.settle()
        one, other = self._identity(task), self._identity(first)
        if one != other:
            raise self._failure(f"{named} is no duplicate: its identity {one} is not {other}.", task, first)
        waits = self.control.explain(task).state in ("waiting for its identity lock", "ended without running")
        if self._seen.bodies_of(task) or not (waits or task in self._seen.over):
            raise self._failure(f"{named} is no duplicate: {self._describe(task)}.", task, first)

    def _identity(self, task_id: str) -> str:
        call = self._seen.calls[task_id]
        signature = self.app.tasks[call.name].s(*call.args, **call.kwargs).set(headers=call.headers)
        return f"{call.name}: {needs_of(signature).identity}"

    def assert_locked(self, call: Any, within: float = WITHIN) -> None:
        """Assert that a task has the identity lock of a call; the lock of a remembered call is held, too."""
        task, args, kwargs = self._call(call)
        if not self._until(lambda: task.locked_by(*args, **kwargs) is not None, within):
            ended = [each.state for each in self._seen.bodies if each.name == task.name and not each.runs]
            dedup = dedup_of(task)
            remember = f"remember is {dedup.remember:g} s" if dedup and dedup.remember else "remember is off"
            why = f"the last body of the task ended with {ended[-1]}, and {remember}" if ended else "no body has ended"
            raise self._failure(f"{call_text(task, args, kwargs)} is not locked: {why}.")

    def assert_not_locked(self, call: Any, within: float = WITHIN) -> None:
        """Assert that no task has the identity lock of a call."""
        task, args, kwargs = self._call(call)
        if not self._until(lambda: task.locked_by(*args, **kwargs) is None, within):
            raise self._failure(f"{call_text(task, args, kwargs)} is locked: {task.locked_by(*args, **kwargs)}.")

    # -- names ---------------------------------------------------------------------------------------------------

    def _bucket(self, limit: Any, key: object) -> Bucket:
        self._check()
        control = self.control.limit(limit, key=key)
        return Bucket(control.name, control.key)

    def _call(self, call: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        self._check()
        return call_of(call)

    def _deadline(self, task_id: str) -> str:
        policy = policies_of(self.app).get(self._seen.calls[task_id].name)
        deadline = policy.start_deadline if policy is not None else None
        return f" Its start_deadline is {deadline:g} s: throttle.advance({deadline + 1:g})." if deadline else ""
