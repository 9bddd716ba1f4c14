"""The longest time that one script blocks the server: large stores, and the first load of each script.

Times are the server's processor time where Linux has it. Else they are from the slow log, which includes the work of
other programs. Each load is played several times on an empty store, and the shortest time of each call counts.
"""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redis import Redis

import celery_throttle.store
from benchmarks.figures import Figure
from benchmarks.site import BenchmarkError
from benchmarks.stand_in import StandIn, ended
from celery_throttle.clients import _REAPED
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.exchange import Arrival, Exchange
from celery_throttle.store.portions import MOST_ROWS, Portion, take_rows
from celery_throttle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.site import Bench
    from celery_throttle.store.exchange import DeliveryChange
    from celery_throttle.store.scripts import Call

__all__ = ["GOAL", "Clock", "first_load", "scripts", "server_with_scripts"]

#: The longest time for a script in ms, on a machine without other work.
GOAL = 5.0
#: Tasks that arrive at a worker at once, and slots that it offers.
_ROWS, _SLOTS = 50, 50
_TURN_STEP = 1_000_000


class Sizes(NamedTuple):
    """The sizes of the loads."""

    tenants: int = 50_000
    limits: int = 3000
    queues: int = 200
    tasks: int = 1000


class Clock:
    """Measures the time of scripts on a server."""

    def __init__(self, server: EmbeddedServer, client: Redis) -> None:
        self._client = client
        self._processor = Path(f"/proc/{server.pid}/schedstat")
        self._by_processor = self._processor.exists()

    def measure(self, act: Callable[[], Any]) -> tuple[float, Any]:
        """Return the milliseconds of one call, and its reply."""
        if self._by_processor:
            before = self._spent()
            reply = act()
            return (self._spent() - before) / 1e6, reply
        self._client.slowlog_reset()
        reply = act()
        return max(each["duration"] for each in self._client.slowlog_get(-1)) / 1000, reply

    def _spent(self) -> int:
        return int(self._processor.read_text().split()[0])


class _Timed(StandIn):
    """A stand-in that records the time of each of its calls."""

    def __init__(self, play: Play, queues: Sequence[str]) -> None:
        super().__init__(play.client, play.keys, *queues)
        self._play = play

    def call(self, call: Call) -> Any:
        took, reply = self._play.clock.measure(partial(super().call, call))
        self._play.times.append((call.script.name, took))
        return reply

    def work(
        self,
        slots: int = 0,
        *,
        over: Sequence[DeliveryChange] = (),
        asked: Iterable[Arrival] = (),
        parked: Iterable[Arrival] = (),
    ) -> list[DeliveryChange]:
        """Send rows as a worker does, call by call, until the slots are taken; return the ends of started tasks."""
        left = ([*over], [*asked], [*parked])
        started: list[DeliveryChange] = []
        while True:
            portion = Portion(*([row.needs for row in rows[:MOST_ROWS]] for rows in left))
            ends, asks, parks = (take_rows(rows, portion.of(rows)) for rows in left)
            arrived = [*(each._replace(message=b"") for each in asks), *parks]
            reply = self.send(Exchange(slots - len(started), arrived=arrived, changed=ends))
            started += [ended(grant.task, grant.nonce, grant.needs) for grant in reply.grants]
            if not any(left) and (not reply.more or len(started) >= slots):
                return started


class Play:
    """One load: stand-ins for workers on an empty store, and the time of each of their calls in ms."""

    def __init__(self, client: Redis, clock: Clock, sizes: Sizes) -> None:
        self.client, self.clock, self.sizes, self.keys = client, clock, sizes, Keys("longest")
        self.times: list[tuple[str, float]] = []

    def worker(self, *queues: str) -> _Timed:
        return _Timed(self, queues or ("queue",))

    def let_end(self, kind: str) -> None:
        """Set the end of all entries of one kind to the past."""
        ends = self.keys.key("ends")
        found = [member for member, _ in self.client.zscan_iter(ends, match=f"{kind}:*", count=500)]
        # In portions, because freeing the memory of a large command would count as time of the next one.
        for first in range(0, len(found), 500):
            self.client.zadd(ends, dict.fromkeys(found[first : first + 500], 1))

    def let_all_leases_end(self) -> None:
        leases = self.keys.key("leases")
        found: Any = self.client.zrange(leases, 0, -1)
        self.client.zadd(leases, dict.fromkeys(found, 1))


def _task(needs: str, queue: str = "queue", **more: Any) -> Arrival:
    task = uuid.uuid4().hex
    return Arrival(task, needs, queue, nonce=f"{task}.1", message=b"a message of some bytes" * 10, **more)


# -- the loads --------------------------------------------------------------------------------------------------------


def _tenants(play: Play) -> None:
    """Very many tenants take turns on one limit; then no task arrives for an hour, and the store was away."""
    worker = play.worker()
    worker.declare(fair='{"permits":50,"fair":true}')
    worker.work(parked=(_task("1:fair", turn=("fair", f"tenant-{n}", _TURN_STEP)) for n in range(play.sizes.tenants)))
    over: list[DeliveryChange] = []
    for _ in range(20):
        over = worker.work(_SLOTS, over=over)
    for view in (worker.store.parked("fair", 100), worker.store.parked(None, 100), worker.store.firsts(["fair"])):
        worker.call(view)
    play.let_end("turns")
    worker.call(worker.store.reap(_REAPED))
    over = worker.work(_SLOTS, over=over)
    play.let_all_leases_end()
    worker.call(worker.store.declare("", [], away=3600.0))
    worker.call(worker.store.reap(_REAPED))


def _declared(play: Play) -> None:
    """Very many limits are declared, and declared again while a task waits for each."""
    names = [f"limit-{number}" for number in range(play.sizes.limits)]
    worker = play.worker()
    worker.declare(**dict.fromkeys(names, 1))
    for _ in range(2):
        worker.work(parked=(_task(f"1:{name}") for name in names))
    later = play.worker()
    later.declare_again(**dict.fromkeys(names, 2))
    worker.call(worker.store.oldest(names[:100]))
    worker.call(worker.store.status(names[:100]))
    for _ in range(20):
        later.work(_SLOTS)


def _queues(play: Play) -> None:
    """One worker serves very many queues, all of which wait for one limit; then their worker is away."""
    names = [f"queue-{number}" for number in range(play.sizes.queues)]
    worker = play.worker(*names)
    worker.declare(api=_SLOTS)
    tasks = [_task("1:api", queue) for _ in range(play.sizes.tasks // len(names) + 1) for queue in names]
    worker.work(parked=tasks)
    worker.work(parked=(_task("", queue) for queue in names))
    over: list[DeliveryChange] = []
    for _ in range(10):
        over = worker.work(_SLOTS, over=over)
    elsewhere = play.worker("another")
    elsewhere.work(over=over)
    for _ in range(5):
        play.client.zadd(play.keys.key("due"), {"bucket:api": 1})
        elsewhere.work(_SLOTS)


def _eight(play: Play) -> None:
    """Tasks need eight limits, five of them by key, with rates."""
    names = [f"limit-{number}" for number in range(8)]
    worker = play.worker()
    worker.declare(**dict.fromkeys(names, '{"permits":60,"rates":[[100000,1000000,1000]]}'))

    def needs(number: int) -> str:
        return "\1".join([*(f"1:{name}\x1f{number % 40}" for name in names[:5]), *(f"1:{name}" for name in names[5:])])

    asked = [_task(needs(number)) for number in range(_ROWS)]
    worker.work(asked=asked)
    worker.work(parked=(_task(needs(number)) for number in range(play.sizes.tasks)))
    over = [ended(each.task, each.nonce, each.needs) for each in asked]
    worker.call(worker.store.renew(worker.name, 10**6, asked[:200]))
    for _ in range(10):
        more = [_task(needs(number)) for number in range(_ROWS)]
        over = worker.work(_SLOTS, over=over, asked=more, parked=more)
    worker.call(worker.store.parked("limit-0", 100))
    play.let_all_leases_end()
    worker.call(worker.store.reap(_REAPED))
    worker.work(_SLOTS)


LOADS: dict[str, Callable[[Play], None]] = {
    "{0.tenants} tenants by fair_by": _tenants,
    "{0.limits} limits declared at once": _declared,
    "{0.queues} queues": _queues,
    "tasks with eight needs": _eight,
}


def scripts(bench: Bench) -> list[Figure]:
    """Play each load; return the longest call of each script."""
    sizes = Sizes(2000, 300, 50, 200) if bench.quick else Sizes()
    figures = []
    for described, play in LOADS.items():
        load = described.format(sizes)
        longest = _longest(bench, play, sizes)
        bench.show(f"{load}: " + ", ".join(f"{name} {took:.1f}" for name, took in longest.items()))
        figures += [Figure(load, f"longest {name}", (took,), "ms", at_most=GOAL) for name, took in longest.items()]
    return figures


def _longest(bench: Bench, load: Callable[[Play], None], sizes: Sizes) -> dict[str, float]:
    """Return the milliseconds of the longest call of each script, the longest first."""
    found = [_times(load, sizes) for _ in range(max(2, bench.rounds))]
    # A play may have a call less or more, since its rates depend on the time.
    names, same = Counter(tuple(name for name, _ in calls) for calls in found).most_common(1)[0]
    if same < 2:
        raise BenchmarkError(f"not the same calls each time: {[len(calls) for calls in found]}")
    plays = [calls for calls in found if tuple(name for name, _ in calls) == names]
    longest: dict[str, float] = {}
    for calls in zip(*plays, strict=True):
        name, took = calls[0][0], min(each for _, each in calls)
        longest[name] = max(longest.get(name, 0.0), took)
    return dict(sorted(longest.items(), key=lambda item: -item[1]))


def _times(load: Callable[[Play], None], sizes: Sizes) -> list[tuple[str, float]]:
    """Play a load on a server of its own, with all scripts loaded; return the name and the time of each call."""
    with server_with_scripts() as (server, client):
        play = Play(client, Clock(server, client), sizes)
        load(play)
        return play.times


@contextmanager
def server_with_scripts() -> Iterator[tuple[EmbeddedServer, Redis]]:
    """Start an empty server with all scripts loaded; yield it with a client."""
    with EmbeddedServer(options=_SLOW_LOG) as server, Redis.from_url(server.url) as client:
        for script in _scripts():
            client.script_load(script.text)
        yield server, client


_SLOW_LOG = {"slowlog-log-slower-than": "0", "slowlog-max-len": "10"}


@cache
def _scripts() -> list[Script]:
    """Return the scripts of the gate, without those that have the same text."""
    folder = Path(celery_throttle.store.__file__).parent / "lua" / "gate"
    scripts = [Script.of_gate(each.stem) for each in sorted(folder.glob("*.lua"))]
    return list({script.sha: script for script in scripts}.values())


def first_load(bench: Bench) -> list[Figure]:
    """Load each text into a server that does not have it, as a worker does once after a start of the server."""
    took: dict[str, list[float]] = {}
    with EmbeddedServer(options=_SLOW_LOG) as server, Redis.from_url(server.url) as client:
        clock = Clock(server, client)
        for _ in range(max(bench.rounds, 3)):
            for script in _scripts():
                client.script_flush()
                milliseconds, _ = clock.measure(partial(client.script_load, script.text))
                took.setdefault(script.name, []).append(milliseconds)
        for script in _scripts():
            client.script_load(script.text)
        heap = int(client.info("memory")["used_memory_lua"])
    described = {"exchange": "exchange", "status": "all read-only scripts", "reap": "all others"}
    named = {Script.of_gate(script).sha: text for script, text in described.items()}
    least = sorted(((min(times), named[Script.of_gate(name).sha]) for name, times in took.items()), reverse=True)
    load = "first load of a script"
    return [
        *(Figure(load, name, (milliseconds,), "ms", at_most=GOAL) for milliseconds, name in least),
        Figure(load, "together", (sum(each for each, _ in least),), "ms"),
        Figure(load, "Lua's heap with all of them", (heap / 1024,), "kB"),
    ]
