"""The invariants of every state, of the end, and of each start and grant."""

from __future__ import annotations

import json
import traceback

from tests.explore.store import CALLS, SETS
from tests.explore.world import Run, Worker, World, number_of
from tests.simulation.invariants import Violation
from tests.store import peek
from tests.store.peek import Snapshot

__all__ = ["check", "check_at_rest", "check_begin", "is_done"]

_DAY_US = 86_400_000_000


def check(world: World) -> None:
    """Check the invariants of every state."""
    store = _snapshot(world)
    _check_indexes(world, store)
    _check_caps(world, store)
    _check_ghosts(world, store)
    _check_locks(world, store)
    _check_nothing_lost(world)


def _snapshot(world: World) -> Snapshot:
    content = world.state.content
    hashes = {
        name: {field: value.encode() for field, value in content.get(name, {}).items()}
        for name in peek.KEY
        if name not in SETS
    }
    sets = {name: {member: float(score) for member, score in content.get(name, {}).items()} for name in SETS}
    return peek.snapshot(hashes, sets, world.now_ms)


def _check_indexes(world: World, store: Snapshot) -> None:
    """Check that all copies of a fact agree, and that all startable tasks are in the index."""
    if store.unreadable or store.hashes["aside"]:
        raise Violation(f"unreadable: {store.hashes['aside'] or store.unreadable}")
    try:
        peek.check(store)
    except AssertionError as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line
        raise Violation(f"index: {line} {str(error).splitlines()[:1]}") from None
    if (
        not store.hashes["overrides"]
        and not world.config.ticks
        and (lost := peek.startable(store, world.config.permits))
    ):
        raise Violation(f"can start, and no index lists it: {lost}")


def _check_caps(world: World, store: Snapshot) -> None:
    for bucket, used in store.used.items():
        most = permits_of(world, bucket)
        if most and used > most:
            raise Violation(f"cap: {used} of {most} permits of {bucket} are held")


def _check_ghosts(world: World, store: Snapshot) -> None:
    """Check that each holder of a live worker is, or will be, known to it."""
    alive = {worker.name: worker for worker in world.alive}
    for task, record in store.records.items():
        worker = alive.get(record.nonce.partition(":")[0])
        if worker is not None and store.leases.get(task, 0) > store.now and not _knows(world, worker, record.nonce):
            raise Violation(f"ghost: {task} is held by a worker that does not have it")


def _knows(world: World, worker: Worker, nonce: str) -> bool:
    told = {permit.told.nonce for permit in (*worker.permits.values(), *worker.spare.values())}
    told |= {row.nonce for row in worker.say.changed if row.event in ("ended", "passed")}
    sent = worker.sent
    if nonce in told or (sent and nonce.encode() in sent.packed):
        return True
    if sent and (sent.reply is None or any(grant.nonce == nonce for grant in sent.reply.grants)):
        # It may be answered with that, or is.
        return nonce.startswith(f"{worker.name}:{worker.call}.") or sent.reply is not None
    if any(name == worker.name or nonce.encode() in packed for name, packed in world.state.strays):
        return True
    return worker.leaving and sent is None


def _check_locks(world: World, store: Snapshot) -> None:
    """Check that a running lock has a holder, and that a queued one has a parked task."""
    for identity, lock in store.locks.items():
        if store.lock_ends(identity) <= store.now:
            continue
        task, record = lock["task"], store.records.get(lock["task"])
        if lock["state"] == "running" and not (record and record.nonce == lock.get("nonce")):
            raise Violation(f"lock: it runs for {task}, which does not hold")
        dedup = world.config.tasks[number_of(task)].dedup
        lasts = dedup is not None and dedup.lock_until == "expires"
        is_claim = f"locks:{identity}" in world.claims
        if lock["state"] == "queued" and not (lasts or is_claim) and not _is_somewhere(world, task, store):
            raise Violation(f"lock: it is queued for {task}, and no parked task is behind it")


def _is_somewhere(world: World, task: str, store: Snapshot) -> bool:
    if task in store.records or _is_at_broker_or_worker(world, task):
        return True
    for worker in world.alive:
        said = [row.task for row in worker.say.ended] + [row[1] for row in worker.say.gone if row[0] == "never"]
        if task in said or (worker.sent and task.encode() in worker.sent.packed):
            return True
    return any(task.encode() in packed for _, packed in world.state.strays)


def _is_at_broker_or_worker(world: World, task: str) -> bool:
    if any(copy.task == number_of(task) for copy in world.state.broker):
        return True
    return any(run.task_id == task for worker in world.alive for run in worker.runs.values())


def _check_nothing_lost(world: World) -> None:
    content = world.state.content
    for number, book in enumerate(world.state.books):
        task = f"t{number}"
        kept = {task, f"\0{task}"} & content.get("messages", {}).keys()
        waits = book.published and not book.told and not book.revoked
        if waits and not kept and not _is_at_broker_or_worker(world, task):
            raise Violation(f"lost: {task} is nowhere")


def is_done(world: World) -> bool:
    """Whether nothing is left to do."""
    state = world.state
    store_is_empty = not _tasks_left(world)
    published = all(book.published for book in state.books) and state.steered == len(world.config.steering)
    workers = all(worker.idle and not worker.leaving for worker in world.alive)
    published = published and not world.claims
    return published and store_is_empty and not state.broker and not state.strays and workers


def _tasks_left(world: World) -> list[str]:
    """Those that hold or are parked."""
    return sorted(task for task in world.state.content.get("records", {}) if "needs" in world.record(task))


def check_at_rest(world: World) -> None:
    """All is done: each task has ended, and nothing is kept, whether its time is over or not."""
    if not is_done(world):
        waits = _tasks_left(world)
        raise Violation(f"waits for ever: {waits or [f't{copy.task}' for copy in world.state.broker]}")
    if undone := [f"t{task}" for task, book in enumerate(world.state.books) if not book.told]:
        raise Violation(f"never ended: {undone}")
    store = _snapshot(world)
    for identity, lock in store.locks.items():
        left = store.lock_ends(identity) - store.now
        dedup = world.config.tasks[number_of(lock["task"])].dedup
        lasts = dedup is not None and dedup.lock_until == "expires"
        if left > 0 and lock["state"] in ("queued", "running") and not lasts:
            raise Violation(f"lock left: {lock['state']} for {lock['task']}, with {left / 1000:.0f} s to go")
    # A publisher that was killed leaves its count until the end of that lock's time.
    if (awaited := store.awaited) and "publisher" not in world.config.budgets:
        raise Violation(f"count left: awaited {awaited}")
    world.call(*(CALLS.leave(worker.name) for worker in world.alive))
    world.state.now_us += 2 * _DAY_US
    world.call(CALLS.reap(100), CALLS.reap(100))
    if left_over := {name for name in world.state.content if name not in ("limits", "audit", "meta")}:
        raise Violation(f"left in the store after two days: {sorted(left_over)}")


# -- starts and grants -------------------------------------------------------------------------------------------------

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
        _check_used(world, run)
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
_LOSES_OUTCOMES = ("lease", "killed", "unlock", "visibility", "broker", "store", "publisher")


def _check_outcome(world: World, run: Run) -> None:
    """A duplicate whose first has come to an end has the outcome of that, and does not run itself."""
    header, faults = world.state.books[run.task].header, world.config.budgets.keys()
    if not header or not header[1] or run.attempt or not faults.isdisjoint(_LOSES_OUTCOMES):
        return
    if world.state.books[number_of(header[1])].told in ("success", "failure"):
        raise Violation(f"outcome: t{run.task} runs itself though {header[1]}, whose duplicate it is, has ended")


def _check_used(world: World, run: Run) -> None:
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
