"""The publishers of tasks: they claim locks, send messages and confirm that, unless they are killed in between."""

from __future__ import annotations

import json

from celery_throttle.store.identity_locks import REPLACED, TAKEN, read_claimed
from tests.explore.store import CALLS
from tests.explore.world import World
from tests.explore.worlds import IDENTITY

__all__ = ["claim_ends", "confirm", "publish", "revoked"]


def publish(world: World, task: int, how: str = "") -> None:
    config, book = world.config.tasks[task], world.state.books[task]
    book.published = True
    if config.dedup is None or config.by_name:
        world.put(task, 0, None)
        return
    awaited = config.awaited and config.dedup.on_conflict != "raise"
    spec = world.plan(task, None).spec
    claimed = read_claimed(world.call(CALLS.claim(f"t{task}", spec, 3600.0, awaited=awaited))[0])
    if claimed.answer == TAKEN and not awaited:
        book.tell("swallowed")
        return
    if how:
        world.spend("publisher")
    if how == "killed":
        book.tell("not published")
        return
    book.header = (claimed.claim, claimed.other if claimed.answer == TAKEN else "")
    world.put(task, 0, book.header)
    if claimed.answer != TAKEN:
        world.state.confirming.append(CALLS.sent(IDENTITY, f"t{task}", claimed.claim, 3600.0))
        if not how:
            confirm(world)
    if claimed.answer == REPLACED and claimed.other:
        revoked(world, int(claimed.other[1:]))


def confirm(world: World) -> None:
    world.call(world.state.confirming.pop())


def claim_ends(world: World) -> None:
    """The time of claims that no publisher has confirmed is over."""
    content, over = world.state.content, world.now_ms - 1
    for member in world.claims:
        identity = member.removeprefix("locks:")
        lock = json.loads(content["locks"][identity])
        if lock["state"] == "queued":
            content["ends"][member] = str(over)
        else:
            lock["next_till"] = over
            content["locks"][identity] = json.dumps(lock, separators=(",", ":"))


def revoked(world: World, task: int) -> None:
    world.state.books[task].revoked = True
    for worker in world.alive:
        worker.say.gone.append(("revoked", f"t{task}"))
