"""The end of a world: nothing goes wrong any more, time goes on, and all that has to happen happens."""

from __future__ import annotations

from collections.abc import Callable

from celery_throttle.core.keys import Keys
from celery_throttle.store.calls import CLAIMED_FOR, Store
from tests.simulation.invariants import Violation, check_end, check_order, is_missing, is_untold
from tests.simulation.scene import LEASE, PREFIX
from tests.simulation.steps import Steps
from tests.simulation.workers import Worker
from tests.simulation.world import World

__all__ = ["last_questions", "peace"]

_MOST_ROUNDS = 4000
_TURN_US = 250_000
#: Seconds in which everything has to be done: the visibility timeout and offers are over long before, and a dozen of
#: the pauses of tasks that find as many parked as may be.
_LONGEST = 400


def peace(steps: Steps) -> None:
    """Let everything come to its end, and look whether it did."""
    world = steps.world
    world.say("peace")
    world.prompt = False
    world.heal()
    world.paused.clear()
    for limit in world.scene.permits:
        world.operator.say(limit, "resume")
    for place in steps.places:
        worker = place.worker
        if worker is None or worker not in world.workers or worker.stopping:
            continue
        if worker.channel is None:
            worker.queues = list(place.queues)
        for queue in sorted(set(place.queues) - set(worker.queues)):
            world.change_queues(worker, queue)
    if not _live_on(steps, lambda: not _what_is_left(steps)):
        check_end(world.book)
        raise Violation(f"not over after {_LONGEST} s: {_what_is_left(steps)}")


def last_questions(steps: Steps) -> None:
    """All is done: is every slot free, every identity as it has to be, and nothing left in the store?"""
    world = steps.world
    if steps.prompt:
        check_order(world.book, world.queue_of)
    for worker in world.workers:
        if worker.free_slots != worker.pool.num_processes:
            raise Violation(f"slots gone: {worker.inside()}")
    _check_no_lock(world)
    _probe(steps)
    steps.closing = True
    for limit in world.scene.permits:
        world.operator.say(limit, "reset")
        world.caps.pace(limit, None, world.clock.now_us)
    for worker in list(world.workers):
        world.act(worker, worker.close)
    _live_on(steps, lambda: not world.workers)
    world.pass_time(2 * 86_400_000_000)
    world.network.scripts = None
    for _ in range(2):
        world.network.carry_out(Store(Keys(PREFIX), LEASE).reap(200).packed())
    _check_empty(world)


def _probe(steps: Steps) -> None:
    """Publish each singleton once more: it runs, unless a success of it is remembered."""
    world, book = steps.world, steps.world.book
    identities = {entry.identity: entry for entry in book.entries.values() if entry.identity}
    probes = []
    for identity, entry in sorted(identities.items()):
        kind = entry.kind
        ran = [run for each in book.entries.values() if each.identity == identity for run in each.runs()]
        may_run = not (kind.remember and book.succeeded.get(identity))
        must_run = not (kind.remember and any(run.outcome == "success" for run in ran))
        task_id = f"probe-{entry.task_id}"
        world.publish(kind.name, entry.arguments, world.queue_of[kind.name], task_id)
        if must_run and task_id not in book.entries:
            raise Violation(f"still locked: {identity}")
        if task_id in book.entries:
            probes.append((task_id, may_run, must_run))
    _live_on(steps, lambda: not _what_is_left(steps))
    _live_on(steps, lambda: False, LEASE + 1)  # leases end that no worker renews
    for task_id, may_run, must_run in probes:
        probe = book.entries[task_id]
        if must_run and not probe.runs():
            what = ", ".join(probe.attempts[0].excuses) or "without a report"
            raise Violation(f"swallowed: {probe.kind.name} with nothing to remember, {probe.identity}: {what}")
        if probe.runs() and not may_run:
            raise Violation(f"forgotten: {probe.identity} has succeeded and ran again")


def _live_on(steps: Steps, is_over: Callable[[], bool], seconds: float = _LONGEST) -> bool:
    """Let the world go on until this is so, for so long at most; return whether it is so."""
    deadline = steps.world.clock.after(seconds)
    _settle(steps)
    while not is_over() and steps.world.clock.now_us <= deadline:
        _pass(steps)
        _settle(steps)
    return is_over()


def _settle(steps: Steps) -> None:
    """Everything that can happen at once."""
    for _ in range(_MOST_ROUNDS):
        if not _round(steps):
            _check_ghosts(steps.world)
            return
    raise Violation("it never comes to rest")


def _round(steps: Steps) -> bool:
    world, network = steps.world, steps.world.network
    busy = False
    for place in steps.places:
        if place.worker not in world.workers and not steps.closing:
            steps.fill(place)
            busy = True
    while network.strays:
        busy = steps._stray()
    for worker in list(world.workers):
        busy = _worker(steps, worker) or busy
    busy = steps.get_through() or busy
    while network.asks:
        busy = steps._ask()
    return busy


def _worker(steps: Steps, worker: Worker) -> bool:
    busy = False
    if worker.stopping or worker.blocked:
        busy = steps._go_on()
    elif worker.channel is None:
        steps.world.connect_broker(worker, worker.queues)
        busy = True
    if not worker.dead:
        busy = _deliver(steps, worker) or busy
    return _jobs(steps, worker) or busy


def _jobs(steps: Steps, worker: Worker) -> bool:
    world, jobs = steps.world, list(worker.pool.jobs)
    for job in jobs:
        if worker.blocked or worker.dead:
            return False
        if job.state == "sent":
            world.begin(job)
        if job.state == "begun":
            world.end(job, "success")
        steps._heard(job)
    return bool(jobs)


def _deliver(steps: Steps, worker: Worker) -> bool:
    world, channel, busy = steps.world, worker.channel, False
    if channel is None or worker.stopping or worker.blocked:
        return False
    for queue in sorted(set(channel.queues)):
        while channel.has_room and world.broker.queues[queue] and not worker.dead:
            world.deliver(channel, queue)
            busy = True
    if busy and not worker.dead:
        world.act(worker, worker.loop.turn)
    return busy


def _pass(steps: Steps) -> None:
    """Advance the time to the next event."""
    world = steps.world
    times = [worker.timekeeper.next_us for worker in world.workers]
    soonest = min([at_us for at_us in times if at_us is not None], default=0)
    world.pass_time(max(soonest - world.clock.now_us, 0) + 100_000 if soonest else _TURN_US)
    for worker in list(world.workers):
        while not worker.dead and worker.timekeeper.is_due:
            world.act(worker, worker.timekeeper.run)
            if worker.timekeeper.next_us is not None and world.network.asks:
                break


def _what_is_left(steps: Steps) -> dict[str, list[str]]:
    world, broker = steps.world, steps.world.broker
    unacknowledged = [each.letter for channel in broker.channels for each in channel.unacked.values()]
    left = {
        "missing": [str(each) for each in world.book.all() if is_missing(each) or is_untold(each)],
        "running": [str(run.attempt) for run in world.book.running],
        "unacknowledged": [each.task_id for each in unacknowledged],
        "in queues": [letter.task_id for letter in broker.all() if letter not in unacknowledged],
        "not quiet": [str(worker) for worker in world.workers if not worker.quiet],
        "claims": _claims(world),
        "in the store": [task for task, record in world.network.fields("records").items() if "needs" in record],
    }
    return {name: what for name, what in left.items() if what}


def _claims(world: World) -> list[str]:
    """Return the locks that were claimed for seconds, by publishers that were killed."""
    now, ends = world.clock.now_us / 1000, world.network.lock_ends()
    queued = [name for name, lock in world.network.fields("locks").items() if lock["state"] == "queued"]
    return [name for name in queued if now < ends.get(name, 0) <= now + CLAIMED_FOR * 1000]


# -- the store and the workers ---------------------------------------------------------------------------------------

#: Keys that may stay: declarations, changes, and counts, which end by the server's own clock.
_STAYS = {"limits", "audit", "minutes", "quarters", "totals"}
_META_STAYS = {b"birth", b"ticket", b"stamp", b"settling", b"moment", b"errors", b"begins"}


def _check_ghosts(world: World) -> None:
    """Check that each holder in the store is known to its worker, if that lives and has read all replies."""
    quiet = {
        str(worker.gate.groups[0].worker): worker for worker in world.workers if worker.quiet and not worker.stopping
    }
    if not quiet:
        return
    records = world.network.fields("records")
    for task, end in world.network.leases().items():
        nonce = records.get(task, {}).get("nonce", "")
        worker = quiet.get(nonce.partition(":")[0])
        if worker is not None and end > world.clock.now_us / 1000 and not worker.holds(nonce):
            raise Violation(f"ghost: {task} is held by {worker}, which does not have it")


def _check_no_lock(world: World) -> None:
    """All is done: only remembered locks are kept.

    A count of duplicates that ask for an outcome may be left until its own time is over.
    """
    ends = world.network.lock_ends()
    for identity, lock in world.network.fields("locks").items():
        if lock["state"] not in ("done", "failed") and ends.get(identity, 0) > world.clock.now_us / 1000:
            raise Violation(f"lock left: {identity} is {lock['state']} for {lock['task']}")


def _check_empty(world: World) -> None:
    """Two days later the store is empty."""
    left = {}
    for key, value in world.network.contents().items():
        name = key.partition("}:")[2].split(":")[1]
        remains = set(value[::2]) - _META_STAYS if name == "meta" else value
        if name not in _STAYS and remains:
            left[key] = remains
    if left:
        raise Violation(f"left in the store: {left}")
