"""The share of a limit's permits that is used, compared with the usual recipe."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.site import THROTTLED, UNTHROTTLED, Site, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.site import Bench, Run

__all__ = ["backlog", "few_long", "many_short"]


@dataclass
class _Peer:
    """One way to run the same load, with its figures of each round."""

    name: str
    task: str
    queue: str
    limit: int | None  # must hold at every instant
    share: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)
    overtaken: list[float] = field(default_factory=list)
    inverted: list[float] = field(default_factory=list)


def few_long(bench: Bench) -> list[Figure]:
    """60 tasks of 0.2 s, beside the recipe."""
    return _drain(bench, 20 if bench.quick else 60, 0.2, reach=0.98, recipe=True)


def many_short(bench: Bench) -> list[Figure]:
    """1000 tasks of 0.02 s."""
    return _drain(bench, 200 if bench.quick else 1000, 0.02, reach=0.85)


def _peers(limit: int, *, recipe: bool) -> list[_Peer]:
    peers = [
        # Celery's own cap: the number of processes.
        _Peer(f"plain Celery, one worker x {limit}", "plain", UNTHROTTLED, limit),
        _Peer("Throttled", f"limit-{limit}", THROTTLED, limit),
    ]
    if recipe:
        peers.append(_Peer("recipe (semaphore and retry)", "recipe", THROTTLED, None))
    return peers


def _drain(bench: Bench, count: int, seconds: float, *, reach: float, recipe: bool = False) -> list[Figure]:
    limit = 2
    peers = _peers(limit, recipe=recipe)
    with Site(bench) as site:
        site.start(1, limit, throttled=False)
        site.start(2, 4)
        for peer in peers:  # a first load, for imports and connections
            site.publish(peer.task, ((f"warm {peer.task}", n, 0.05) for n in range(16)), peer.queue)
            site.wait(f"warm {peer.task}", 16, 60)
        for number in range(bench.rounds):
            for peer in peers:
                _round(bench, site, peer, f"{peer.task} {number}", count, seconds)
    load = f"{count} x {seconds:g} s, limit {limit}, two workers x 4 (ideal {count * seconds / limit:g} s)"
    return _figures(load, peers, reach, recipe=recipe)


def _round(bench: Bench, site: Site, peer: _Peer, load: str, count: int, seconds: float) -> None:
    ideal = count * seconds / 2
    before = site.messages_published()
    site.publish(peer.task, ((load, n, seconds) for n in range(count)), peer.queue)
    runs = site.wait(load, count, timeout=60 + 20 * ideal)
    site.check_runs(load, runs, range(count), peer.limit)
    wall = max(run.end for run in runs) - runs[0].start
    peer.wall.append(wall)
    peer.share.append(ideal / wall)
    peer.messages.append((site.messages_published() - before) / count)
    peer.overtaken.append(_overtaken(runs))
    peer.inverted.append(_inverted(runs))
    bench.show(f"{load}: {ideal / wall:.3f} of the ideal")


def _figures(load: str, peers: Sequence[_Peer], reach: float, *, recipe: bool) -> list[Figure]:
    figures = [
        Figure(load, f"share of the ideal: {peer.name}", tuple(peer.share), at_least=reach if ours else None)
        for peer in peers
        for ours in [peer.name == "Throttled"]
    ]
    if recipe:
        figures += [Figure(load, f"wall time: {peer.name}", tuple(peer.wall), "s") for peer in peers]
        figures += [Figure(load, f"broker messages per task: {peer.name}", tuple(peer.messages)) for peer in peers]
        figures += [Figure(load, f"most tasks that overtook one: {peer.name}", tuple(peer.overtaken)) for peer in peers]
        figures += [Figure(load, f"pairs out of order: {peer.name}", tuple(peer.inverted), "%") for peer in peers]
    return figures


def _overtaken(runs: Sequence[Run]) -> float:
    """Return the highest number of tasks that overtook one task: published after it, and started before it."""
    return max(sum(1 for other in runs[:place] if other.number > run.number) for place, run in enumerate(runs))


def _inverted(runs: Sequence[Run]) -> float:
    """Return the share of pairs that did not start in the order in which they were published, in percent."""
    pairs = len(runs) * (len(runs) - 1) / 2
    wrong = sum(sum(1 for other in runs[:place] if other.number > run.number) for place, run in enumerate(runs))
    return 100 * wrong / pairs


_WINDOW = 4.0


def backlog(bench: Bench) -> list[Figure]:
    """Start workers with thousands of tasks in the broker, and count the starts of the first seconds."""
    count, seconds, limit = 1000 if bench.quick else 5000, 0.1, 4
    peers = _peers(limit, recipe=False)
    rounds = min(bench.rounds, 5)
    with Site(bench) as site:
        for number in range(rounds):
            for peer in peers:
                load = f"{peer.task} {number}"
                site.publish(peer.task, ((load, n, seconds) for n in range(count)), peer.queue)
                site.start(*((1, limit) if peer.queue == UNTHROTTLED else (2, 4)), throttled=peer.queue == THROTTLED)
                peer.share.append(_first_seconds(site, load, limit, seconds))
                bench.show(f"{load}: {peer.share[-1]:.3f} of the ideal")
                site.end_workers()
                site.empty()
    load = f"{count} x {seconds:g} s already in the broker, limit {limit}, two workers x 4"
    name = f"share of the ideal in the first {_WINDOW:g} s"
    return [
        Figure(load, f"{name}: {peer.name}", tuple(peer.share), at_least=0.92 if peer.name == "Throttled" else None)
        for peer in peers
    ]


def _first_seconds(site: Site, load: str, limit: int, seconds: float) -> float:
    first = site.wait(load, 1, timeout=60)[0].start
    until(lambda: time.time() > first + _WINDOW + 3 * seconds, 60, "time stands still")
    runs = site.runs(load)
    site.check_runs(load, runs, {run.number for run in runs}, limit)
    # Measured from the very first start, so that a worker which is ready later than the other costs its share.
    return sum(run.start < first + _WINDOW for run in runs) / (limit * _WINDOW / seconds)
