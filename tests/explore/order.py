"""The order of starts: within a lane, and over all queues at each site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from celery_throttle.core.policy import costs_of
from tests.explore.store import Content
from tests.explore.world import World
from tests.simulation.invariants import Violation

__all__ = ["check_order"]

#: What the record of a task has that is not to start now.
_NOT_NOW = {"nonce", "expired", "again", "lent"}


def check_order(world: World, before: Content, granted: list[str], permits: dict[str, int]) -> None:
    """Check that none of these got its permit before a task that came earlier, and could have started.

    Args:
        world: after the call that granted.
        before: the content of the store before the call.
        granted: the nonces of those that got permits.
        permits: of each limit.
    """
    was, now = _records(before), _records(world.state.content)
    for task, record in now.items():
        if record.get("nonce") not in granted or was.get(task, {}).get("nonce") == record["nonce"]:
            continue
        if (record.get("lock") or {}).get("verdict", "run") != "run":
            continue  # it gets no permit: its worker tells what became of it
        for other, waits in now.items():
            if other not in was or not record["needs"] or not (_waits(waits) and _waits(was[other])):
                continue
            if record["needs"] == waits["needs"] and record["queue"] == waits["queue"] and _is_before(waits, record):
                raise Violation(f"order: {task} got its permit before {other}")
            ahead = [each for each in now.values() if _waits(each) and _is_before(each, waits)]
            if _shares_other(waits, ahead):
                continue
            for bucket in _lost_turns(world, before, record, waits, permits):
                raise Violation(f"order: {task} got a permit of {bucket} before {other}, which could have started")


def _shares_other(waits: dict[str, Any], ahead: list[dict[str, Any]]) -> bool:
    """Return whether a task is behind one of these at a bucket without sites: it is not first in line then."""
    plain = {bucket.text for bucket, _ in costs_of(waits["needs"]) if "\x1d" not in bucket.text}
    return any(bucket.text in plain for each in ahead for bucket, _ in costs_of(each["needs"]))


def _lost_turns(
    world: World, before: Content, record: dict[str, Any], waits: dict[str, Any], permits: dict[str, int]
) -> Iterator[str]:
    """Yield the sites whose room a task has taken that another one could have had, on a worker with a free slot."""
    for open_bucket in {bucket.text for bucket, _ in costs_of(waits["needs"]) if "\x1d" in bucket.text}:
        fair = json.loads(world.config.limits[open_bucket.partition("\x1f")[0]]).get("fair", False)
        if not _is_before(waits, record, fair=fair):
            continue
        for place, worker in enumerate(world.state.workers):
            if worker is None or worker.leaving or world.config.queues[place] != waits["queue"]:
                continue
            bucket = world.bound(open_bucket, f"{worker.name}:")
            is_same = bucket in [each.text for each, _ in costs_of(record["needs"])]
            needs = world.bound(waits["needs"], f"{worker.name}:")
            could = world.free_slots(place) > 0 and _has_room(world, record, needs, permits)
            known = {**before.get("due", {}), **world.state.content.get("due", {})}
            if is_same and could and not _is_passed(known, bucket, waits["queue"]):
                yield bucket


def _has_room(world: World, record: dict[str, Any], needs: str, permits: dict[str, int]) -> bool:
    """Return whether a task would have room if the one of this record had not started."""
    used = {bucket: int(count) for bucket, count in world.state.content.get("used", {}).items()}
    for taken, cost in costs_of(record["needs"]):
        used[taken.text] = used.get(taken.text, 0) - cost
    free = [
        (permits[bucket.name] - used.get(bucket.text, 0), min(cost, permits[bucket.name]))
        for bucket, cost in costs_of(needs)
    ]
    return all(left >= cost for left, cost in free)


def _is_passed(due: dict[str, str], bucket: str, queue: str) -> bool:
    return any(member.startswith(f"passed:{bucket}\0{queue}\x1d") for member in due)


def _is_before(waits: dict[str, Any], record: dict[str, Any], *, fair: bool = False) -> bool:
    """Return whether a parked task comes before one that has started; that has ticket 0 if it was never parked."""
    if fair and "place" in waits and "place" in record:
        return bool(waits["place"] < record["place"])
    return bool(record["ticket"] == 0 or waits["ticket"] < record["ticket"])


def _waits(record: dict[str, Any]) -> bool:
    return not record.keys() & _NOT_NOW and (record.get("lock") or {}).get("verdict", "run") == "run"


def _records(content: Content) -> dict[str, dict[str, Any]]:
    found = {task: json.loads(packed) for task, packed in content.get("records", {}).items()}
    return {task: record for task, record in found.items() if "needs" in record}
