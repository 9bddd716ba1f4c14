"""The invariants of each start and of each grant."""

from __future__ import annotations

import json
from typing import Any

from tests.explore.store import Content
from tests.explore.world import Run, Worker, World, number_of
from tests.simulation.invariants import Violation

__all__ = ["check_begin", "check_order", "permits_of"]

#: The outcome of a task that does not begin any more.
_NEVER_BEGINS = ("revoked", "expired", "replaced", "duplicate", "skip", "concluded", "done")


def permits_of(world: World, bucket: str) -> int:
    """Return how many permits of a bucket may be held."""
    return world.state.most.get(bucket, world.config.permits[bucket.partition("\x1f")[0]])


def check_begin(world: World, worker: Worker, run: Run) -> None:
    """A body begins: may it, and may it now?"""
    state = world.state
    book, lapsed = state.books[run.task], worker.permits[run.nonce].told.nonce in state.lapsed
    book.ran[run.attempt] = book.ran.get(run.attempt, 0) + 1
    book.credit += lapsed
    if book.told in _NEVER_BEGINS and not (book.doubled and book.told != "revoked"):
        raise Violation(f"told: t{run.task} begins though it has an outcome: {book.told}")
    if book.ran[run.attempt] > 1 + book.credit:
        times = f"{book.ran[run.attempt]} times, {book.credit} allowed more"
        raise Violation(f"ran twice: t{run.task} attempt {run.attempt} begins {times}")
    _check_outcome(world, run)
    if not lapsed:
        _check_beside(world, run)
        _check_caps(world, run)
    if run.lock:
        _check_token(world, run, lapsed=lapsed)


def _check_beside(world: World, run: Run) -> None:
    """No two runs of one task id, nor of one identity."""
    state, dedup = world.state, world.task(run).dedup
    excused = run.nonce in state.unlocked
    for nonce, (task, identity, _) in state.bodies.items():
        if not world.counts(nonce):
            continue
        if task == run.task:
            raise Violation(f"two runs at once of t{run.task}")
        one = dedup is not None and identity and dedup.lock_until != "started"
        if one and not excused and nonce not in state.unlocked:
            raise Violation(f"identity: t{run.task} begins beside t{task}")


#: After one of these a duplicate may have to run itself.
_LOSES_OUTCOMES = ("lease", "killed", "unlock", "visibility", "broker", "store")


def _check_outcome(world: World, run: Run) -> None:
    """A duplicate whose first has come to an end has the outcome of that, and does not run itself."""
    header, faults = world.state.books[run.task].header, world.config.budgets.keys()
    if not header or not header[1] or run.attempt or not faults.isdisjoint(_LOSES_OUTCOMES):
        return
    if world.state.books[number_of(header[1])].told in ("success", "failure"):
        raise Violation(f"outcome: t{run.task} runs itself though {header[1]}, whose duplicate it is, has ended")


def _check_caps(world: World, run: Run) -> None:
    held = [
        world.bound(bucket, nonce)
        for nonce, (task, _, _) in world.state.bodies.items()
        if world.counts(nonce)
        for bucket in world.config.tasks[task].buckets
    ]
    for bucket in (world.bound(each, run.nonce) for each in world.task(run).buckets):
        most = permits_of(world, bucket)
        used = 1 + held.count(bucket)
        if most and used > most:
            raise Violation(f"cap: {used} of {most} permits of {bucket} in use as t{run.task} begins")


def _check_token(world: World, run: Run, *, lapsed: bool) -> None:
    state, lock = world.state, json.loads(run.lock)
    token = int(lock.get("fence", 0))
    first = state.books[run.task].ran[run.attempt] == 1
    exempt = lapsed or lock["lock_until"] == "started" or run.nonce in state.unlocked or not first
    if token and token <= state.fence and not exempt:
        raise Violation(f"the fencing token of t{run.task} does not grow")
    state.fence = max(token, state.fence)


def check_order(world: World, before: Content, granted: list[str]) -> None:
    """Check that no task that came earlier to the same lane stayed parked while this one got its permit."""
    was, now = _records(before), _records(world.state.content)
    for task, record in now.items():
        if record.get("nonce") not in granted or was.get(task, {}).get("nonce") == record["nonce"]:
            continue
        for other, waits in now.items():
            waited = was.get(other)
            if waited is None or not record["needs"] or not _alike(record, waits) or not _runs(record):
                continue
            parked = "nonce" not in waits and "nonce" not in waited and _runs(waits) and _runs(waited)
            if parked and (record["ticket"] == 0 or waits["ticket"] < record["ticket"]):
                raise Violation(f"order: {task} got its permit before {other}")


def _records(content: Content) -> dict[str, dict[str, Any]]:
    found = {task: json.loads(packed) for task, packed in content.get("records", {}).items()}
    return {task: record for task, record in found.items() if "needs" in record}


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["needs"] == other["needs"] and one["queue"] == other["queue"])


def _runs(record: dict[str, Any]) -> bool:
    return (record.get("lock") or {}).get("verdict", "run") == "run" and not record.get("expired")
