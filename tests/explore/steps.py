"""The possible steps of a state, and the effect of each.

A step is text: the event, the worker, the run and the way: ``end 0 w1:1 success``. So a trace can be read and replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from celery_throttle.worker.store_side.renewals import _LOST, _PUT_BACK, _RENEWED
from tests.explore import publishers, workers
from tests.explore.store import CALLS
from tests.explore.world import Worker, World
from tests.explore.worlds import IDENTITY, STEERING

__all__ = ["begin", "parts_of", "possible", "take"]

_SECOND_US = 1_000_000
#: More than half of a lease.
_AGE_US = 7_000_000


def begin(world: World) -> None:
    """Start both workers, and publish the tasks that claim nothing."""
    for place in (0, 1):
        world.start_worker(place)
    for number, task in enumerate(world.config.tasks):
        if task.dedup is None:
            take(world, f"publish {number}")


def parts_of(step: str) -> list[Any]:
    """Return the parts of a step, with numbers as such."""
    return [int(each) if each.isdigit() else each for each in step.split()]


def take(world: World, step: str) -> None:
    """Let this happen."""
    what, *rest = parts_of(step)
    _STEPS[what](world, *rest)
    for place in (0, 1):
        workers.pump(world, place)


def _revoke(world: World, task: int) -> None:
    world.spend("revoke")
    publishers.revoked(world, task)


def _call(world: World, place: int, how: str = "") -> None:
    workers.carry_out(world, place)
    if how == "killed":
        _kill(world, place, "lost")
    elif how == "cut":
        _cut(world, place, "lost")
    elif not how:
        workers.hear(world, place)


def _look(world: World, place: int) -> None:
    workers.send(world, place)
    _call(world, place)


def _renew(world: World, place: int) -> None:
    world.spend("late-renewal")
    worker = world.worker(place)
    worker.renewal = (*workers.renewal(worker), worker.call)


def _renewal(world: World, place: int) -> None:
    worker = world.worker(place)
    assert worker.renewal is not None, "none is on its way"
    calls, nonces, _ = worker.renewal
    worker.renewal = None
    _renewed(world, nonces, world.call(*calls))


def _renewed(world: World, nonces: list[str], raw: list[list[list[int]]]) -> None:
    for nonce, answer in zip(nonces, [answer for held, *_ in raw for answer in held], strict=True):
        if answer in (_RENEWED, _PUT_BACK):
            world.state.lapsed.discard(nonce)
        elif answer == _LOST:
            world.state.lapsed.add(nonce)


def _cut(world: World, place: int, how: str) -> None:
    """The connection to the store breaks; on the next one the worker renews, and asks again."""
    world.spend("store")
    worker = world.worker(place)
    _leave_stray(world, worker, how)
    workers.end_spare(worker)
    if worker.sent:
        worker.sent.carried, worker.sent.reply = False, None
    calls, nonces = workers.renewal(worker)
    _, *raw = world.call(CALLS.declare(world.state.birth, world.config.limits.items()), *calls)
    _renewed(world, nonces, raw)


def _leave_stray(world: World, worker: Worker, how: str) -> None:
    if how == "stray" and worker.sent:
        world.state.strays.append((worker.name, worker.sent.packed))


def _stray(world: World) -> None:
    name, packed = world.state.strays.pop()
    (raw,) = world.call(packed)
    if raw[0] != b"overtaken" and all(worker.name != name for worker in world.alive):
        _withdrawn_unheard(world, [task.decode() for task, _ in raw[_WITHDRAWN]])


_WITHDRAWN = 7


def _withdrawn_unheard(world: World, tasks: list[str]) -> None:
    """Excuse a revoked task that left its line for a worker that is gone: no other has to report it."""
    for task in tasks:
        world.state.books[int(task[1:])].tell("revoked")


def _kill(world: World, place: int, how: str) -> None:
    world.spend("killed")
    state, worker = world.state, world.worker(place)
    sent = worker.sent
    _leave_stray(world, worker, how)
    if sent and sent.reply:
        _withdrawn_unheard(world, [each.task for each in sent.reply.withdrawn])
    for nonce, run in worker.runs.items():
        state.bodies.pop(nonce, None)
        if run.state in ("running", "back"):
            state.books[run.task].credit += 1
            if not world.task(run).late:
                state.books[run.task].tell("died")
    unheard = [row.task for row in worker.say.ended] + [permit.told.task for permit in worker.spare.values()]
    if sent and not sent.carried:
        unheard += [f"t{task}" for task in range(len(state.books)) if f'"task":"t{task}"'.encode() in sent.packed]
    for task_id in unheard:
        state.books[int(task_id[1:])].credit += 1
    state.workers[place] = None
    world.take_back(place)
    world.start_worker(place)


def _broker_lost(world: World, place: int) -> None:
    world.spend("broker")
    worker, say = world.worker(place), world.worker(place).say
    gone, undecided = {copy.number for copy in world.take_back(place)}, _undecided(worker)
    for nonce, run in list(worker.runs.items()):
        if run.copy not in gone:
            continue
        if run.state == "running":
            world.state.books[run.task].credit += 1
        elif nonce in undecided:
            del worker.runs[nonce]
        elif run.state in ("asking", "parking"):
            run.state = "gone"
    say.arrived = [nonce for nonce in say.arrived if nonce in worker.runs]
    worker.epoch += 1


def _undecided(worker: Worker) -> list[str]:
    """Return the runs that ask to start, or are to be parked, with the next call."""
    return [nonce for nonce in worker.say.arrived if worker.runs[nonce].state != "back"]


def _stop(world: World, place: int) -> None:
    world.spend("goodbye")
    worker = world.worker(place)
    worker.leaving = True
    workers.end_spare(worker)
    for nonce in _undecided(worker):
        del worker.runs[nonce]
    worker.say.arrived = [nonce for nonce in worker.say.arrived if nonce in worker.runs]
    for run in worker.runs.values():
        if run.state in ("asking", "parking"):
            run.state = "gone"


def _leave(world: World, place: int) -> None:
    world.call(CALLS.leave(world.worker(place).name))
    world.state.workers[place] = None
    world.take_back(place)


def _visible(world: World, number: int) -> None:
    world.spend("visibility")
    copy = next(copy for copy in world.state.broker if copy.number == number)
    book = world.state.books[copy.task]
    book.credit += 1
    book.doubled = True
    world.put(copy.task, copy.attempt, copy.header, again=True)


def _lapse(world: World, task: str) -> None:
    """The lease of a holder ends."""
    state = world.state
    nonce = str(world.record(task).get("nonce", ""))
    if nonce.partition(":")[0] in {worker.name for worker in world.alive}:
        world.spend("lease")
    state.content["leases"][task] = str(world.now_ms - 1)
    state.lapsed.add(nonce)
    state.books[int(task[1:])].credit += 1
    for worker in world.alive:
        sent = worker.sent
        if sent and sent.reply and nonce in (*sent.arrived, *(grant.nonce for grant in sent.reply.grants)):
            sent.late += 1


def _tick(world: World) -> None:
    """Time goes on, and all live workers have renewed: leases and locks that have not ended go with it."""
    content, now = world.state.content, world.now_ms
    world.state.now_us += _SECOND_US
    for name, kind in (("leases", ""), ("ends", "locks:")):
        for member, till in content.get(name, {}).items():
            if float(till) > now and member.startswith(kind):
                content[name][member] = str(int(float(till)) + _SECOND_US // 1000)
    for worker, packed in content.get("workers", {}).items():
        said = json.loads(packed)
        said["since"] += _SECOND_US // 1000
        content["workers"][worker] = json.dumps(said, separators=(",", ":"))


def _age(world: World) -> None:
    """Let time pass without a renewal."""
    world.state.now_us += _AGE_US


def _steer(world: World) -> None:
    state = world.state
    what = world.config.steering[state.steered]
    state.steered += 1
    verb, value = STEERING[what]
    bucket = next(iter(world.config.limits))
    if value and verb == "override":
        state.most[bucket] = max(int(value), world.config.permits[bucket])
    world.call(CALLS.control(bucket, verb, value, "0", "me", ""), CALLS.wake(bucket, ""))


def _unlock(world: World) -> None:
    world.spend("unlock")
    state = world.state
    holders = {str(world.record(task).get("nonce", "")) for task in state.content.get("records", {})}
    state.unlocked |= holders | state.bodies.keys()
    world.call(CALLS.unlock(IDENTITY, "", name="n", by="me", why=""))


_STEPS: dict[str, Callable[..., None]] = {
    "age": _age,
    "broker-lost": _broker_lost,
    "call": _call,
    "claim-ends": publishers.claim_ends,
    "confirm": publishers.confirm,
    "confirm-lost": lambda world: world.state.confirming.pop(),
    "cut": _cut,
    "deliver": workers.deliver,
    "end": workers.end,
    "hear": workers.hear,
    "kill": _kill,
    "lapse": _lapse,
    "leave": _leave,
    "look": _look,
    "publish": publishers.publish,
    "renew": _renew,
    "renewal": _renewal,
    "revoke": _revoke,
    "say": workers.send,
    "start": World.start_worker,
    "steer": _steer,
    "stop": _stop,
    "stray": _stray,
    "stray-lost": lambda world: world.state.strays.pop(),
    "tick": _tick,
    "unlock": _unlock,
    "visible": _visible,
}


# -- possible steps: a worker reads an answer at once unless something may go wrong just then --------------------------


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
            if world.config.tasks[task].dedup is not None and world.may("publisher"):
                yield from (f"publish {task} {how}" for how in ("killed", "late"))
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
                outcomes = ("retry", *(("limited",) if world.task(run).needs else ()))
                yield from (f"end {place} {nonce} {outcome}" for outcome in outcomes if world.may(outcome))
    if sent is None:
        yield from _looking(world, place, worker)
    yield from _wrong_at(world, place, worker)
    if worker.leaving and not (worker.runs or sent or worker.say.ended or worker.spare or worker.passed):
        yield f"leave {place}"


#: Steps that are possible after a call was carried out, before its answer is read.
_AFTER_CALL = {"wait": "lease", "killed": "killed", "cut": "store"}


def _can_take(world: World, place: int, worker: Worker) -> bool:
    copy = world.next_copy
    if copy is None or worker.leaving:
        return False
    task = world.config.tasks[copy.task]
    has = sum(each.at == place for each in world.state.broker)
    if task.queue != world.config.queues[place] or has >= world.config.prefetch:
        return False
    buckets = [world.bound(each, f"{worker.name}:") for each in task.buckets]
    return world.free_slots(place) > 0 or not worker.closed.isdisjoint(buckets)


def _looking(world: World, place: int, worker: Worker) -> Iterator[str]:
    content = world.state.content
    ended = any(float(till) <= world.now_ms for till in content.get("leases", {}).values())
    waits = content.get("lines") or ended
    known = '"unsure"' in content.get("workers", {}).get(worker.name, "")
    # Without time that passes no lock of a parked task ends, but for claims.
    locks = [till for name, till in content.get("ends", {}).items() if name.startswith("locks:")]
    free = any(float(till) <= world.now_ms for till in locks)
    something = known or ended or free or content.get("ready") or content.get("due")
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
    if world.state.confirming:
        yield from ("confirm", "confirm-lost")
    if world.claims:
        yield "claim-ends"
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
