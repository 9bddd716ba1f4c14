"""Stories of an operator: see `tests.store.stories`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.control.metrics import measured
from tests.store.caller import started
from tests.store.peek import KEY, peek
from tests.store.stories import Story

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.control.findings import Finding
    from celery_throttle.control.limit_control import LimitControl
    from tests.store.caller import Caller
    from tests.support.shell import Ended

__all__ = ["DeskStory", "all_started", "be_held_for"]


def be_held_for(redis: Redis, task: str, seconds: float) -> None:
    """Let a task have its permit since so long ago."""
    record = peek(redis).records[task].raw
    redis.hset(KEY["records"], task, json.dumps(record | {"since": record["since"] - seconds * 1000}))


def all_started(worker: Caller) -> int:
    """How many really start, where there are slots for all."""
    count = 0
    while True:
        reply = worker.look(50)
        count += len(started(reply))
        if not reply.more and not reply.grants:
            return count


class DeskStory(Story):
    """A story of the gate with an operator. In each text ``;`` is shown as ``,``, and a changing time as ``TIME``."""

    def __init__(self, redis: Redis, request: pytest.FixtureRequest, app: Any, run: Callable[..., Ended]) -> None:
        super().__init__(redis, request)
        self.control, self._app, self._command = ThrottleControl(app), app, run

    def _limit(self, name: str) -> LimitControl:
        limit, _, key = name.partition("/")
        return self.control.limit(limit, key=key or None)

    def change(self, name: str, change: str, *permits: str, **options: str) -> Any:
        """Change a limit or a key at run time: ``change tenant/a override 5``."""
        return getattr(self._limit(name), change)(*map(int, permits), **options)

    def held_for(self, task: str, seconds: str) -> None:
        be_held_for(self.redis, task, float(seconds))

    def row(self, limit: str) -> str:
        """Return the row of a limit or key in ``status``, after its name."""
        (found,) = [row[1:] for row in self._command("status").rows if row[0] == limit]
        return " | ".join(found).replace("; ", ", ")

    # -- reports -----------------------------------------------------------------------------------------------------

    def _found(self, patience: str = "600") -> list[Finding]:
        verdict = self.control.report(patience=float(patience))
        return [*verdict.alarms, *verdict.remarks]

    def report(self, **patience: str) -> str:
        """Return the kinds of the findings, each with its limit or queue; those of alarms in capitals."""
        found = []
        for each in self._found(**patience):
            place = f"{each.limit or each.queue or ''}/{each.key or ''}".rstrip("/")
            found.append(f"{each.kind.upper() if each.alarm else each.kind} {place}".rstrip())
        return ", ".join(found)

    def _first(self, part: str) -> str:
        text: Any = getattr(self._found()[0], part)
        text = " | ".join(text) if isinstance(text, tuple) else text
        return re.sub(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC|\d+\.\d s|\d+m \d+s", "TIME", text).replace("; ", ", ")

    def what(self, last: str = "") -> str:
        """Return what the first finding is about; ``what last``: its last sentence."""
        return self._first("what").rpartition(". ")[2] if last else self._first("what")

    def reason(self) -> str:
        return self._first("why")

    def advice(self) -> str:
        return self._first("do")

    def waits(self) -> int:
        """Return how many tasks wait for the reason of the first finding."""
        return self._found()[0].waits

    # -- forecasts ---------------------------------------------------------------------------------------------------

    def forecast(self, name: str, *permits: str, **change: Any) -> str:
        """Return how many tasks would start, and how many would wait for which reason."""
        found = self._limit(name).forecast(*map(int, permits), **change)
        bounds = [
            f"{each.tasks} {each.kind} {each.limit or each.queue or ''}/{each.key or ''}".rstrip("/")
            for each in found.bounds
        ]
        return ", ".join([f"{'at most ' * found.at_most}{found.starts}", *bounds])

    def bound(self, name: str, *permits: str) -> str:
        """Return why the first of them would wait."""
        return self._limit(name).forecast(*map(int, permits)).bounds[0].why

    def starts(self) -> int:
        """Return how many tasks start if there are slots for all."""
        return all_started(self.by)

    # -- runnable tasks ----------------------------------------------------------------------------------------------

    def runnable(self, queue: str = "q") -> str:
        """Return how many tasks of a queue run, and how many could start."""
        (found,) = self.control.runnable(queue)
        return f"{found.running} {found.ready}"

    # -- metrics -----------------------------------------------------------------------------------------------------

    def metrics(self, limit: str, *wanted: str) -> str:
        """Return these metrics of a limit, by their short names; large ones to the nearest hundred."""
        found = {
            metric.name.removeprefix("celery_throttle_"): sample.value
            for metric in measured(self._app)
            for sample in metric.samples
            if sample.labels == {"group": "", "limit": limit}
        }
        numbers = (found.get(name, -1) for name in wanted)
        return " ".join("-" if each < 0 else f"{each if each < 100 else round(each, -2):g}" for each in numbers)
