"""Compare the store with the workers: no ghosts, no locks when all is done, and nothing at all in the end."""

from __future__ import annotations

from tests.simulation.invariants import Violation
from tests.simulation.world import World

__all__ = ["check_empty", "check_ghosts", "check_no_lock", "tasks_in_store"]

#: Keys that may stay: declarations, changes, and counts, which end by the server's own clock.
_STAYS = {"limits", "audit", "minutes", "quarters", "totals"}
_META_STAYS = {b"birth", b"ticket", b"stamp", b"settling", b"moment", b"errors"}


def check_ghosts(world: World) -> None:
    """Check that each holder in the store is known to its worker, if that lives and has read all replies.

    Raises:
        Violation: one is not.
    """
    quiet = {worker.name_in_store: worker for worker in world.workers if worker.quiet and not worker.stopping}
    if not quiet:
        return
    records = world.network.fields("records")
    for task, end in world.network.leases().items():
        nonce = records.get(task, {}).get("nonce", "")
        worker = quiet.get(nonce.partition(":")[0])
        if worker is not None and end > world.clock.now_us / 1000 and not worker.holds(nonce):
            raise Violation(f"ghost: {task} is held by {worker}, which does not have it")


def tasks_in_store(world: World) -> list[str]:
    """Return the tasks that hold or are parked."""
    return [task for task, record in world.network.fields("records").items() if "needs" in record]


def check_no_lock(world: World) -> None:
    """All is done: only remembered locks are kept.

    A count of duplicates that ask for an outcome may be left until its own time is over: worlds 726 and 1369 keep one.

    Raises:
        Violation: there is one.
    """
    for identity, lock in world.network.fields("locks").items():
        if lock["state"] not in ("done", "failed"):
            raise Violation(f"lock left: {identity} is {lock['state']} for {lock['task']}")


def check_empty(world: World) -> None:
    """Two days later the store is empty.

    Raises:
        Violation: it is not so.
    """
    left = {}
    for key, value in world.network.contents().items():
        name = key.partition("}:")[2].split(":")[1]
        remains = set(value[::2]) - _META_STAYS if name == "meta" else value
        if name not in _STAYS and remains:
            left[key] = remains
    if left:
        raise Violation(f"left in the store: {left}")
