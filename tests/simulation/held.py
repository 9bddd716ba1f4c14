"""Compare the holders in the store with the workers: no ghosts, and no locks when all is done."""

from __future__ import annotations

import json

from celery_throttle.core.keys import Keys
from tests.simulation.invariants import Violation
from tests.simulation.scene import PREFIX
from tests.simulation.world import World

__all__ = ["check_ghosts", "check_nothing_is_kept"]

_KEYS = Keys(PREFIX)


def check_ghosts(world: World) -> None:
    """Check that each holder in the store is known to its worker, if that lives and has read all replies.

    Raises:
        Violation: one is not.
    """
    quiet = {worker.name_in_store: worker for worker in world.workers if worker.quiet and not worker.stopping}
    if not quiet:
        return
    for task, packed, end in world.network.holders(_KEYS.key("records"), _KEYS.key("leases")):
        nonce = json.loads(packed).get("nonce", "")
        worker = quiet.get(nonce.partition(":")[0])
        if worker is not None and end > world.clock.now_us / 1000 and not worker.holds(nonce):
            raise Violation(f"ghost: {task.decode()} is held by {worker}, which does not have it")


def check_nothing_is_kept(world: World) -> None:
    """All is done: only remembered locks are kept.

    A count of duplicates that ask for an outcome may be left until its own time is over: worlds 726 and 1369 keep one.

    Raises:
        Violation: there is one.
    """
    contents = world.network.contents()
    for identity, packed in contents.get(_KEYS.key("locks"), []):
        lock = json.loads(packed)
        if lock["state"] not in ("done", "failed"):
            raise Violation(f"lock left: {identity.decode()} is {lock['state']} for {lock['task']}")
