"""Small worlds by name: the published tasks, and how often each fault may happen.

A name is a shape, ``:``, and faults: ``plain/3:lease+late-renewal``, ``once/2/skip/gpu:killed``, ``plain/2:retry*2``.

Shapes, all for two workers of one slot each, and limits of one permit:

    plain/N   N tasks of one limit, acknowledged late; early/N acknowledged early
    keys/N    of two keys of one limit, in turn
    both/N    of a shared limit, of a tenant's, or of both
    rate/N    of a limit with a rate, too
    queues/N  of two queues, with a worker each
    passing/N a worker with two slots, in which a permit passes from run to run
    sites/N   of a limit with a permit on each worker; every second task needs one of another limit, too
    once/N    N calls with one identity; then any of ``on_conflict``, ``lock_until`` and: remember; gpu: they need a
              permit, too; early; by-name: all but the first are sent by name, and claim nothing; awaited: duplicates
              are published, too

Faults: see `FAULTS`; those of `STEERING` come in the order in which they are named.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import get_args

from celery_throttle.core.dedup import Dedup, LockUntil, OnConflict

__all__ = ["CI_WORLDS", "FAULTS", "STEERING", "Config", "Task", "make"]

#: The faults, and their effects.
FAULTS = {
    "lease": "the lease of one that runs ends",
    "late-renewal": "a renewal is on its way for a while",
    "store": "a worker's connection to the store breaks; its last call may be lost, or arrive later",
    "killed": "a worker is killed; its last call may arrive later",
    "broker": "a worker's connection to the broker breaks: what it has not acknowledged is delivered again",
    "visibility": "the broker delivers a message again that somebody has",
    "goodbye": "a worker stops, warmly",
    "revoke": "a task is revoked",
    "publisher": "a publisher is killed before it sends a message, or before it confirms that; or it confirms late",
    "unlock": "an operator takes an identity lock away",
    "retry": "a run ends so",
    "limited": "a run ends so (`RateLimited`)",
}
STEERING = {
    "pause": ("pause", "1"),
    "resume": ("pause", ""),
    "override": ("override", "2"),
    "reset": ("override", ""),
}
IDENTITY = "i" * 8


@dataclass(frozen=True)
class Task:
    """A task that is published once.

    Attributes:
        turn: for a limit with turns: the limit, the key, and the step.
        late: whether it is acknowledged late.
        dedup: of one that runs once.
        by_name: it is sent by name, so nothing is claimed before.
        awaited: it is published, too, if it is a duplicate.
    """

    needs: str = "1:gpu"
    turn: tuple[str, str, int] | None = None
    late: bool = True
    queue: str = "q"
    dedup: Dedup | None = None
    by_name: bool = False
    awaited: bool = False

    @property
    def buckets(self) -> list[str]:
        return [need.split(":", 1)[1] for need in self.needs.split("\1") if need]


@dataclass(frozen=True)
class Config:
    """A small world.

    Attributes:
        limits: the declaration of each, by name.
        budgets: how often each fault may happen.
        steering: the changes of an operator, in this order.
        slots: of each worker.
        passes_on: whether permits pass from run to run within a worker.
        prefetch: how many unacknowledged messages a worker has at most.
        ticks: whether time goes on, by a second, when something is due.
        sites: whether the workers are on hosts, each on one of its own.
        one_host: whether both are on the same host.
    """

    name: str
    tasks: tuple[Task, ...]
    limits: dict[str, str] = field(default_factory=lambda: {"gpu": "1"})
    budgets: dict[str, int] = field(default_factory=dict)
    steering: tuple[str, ...] = ()
    queues: tuple[str, str] = ("q", "q")
    slots: tuple[int, int] = (1, 1)
    passes_on: bool = False
    prefetch: int = 2
    ticks: bool = False
    sites: bool = False
    one_host: bool = False

    @property
    def permits(self) -> dict[str, int]:
        """The permits of each limit."""
        said = {name: json.loads(text) for name, text in self.limits.items()}
        found = {name: each if isinstance(each, int) else each["permits"] for name, each in said.items()}
        shares = {name: each["share"] for name, each in said.items() if not isinstance(each, int) and "share" in each}
        return found | {name: math.ceil(share * min(self.slots)) for name, share in shares.items()}

    @property
    def symmetric(self) -> bool:
        """Whether it does not matter which worker is which."""
        return self.queues[0] == self.queues[1] and self.slots[0] == self.slots[1] and not self.sites


def make(name: str) -> Config:
    """Return the world of this name."""
    shape, _, faults = name.partition(":")
    kind, count, *flags = shape.split("/")
    config = _once(name, int(count), flags) if kind == "once" else _shaped(name, kind, int(count))
    budgets: dict[str, int] = {}
    steering: list[str] = []
    for each in filter(None, faults.split("+")):
        what, _, times = each.partition("*")
        if what in STEERING:
            steering.append(what)
        elif what in FAULTS:
            budgets[what] = int(times or 1)
        else:
            raise ValueError(f"{name}: no fault {what!r}, only {', '.join([*FAULTS, *STEERING])}")
    return replace(config, budgets=budgets, steering=tuple(steering))


def _shaped(name: str, kind: str, count: int) -> Config:
    plain = Config(name, (Task(),) * count)
    paced = '{"permits":1,"rates":[[1,1000000,1]],"max_parked":0}'
    passing = replace(plain, passes_on=True, slots=(2, 1), limits={"gpu": "2"})
    own_permits = {"api": "1", "gpu": '{"permits":1,"per":"host"}'}

    def needing(*needs: str) -> tuple[Task, ...]:
        return tuple(Task(needs[number % len(needs)]) for number in range(count))

    shapes = {
        "plain": plain,
        "early": replace(plain, tasks=(Task(late=False),) * count),
        "sites": replace(
            plain,
            tasks=needing("1:gpu\x1f\x1dhost", "1:gpu\x1f\x1dhost\x011:api"),
            limits=own_permits,
            slots=(2, 2),
            sites=True,
        ),
        **_at_sites(plain, count),
        "keys": replace(plain, tasks=needing("1:gpu\x1fa", "1:gpu\x1fb")),
        "both": replace(
            plain,
            tasks=needing("1:gpu\x1fa\x011:api", "1:api", "1:gpu\x1fa\x011:api", "1:gpu\x1fa"),
            limits={"api": "1", "gpu": "1"},
        ),
        "rate": replace(plain, limits={"gpu": paced}, ticks=True),
        "queues": replace(
            plain, tasks=tuple(Task(queue="qz"[i % 2]) for i in range(count)), queues=("q", "z"), ticks=True
        ),
        "passing": replace(passing, tasks=(Task(late=False),) * count),
        "passing-late": passing,
    }
    if kind not in shapes:
        raise ValueError(f"{name}: no shape {kind!r}, only {', '.join([*shapes, 'once'])}")
    return shapes[kind]


def _at_sites(plain: Config, count: int) -> dict[str, Config]:
    """Return the worlds of limits with permits on sites, and of several queues there."""
    gpu, both = "1:gpu\x1f\x1dhost", "1:gpu\x1f\x1dhost\x011:api"
    own_permits = {"api": "1", "gpu": '{"permits":1,"per":"host"}'}
    sites = replace(plain, limits=own_permits, sites=True, ticks=True)
    host = replace(sites, one_host=True)
    two = ("q", "z")

    def tasks(needs: tuple[str, ...], queues: str = "q", turns: str = "") -> tuple[Task, ...]:
        return tuple(
            Task(
                needs[i % len(needs)],
                queue=queues[i % len(queues)],
                turn=("gpu", turns[i % len(turns)], 1) if turns else None,
            )
            for i in range(count)
        )

    fair = {"api": "1", "gpu": '{"permits":1,"per":"host","fair":1}'}
    costs = {"api": "1", "gpu": '{"permits":2,"per":"host"}'}
    share = {"api": "1", "half": '{"permits":0,"per":"worker","share":0.5}'}
    half = "1:half\x1f\x1dworker"
    return {
        "host": replace(host, tasks=tasks((gpu, both)), slots=(2, 2)),
        "host-queues": replace(host, tasks=tasks((gpu,), "qz"), queues=two),
        "host-queues-both": replace(host, tasks=tasks((both, gpu, "1:api"), "qzq"), queues=two, slots=(2, 2)),
        "sites-queues": replace(sites, tasks=tasks((gpu, both), "qqz"), queues=two, slots=(2, 2)),
        "host-fair": replace(host, tasks=tasks((gpu, gpu, both), turns="xxy"), limits=fair),
        "host-fair-queues": replace(host, tasks=tasks((gpu,), "qzq", "xxy"), queues=two, limits=fair),
        "host-cost": replace(host, tasks=tasks((gpu, f"2{gpu[1:]}", gpu), "qzq"), queues=two, limits=costs),
        "share": replace(sites, tasks=tasks((half, f"{half}\x011:api"), "qz"), queues=two, slots=(2, 2), limits=share),
    }


def _once(name: str, count: int, flags: list[str]) -> Config:
    dedup = Dedup(lock_ttl=3600.0, remember=60.0 if "remember" in flags else 0.0)
    rest = set(flags) - {"remember", "gpu", "early", "by-name", "awaited"}
    for flag in sorted(rest):
        if flag in get_args(LockUntil):
            dedup = replace(dedup, lock_until=flag)  # type: ignore[arg-type]
        elif flag in get_args(OnConflict):
            dedup = replace(dedup, on_conflict=flag)  # type: ignore[arg-type]
        else:
            raise ValueError(f"{name}: no {flag!r}")
    needs, late = "1:gpu" if "gpu" in flags else "", "early" not in flags
    one = Task(needs, late=late, dedup=dedup, awaited="awaited" in flags)
    return Config(name, tuple(replace(one, by_name="by-name" in flags and i > 0) for i in range(count)))


#: The worlds that CI searches, each whole, and how many states it had at the last count.
CI_WORLDS = {
    "plain/3": 388,
    "plain/2:lease+late-renewal": 1840,
    "plain/2:visibility": 959,
    "plain/2:broker": 1789,
    "plain/2:retry": 456,
    "plain/2:revoke": 555,
    "plain/2:goodbye": 716,
    "plain/2:store": 351,
    "plain/2:pause+resume": 315,
    "plain/2:override+reset": 329,
    "plain/2:limited+late-renewal": 466,
    "passing/2:broker": 1569,
    "keys/3": 129,
    "both/3": 466,
    "rate/2": 176,
    "queues/3": 384,
    "sites/3": 1337,
    "sites/2:lease": 1085,
    "sites/2:retry": 1056,
    "host/3": 1223,
    "host-queues/3": 568,
    "host-queues-both/3": 291,
    "host-cost/3": 516,
    "host-fair/3": 1075,
    "host-fair-queues/3": 234,
    "sites-queues/3": 1538,
    "share/3": 141,
    "once/2/gpu:killed": 868,
    "once/2/gpu:publisher": 187,
    "once/2/gpu/awaited:publisher": 473,
    "once/2/keep_last/gpu:publisher": 798,
    "once/2/expires/gpu:publisher": 130,
    "once/2/replace/gpu:publisher+limited": 1800,
    "once/2/gpu:publisher+retry": 955,
    "once/2/gpu/awaited:unlock": 275,
    "once/2/gpu:retry": 128,
    "once/2/gpu:revoke": 128,
    "once/2/early/gpu:killed": 872,
    "once/2/replace/gpu:broker": 1207,
    "once/2/skip/by-name:broker": 539,
    "once/2/skip/by-name:visibility": 403,
    "once/2/started/gpu:lease": 456,
    "once/2/expires/awaited:lease": 346,
    "once/2/remember/awaited/gpu:lease": 1023,
}
