"""Processes that contend for a few permits: their rate, their waits, their order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis import Redis

from benchmarks.contenders import CONTENDERS, contenders
from benchmarks.crew import Crew
from benchmarks.figures import Figure, percentile
from benchmarks.site import peak
from celery_throttle.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.site import Bench

__all__ = ["contend", "one", "three"]

_PROCESSES = 8
#: Seconds that a permit is held: a sleep, so that permits are scarce and not processors.
_HELD = 0.005
#: Two requests within these seconds have no order.
_AT_ONCE = 0.005


@dataclass(frozen=True)
class _Use:
    """One permit: the times of the request, the grant and the release."""

    asked: float
    start: float
    end: float


@dataclass
class _Row:
    """The figures of one way, a value for each round."""

    rate: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)
    order: list[float] = field(default_factory=list)
    hand_over: list[float] = field(default_factory=list)
    peak: int = 0


def three(bench: Bench) -> list[Figure]:
    """Three permits."""
    return _measure(bench, 3)


def one(bench: Bench) -> list[Figure]:
    """One permit, as a lock: most peers can do no more."""
    return _measure(bench, 1)


def contend(
    client: Redis, *, number: int, start: float, way: str, name: str, limit: int, seconds: float
) -> list[float]:
    """Take and release permits for ``seconds``; return the times of each request, grant and release. Runs in a crew."""
    enter = CONTENDERS[way][2](client, name, limit)
    times: list[float] = []
    time.sleep(max(start + number * 0.0005 - time.monotonic(), 0))
    while (asked := time.monotonic()) < start + seconds:
        with enter():
            got = time.monotonic()
            time.sleep(_HELD)
            times += (asked, got, time.monotonic())
    return times


def _measure(bench: Bench, limit: int) -> list[Figure]:
    seconds = 0.5 if bench.quick else 3.0
    rows = {way: _Row() for way in contenders(limit)}
    with EmbeddedServer() as server, Crew(server.url, _PROCESSES) as crew, Redis.from_url(server.url) as client:
        for number in range(-1, bench.rounds):
            for way in rows if number % 2 else reversed(rows):
                client.flushall()
                # The first round is for connections, scripts and imports, and does not count.
                length = seconds if number >= 0 else 0.2
                options = {"way": way, "name": f"bench {number}", "limit": limit, "seconds": length}
                times = crew.do(__name__, "contend", **options)
                if number >= 0:
                    _note(rows[way], [use for some in times for use in _uses(some)], limit, seconds)
                    _show(bench, way, rows[way])
    return _figures(bench, f"{_PROCESSES} processes, limit {limit}, each held {_HELD * 1000:g} ms", limit, rows)


def _uses(times: list[float]) -> Iterable[_Use]:
    return (_Use(*triple) for triple in zip(times[::3], times[1::3], times[2::3], strict=True))


def _note(row: _Row, uses: list[_Use], limit: int, seconds: float) -> None:
    uses.sort(key=lambda use: use.start)
    waits = [use.start - use.asked for use in uses]
    began = min(use.asked for use in uses)
    row.rate.append(sum(use.start < began + seconds for use in uses) / seconds)
    row.wait.append(percentile(waits, 50) * 1000)
    row.worst.append(percentile(waits, 99) * 1000)
    row.order.append(100 * (1 - _overtaken(uses) / len(uses)))
    # A start uses the permit of the run that ended ``limit`` starts before.
    ends = sorted(use.end for use in uses)
    gaps = [use.start - end for use, end in zip(uses[limit:], ends, strict=False)]
    row.hand_over.append(percentile(gaps, 50) * 1000)
    row.peak = max(row.peak, peak(uses))


def _overtaken(uses: list[_Use]) -> int:
    """Return the number of requests that got their permit after a later request."""
    overtaken, latest, before = 0, 0.0, 0
    for use in uses:
        while uses[before].start < use.start - _AT_ONCE:
            latest = max(latest, uses[before].asked)
            before += 1
        overtaken += latest > use.asked + _AT_ONCE
    return overtaken


def _show(bench: Bench, way: str, row: _Row) -> None:
    bench.show(
        f"{way}: {row.rate[-1]:.0f}/s, wait {row.wait[-1]:.1f} ms, p99 {row.worst[-1]:.1f} ms, in order "
        f"{row.order[-1]:.1f} %, hand-over {row.hand_over[-1]:.2f} ms, at once {row.peak}"
    )


def _figures(bench: Bench, load: str, limit: int, rows: dict[str, _Row]) -> list[Figure]:
    figures = []
    for way, row in rows.items():
        broken = row.peak > limit
        name = f"{way} - BREAKS THE CAP: {row.peak} at once" if broken else way
        ours = way == "FairSemaphore"
        if ours and broken:
            bench.problem(f"FairSemaphore: {row.peak} at once under a limit of {limit}")
        figures += [
            Figure(load, name, tuple(row.rate), "/s"),
            Figure(load, "  wait, median", tuple(row.wait), "ms"),
            Figure(load, "  wait, 99th percentile", tuple(row.worst), "ms"),
            Figure(load, "  served in the order of asking", tuple(row.order), "%"),
            Figure(load, "  hand-over, median", tuple(row.hand_over), "ms", at_most=2.0 if ours else None),
        ]
    peers = [row for way, row in rows.items() if way not in {"FairSemaphore", "IdentityLock"} and row.peak <= limit]
    return figures + _against(load, rows["FairSemaphore"], peers)


def _against(load: str, ours: _Row, peers: list[_Row]) -> list[Figure]:
    """Compare with the best peer of each round, which may differ from figure to figure."""
    rates = tuple(rate / max(peer.rate[i] for peer in peers) for i, rate in enumerate(ours.rate))
    worst = tuple(wait / min(peer.worst[i] for peer in peers) for i, wait in enumerate(ours.worst))
    return [
        Figure(load, "FairSemaphore: rate, against the best peer", rates, "x", at_least=1.0),
        Figure(load, "FairSemaphore: p99 of the wait, against the best peer", worst, "x", at_most=1.0),
    ]
