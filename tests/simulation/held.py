"""Compare the holders in the store with the workers: no ghosts, and no locks when all is done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from celery_throttle.core.keys import Keys
from tests.simulation.invariants import Violation
from tests.simulation.scene import LEASE, PREFIX

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["check_ghosts", "check_nothing_is_kept"]

_KEYS = Keys(PREFIX)
_LEASE_US = round(LEASE * 1_000_000)


def check_ghosts(world: World) -> None:
    """Check that each holder in the store is known to its worker, if that lives and has read all replies.

    But a renewal may have been on its way while the store was emptied, and brings back an ended holder, for a lease.

    Raises:
        Violation: one is.
    """
    if world.clock.now_us < world.emptied_us + _LEASE_US:
        return
    quiet = {worker.name_in_store: worker for worker in world.workers if worker.quiet and not worker.stopping}
    contents = world.network.contents()
    leases = _scores(contents.get(_KEYS.key("leases"), []))
    for task, packed in contents.get(_KEYS.key("records"), []):
        nonce = json.loads(packed).get("nonce", "")
        worker = quiet.get(nonce.partition(":")[0])
        lives = leases.get(task, 0.0) > world.clock.now_us / 1000
        if worker is not None and lives and not worker.holds(nonce):
            raise Violation(f"ghost: {task.decode()} is held by {worker}, which does not have it")


def _scores(flat: list[Any]) -> dict[bytes, float]:
    pairs = flat if flat and isinstance(flat[0], list) else list(zip(flat[::2], flat[1::2], strict=True))
    return {member: float(score) for member, score in pairs}


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
