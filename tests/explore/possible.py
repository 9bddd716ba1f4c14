"""The possible steps of a state.

A worker reads an answer at once unless something may go wrong just then: in between it does nothing that others see.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.explore.world import Copy, Worker, World

__all__ = ["next_copy", "possible"]


def possible(world: World) -> list[str]:
    """Return everything that can happen next."""
    found = list(_publishing(world))
    for place in (0, 1):
        worker = world.state.workers[place]
        if worker is None:
            if not world.state.strays:
                found.append(f"start {place}")
        else:
            found += _at_worker(world, place, worker)
    found += _of_time(world)
    found += _from_outside(world)
    return found


def _publishing(world: World) -> Iterator[str]:
    for task, book in enumerate(world.state.books):
        if not book.published:
            yield f"publish {task}"
            return


def _at_worker(world: World, place: int, worker: Worker) -> Iterator[str]:
    sent = worker.sent
    if sent is not None and sent.carried:
        yield f"hear {place}"
    elif sent is not None:
        yield f"call {place}"
        yield from (f"call {place} {how}" for how, fault in _AFTER_CALL.items() if world.may(fault))
    if _can_take(world, place, worker):
        yield f"deliver {place}"
    for nonce, run in worker.runs.items():
        if run.state == "running":
            yield f"end {place} {nonce} success"
            if not run.conclude:
                outcomes = ("retry", "failure", *(("limited",) if world.task(run).needs else ()))
                yield from (f"end {place} {nonce} {outcome}" for outcome in outcomes if world.may(outcome))
    if sent is None:
        yield from _looking(world, place, worker)
    yield from _wrong_at(world, place, worker)
    if worker.leaving and not (worker.runs or sent or worker.say.ended or worker.spare or worker.passed):
        yield f"leave {place}"


#: Steps that are possible after a call was carried out, before its answer is read.
_AFTER_CALL = {"wait": "lease", "killed": "killed", "cut": "store"}


def _can_take(world: World, place: int, worker: Worker) -> bool:
    copy = next_copy(world)
    if copy is None or worker.leaving:
        return False
    task = world.config.tasks[copy.task]
    has = sum(each.at == place for each in world.state.broker)
    if task.queue != world.config.queues[place] or has >= world.config.prefetch:
        return False
    buckets = [world.bound(each, f"{worker.name}:") for each in task.buckets]
    return world.free_slots(place) > 0 or not worker.closed.isdisjoint(buckets)


def next_copy(world: World) -> Copy | None:
    """Return the message that the broker delivers next."""
    return next((copy for copy in world.state.broker if copy.at < 0), None)


def _looking(world: World, place: int, worker: Worker) -> Iterator[str]:
    content = world.state.content
    ended = any(float(till) <= world.now_ms for till in content.get("leases", {}).values())
    waits = content.get("lines") or ended
    known = '"unsure"' in content.get("workers", {}).get(worker.name, "")
    something = known or ended or content.get("ready") or content.get("due")
    if world.free_slots(place) > 0 and not worker.leaving and waits and something:
        yield f"look {place}"
    elif (worker.spare or worker.passed or worker.say.changed) and not worker.say.urgent:
        yield f"say {place}"


def _wrong_at(world: World, place: int, worker: Worker) -> Iterator[str]:
    unheard = worker.sent is not None and not worker.sent.carried
    ways = ("lost", "stray") if unheard else ("lost",)
    if world.may("late-renewal") and not worker.renewal and worker.permits:
        yield f"renew {place}"
    if worker.renewal:
        yield f"renewal {place}"
    if world.may("store") and (unheard or worker.permits):
        yield from (f"cut {place} {way}" for way in ways)
    if world.may("killed"):
        yield from (f"kill {place} {way}" for way in ways)
    if world.may("broker") and any(copy.at == place for copy in world.state.broker):
        yield f"broker-lost {place}"
    if world.may("goodbye") and not worker.leaving:
        yield f"stop {place}"


def _of_time(world: World) -> Iterator[str]:
    content = world.state.content
    alive = {worker.name for worker in world.alive}
    for task, till in content.get("leases", {}).items():
        if float(till) > world.now_ms:
            holder = str(world.record(task).get("nonce", "")).partition(":")[0]
            if holder not in alive or world.may("lease"):
                yield f"lapse {task}"
    if world.may("visibility"):
        yield from (f"visible {copy.number}" for copy in world.state.broker if copy.at >= 0)
    if world.config.ticks and content.get("due"):
        yield "tick"


def _from_outside(world: World) -> Iterator[str]:
    if world.state.strays:
        yield from ("stray", "stray-lost")
    if world.may("revoke"):
        for task, book in enumerate(world.state.books):
            if book.published and not book.told and not book.revoked:
                yield f"revoke {task}"
    if world.state.steered < len(world.config.steering):
        yield "steer"
    if world.may("unlock") and world.state.content.get("locks"):
        yield "unlock"
