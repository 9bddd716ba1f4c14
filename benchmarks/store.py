"""The costs of the store: commands when idle, bytes, server time."""

from __future__ import annotations

import json
import time
import uuid
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from benchmarks.site import BenchmarkError, Site
from benchmarks.stand_in import StandIn
from celery_throttle.core.history import SLOT, Place, place_of
from celery_throttle.core.keys import Keys
from celery_throttle.store.history import by_limit
from celery_throttle.store.parcel import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kombu.message import Message
    from redis import Redis

    from benchmarks.site import Bench
    from celery_throttle.store.exchange_reply import Grant
    from celery_throttle.store.scripts import Call

__all__ = ["bytes_each", "history", "idle", "reap", "server_time"]

_HOUR = 3600.0

# Scripts never call these, so their count is the number of commands from clients.
_SENT_BY_CLIENTS = ("evalsha", "eval", "subscribe", "ping", "info", "config|get", "client|setinfo", "script|load")


class _Line:
    """One prefix of the store: a limit with one taken permit, and many tasks parked behind it."""

    def __init__(self, client: Redis, keys: Keys, limit: str = "crowded") -> None:
        self.client, self.keys, self.limit = client, keys, limit
        self.worker = self._worker(_HOUR)
        self.worker.declare(**{limit: 1, "wide": 10**9, "free": 5000})
        [self.holder] = self.worker.hold(1, limit)

    def _worker(self, lease: float) -> StandIn:
        return StandIn(self.client, self.keys, "throttled", lease=lease)

    def park(self, count: int, messages: Sequence[bytes]) -> None:
        self.worker.park(count, self.limit, messages)

    def hold(self, count: int, limit: str, *, lease: float = _HOUR) -> None:
        self._worker(lease).hold(count, limit)

    def bytes(self) -> int:
        used: Iterable[Any] = (self.client.memory_usage(key, samples=0) for key in self.keys.all)
        return sum(size or 0 for size in used)


def _messages(site: Site) -> list[bytes]:
    """Return messages in the form in which a worker parks them."""
    return [pack(message) for message in _sent(site)]


def _sent(site: Site, lengths: Iterable[int] = (0,)) -> list[Message]:
    """Return real messages as a worker gets them, with an argument of each length."""
    site.publish("limit-1", [("x" * length, 1, 0.1) for length in lengths], "sample")
    found = []
    with site.publisher.connection_for_read() as connection, connection.SimpleQueue("sample") as queue:
        for _ in lengths:
            message = queue.get(timeout=10)
            message.ack()
            found.append(message)
    return found


def _size(message: Message) -> int:
    """Return the number of bytes of a message as JSON."""
    return len(json.dumps({"headers": message.headers, "properties": message.properties})) + len(message.body or "")


# -- commands when there is nothing to do -----------------------------------------------------------------------------


def idle(bench: Bench) -> list[Figure]:
    """Count the commands of two workers with many tasks parked behind a taken permit."""
    count, seconds = (5000, 10.0) if bench.quick else (100_000, 20.0)
    total, sent = [], []
    with Site(bench, own_store=True) as site:
        line = _Line(site.store, site.keys, limit="limit-1")
        line.park(count, _messages(site))
        site.start(2, 2)
        time.sleep(6)  # for the calls that a worker makes once at its start
        for _ in range(bench.rounds):
            before = _commands(site.store)
            time.sleep(seconds)
            after = _commands(site.store)
            # The second probe's INFO is not counted in its own answer, the first one's is.
            total.append((after[0] - before[0] - 1) / seconds)
            sent.append((after[1] - before[1] - 1) / seconds)
            bench.show(f"{total[-1]:.1f} commands/s, {sent[-1]:.2f} of them sent by workers")
    load = f"{count} parked, nothing to do, two workers"
    return [
        Figure(load, "Redis commands per second, inside scripts too", tuple(total), at_most=5.0),
        Figure(load, "Redis commands per second, as sent by workers", tuple(sent)),
    ]


def _commands(client: Redis) -> tuple[int, int]:
    information: dict[str, Any] = client.info("everything")  # one call, so one moment
    calls = sum(int(information.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in _SENT_BY_CLIENTS)
    return int(information["total_commands_processed"]), calls


# -- bytes ------------------------------------------------------------------------------------------------------------


def bytes_each(bench: Bench) -> list[Figure]:
    """Measure the memory per parked task, beyond its message, and per holder."""
    count = 5000 if bench.quick else 100_000
    parked, bare, held = [], [], []
    with Site(bench) as site:
        # Many lengths, because the server rounds each message up to a size of its allocator, and the average counts.
        sent = _sent(site, range(0, 512, 4))
        messages, length = [pack(message) for message in sent], sum(map(_size, sent)) / len(sent)
        for _ in range(min(bench.rounds, 3)):
            parked.append(_grown(site, lambda line: line.park(count, messages)) / count - length)
            bare.append(_grown(site, lambda line: line.park(count, [b"-"])) / count)
            held.append(_grown(site, lambda line: line.hold(count, "wide")) / count)
            bench.show(f"parked {parked[-1]:.0f}, with a message of one byte {bare[-1]:.0f}, held {held[-1]:.0f}")
    load = f"memory, {count} of each (MEMORY USAGE of all keys)"
    return [
        Figure(load, f"per parked task, beyond its message of {length:.0f} bytes", tuple(parked), "B", at_most=450),
        Figure(load, "per parked task, if its message were one byte", tuple(bare), "B"),
        Figure(load, "per holder", tuple(held), "B", at_most=300),
    ]


def _grown(site: Site, act: Callable[[_Line], None]) -> int:
    site.store.flushall()
    line = _Line(site.store, site.keys)
    before = line.bytes()
    act(line)
    return line.bytes() - before


# -- server time ------------------------------------------------------------------------------------------------------


def server_time(bench: Bench) -> list[Figure]:
    """Admit, release and hand over, without parked tasks and with very many."""
    few, many, pairs, chunks = 1000, 5000 if bench.quick else 100_000, 50, 10
    costs: dict[tuple[str, int], list[float]] = {
        (what, parked): [] for what in ("admit", "release", "hand-over") for parked in (0, many)
    }
    with Site(bench) as site:
        messages = _messages(site)
        lines = {}
        for parked in (0, many):
            lines[parked] = _Line(site.store, Keys(f"parked-{parked}"))
            lines[parked].park(parked, messages)
        crowded = {0: _Line(site.store, Keys("few")), many: lines[many]}
        crowded[0].park(few, messages)
        holders = {parked: _first_grant(line) for parked, line in crowded.items()}
        for _ in range(bench.rounds):
            used: dict[tuple[str, int], float] = dict.fromkeys(costs, 0.0)
            # Small pieces in turn, so that both sizes see the same disturbances.
            for _ in range(chunks):
                for parked, line in lines.items():
                    worker, tasks = line.worker, [str(uuid.uuid4()) for _ in range(pairs)]
                    admits = [worker.exchange(worker.asking([task], "free")) for task in tasks]
                    releases = [worker.exchange(worker.releasing([task])) for task in tasks]
                    used["admit", parked] += _microseconds(line, admits)
                    used["release", parked] += _microseconds(line, releases)
                for parked, line in crowded.items():
                    spent, holders[parked] = _handovers(line, holders[parked], 5)
                    used["hand-over", parked] += spent
            for key, microseconds in used.items():
                costs[key].append(microseconds / chunks / (5 if key[0] == "hand-over" else pairs))
            bench.show(", ".join(f"{what} {parked}: {values[-1]:.1f} us" for (what, parked), values in costs.items()))
    load = f"server time of one call, at 0 and at {many} parked"
    figures = []
    for what in ("admit", "release", "hand-over"):
        small, large = costs[what, 0], costs[what, many]
        base = few if what == "hand-over" else 0
        ratios = tuple(b / a for a, b in zip(small, large, strict=True))
        figures += [
            Figure(load, f"{what}: {many} against {base} parked", ratios, "x", at_most=1.5),
            Figure(load, f"{what}: {base} parked", tuple(small), "us"),
            Figure(load, f"{what}: {many} parked", tuple(large), "us"),
        ]
    return figures


def history(bench: Bench) -> list[Figure]:
    """Compare one call that adds the counts of 50 tasks with admitting and releasing these tasks."""
    rounds, tasks = 5 if bench.quick else 20, 50
    shares, each = [], []
    with Site(bench) as site:
        line = _Line(site.store, site.keys)
        worker = line.worker
        counts = [0.0] * SLOT
        for place in (Place.AT_ONCE, place_of(0.1), place_of(0.5), Place.PARKED, Place.ENDED, Place.FAILED):
            counts[place] = 10
        counts[Place.RUN_TIME] = 12_345
        add_counts = worker.store.count(by_limit({f"1:{line.limit}": counts}))
        for _ in range(bench.rounds):
            both = count = 0.0
            for _ in range(rounds):
                ids = [str(uuid.uuid4()) for _ in range(tasks)]
                calls = [worker.exchange(worker.asking([task], "free")) for task in ids]
                calls += [worker.exchange(worker.releasing([task])) for task in ids]
                both += _microseconds(line, calls)
                count += _microseconds(line, [add_counts])
            shares.append(count / both)
            each.append(count / rounds)
            bench.show(f"{each[-1]:.0f} us each time, {shares[-1]:.2%}")
    load = f"history, one call after {tasks} tasks of one limit"
    return [
        Figure(load, "server time, of that of their admits and releases", tuple(shares), "x", at_most=0.02),
        Figure(load, "server time each time", tuple(each), "us"),
    ]


def _first_grant(line: _Line) -> Grant:
    """Release the one permit; return its next holder."""
    [grant] = line.worker.send(line.worker.releasing([line.holder], slots=1)).grants
    return grant


def _handovers(line: _Line, holder: Grant, count: int) -> tuple[float, Grant]:
    """Release the one permit of a crowded limit ``count`` times; return the time, and the last holder."""
    spent = 0.0
    for _ in range(count):
        before = _script_time(line.client)
        reply = line.worker.send(line.worker.hand_over(holder))
        spent += _script_time(line.client) - before
        [holder] = reply.grants
    return spent, holder


def _microseconds(line: _Line, calls: Iterable[Call]) -> float:
    before = _script_time(line.client)
    for call in calls:
        line.worker.call(call)
    return _script_time(line.client) - before


def _script_time(client: Redis) -> float:
    """Return the microseconds that the server spent in scripts so far."""
    statistics: dict[str, Any] = client.info("commandstats")
    return float(sum(statistics.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "eval")))


def reap(bench: Bench) -> list[Figure]:
    """Clear expired holders among none and among very many that are alive."""
    expired, many = (200, 5000) if bench.quick else (1000, 100_000)
    costs: dict[int, list[float]] = {0: [], many: []}
    with Site(bench) as site:
        lines = {live: _Line(site.store, Keys(f"live-{live}")) for live in costs}
        lines[many].hold(many, "wide")
        for _ in range(bench.rounds):
            # Several in turn, and the median counts, because each takes milliseconds and may be disturbed.
            several: dict[int, list[float]] = {live: [] for live in costs}
            for _ in range(7):
                for live, line in lines.items():
                    several[live].append(_reap(line, expired) / 1000)
            for live, milliseconds in several.items():
                costs[live].append(median(milliseconds))
            bench.show(", ".join(f"{live} live: {values[-1]:.1f} ms" for live, values in costs.items()))
    load = f"reap of {expired} expired among 0 and among {many} live"
    ratios = tuple(b / a for a, b in zip(costs[0], costs[many], strict=True))
    return [
        Figure(load, "server time, many against none", ratios, "x", at_most=1.5),
        *(Figure(load, f"server time: {live} live", tuple(values), "ms") for live, values in costs.items()),
    ]


def _reap(line: _Line, expired: int) -> float:
    line.hold(expired, "wide", lease=0.001)
    time.sleep(0.05)
    before = _script_time(line.client)
    _, cleared = line.worker.call(line.worker.store.reap(expired))
    spent = _script_time(line.client) - before
    if len(cleared) != expired:
        raise BenchmarkError(f"reaped {len(cleared)} of {expired}")
    return spent
