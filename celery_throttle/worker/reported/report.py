"""The state inside one worker: its permits, the runs that wait and why, and its connection to the store."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.core.policy import costs_of
from celery_throttle.core.queues import BrokerQueue
from celery_throttle.core.store_url import shown
from celery_throttle.worker.reported.signals_and_events import queue_of
from celery_throttle.worker.runs import UNDECIDED, WHY, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from celery_throttle.core.settings import Settings
    from celery_throttle.worker.celery_side.slots import Slots
    from celery_throttle.worker.gate import Gate
    from celery_throttle.worker.runs import Permit, Run
    from celery_throttle.worker.store_side.calls import Calls

__all__ = ["report"]

#: The most tasks that are listed; the others are only counted.
_NAMED = 100


def report(gate: Gate, slots: Slots, settings: Settings) -> dict[str, Any]:
    """Return the state as JSON values: times as ISO 8601 in UTC, durations in seconds; on the loop.

    No call to the store or the broker is made.
    """
    up = {calls.group: calls.link.up for calls in gate.groups}
    running, asking = sorted(gate.running.runs, key=_age), []
    why: dict[str, list[Run]] = {each: [] for each in WHY.values()}
    for run in gate.held.of(*UNDECIDED, *WHY):
        if run.state in UNDECIDED and up[run.group]:
            asking.append(run)
        else:  # its call, if it is in one, is sent again when the store is back
            why[WHY.get(run.state, "store away")].append(run)
    held = [permit for calls in gate.groups for permit in calls.held.values() if permit.run is not None]
    taken = len(running) + gate.held.asking + slots.others.count
    held_back = [(each, run) for each, runs in why.items() for run in runs]
    return {
        "store": shown(settings.url),
        "slots": {"size": slots.size, "free": max(slots.size - taken, 0)},
        "groups": [_group(calls) for calls in gate.groups],
        "held": _listed(held, _holder),
        "waiting": _listed(gate.held.waiting, _task),
        "asking": _listed(asking, _task),
        "held_back": _listed(held_back, lambda each: {**_task(each[1]), "why": each[0]})
        | {"counts": {each: len(runs) for each, runs in why.items() if runs}},
        "unthrottled": _listed([run for run in running if run.permit is None], _task),
    }


def _age(run: Run) -> float:
    return run.came


def _group(calls: Calls) -> dict[str, Any]:
    """Return the state of the connection to a group of limits."""
    link, last = calls.link, None
    if calls.asked_at is not None:
        took = round(calls.took, 6) if calls.took is not None and calls.answered else None
        last = {"number": calls.number, "age": round(monotonic() - calls.asked_at, 3), "took": took}
    return {
        "group": calls.group,
        "worker": calls.worker,
        "up": link.up,
        "since": _moment(link.since),
        "refuses": calls.paused,
        "errors": calls.errors,
        "hints": calls.gets_hints,
        "queues": [BrokerQueue.parse(each).name for each in calls.queues],
        "last_call": last,
    }


def _listed(rows: Collection[Any], shown_as: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    return {
        "count": len(rows),
        "tasks": [shown_as(row) for row in islice(rows, _NAMED)],
        "more": max(len(rows) - _NAMED, 0),
    }


def _task(run: Run) -> dict[str, Any]:
    needs = [{"limit": each.name, "key": each.key, "permits": cost} for each, cost in costs_of(run.needs.text)]
    return {
        "task_id": run.id,
        "task_name": run.request.name,
        "queue": queue_of(run) or None,
        "needs": needs,
        "since": _moment(run.came),
    }


def _holder(permit: Permit) -> dict[str, Any]:
    run: Any = permit.run
    return {
        **_task(run),
        "since": _moment(run.held_since),
        "lease_lost": permit.lost,
        "runs": run.state is State.RUNNING,
        "worker_pid": run.request.worker_pid,
    }


def _moment(time: float) -> str:
    """Return a time on the clock of ``time.monotonic`` as ISO 8601 in UTC."""
    ago = timedelta(seconds=monotonic() - time)
    return (datetime.now(timezone.utc) - ago).isoformat(timespec="milliseconds")
