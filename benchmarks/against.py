"""``python -m benchmarks.against COMMIT``: compare the server time of the scripts here with those of another commit.

Each commit has its own database on one server, and both do each piece of work in turn. Both have to accept the same
rows; their keys and records may differ.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import uuid
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from redis import Redis

from benchmarks.figures import Figure, table
from benchmarks.site import ROOT, BenchmarkError
from benchmarks.stand_in import DONE, StandIn
from celery_throttle.core import keys
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.exchange import Ended, Exchange
from celery_throttle.store.scripts import Script, execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_throttle.store.scripts import Call

_PARKED, _PIECE = 1000, 20
_DUMP = """\
import json
from celery_throttle.core import keys
from celery_throttle.store import gate_script
names = ("declare", "exchange", "wake", "reap", "renew")
print(json.dumps([keys._NAMES, {name: gate_script.gate_text(name) for name in names}]))
"""
_HERE, _THERE = "here", "there"


class _Side(NamedTuple):
    """One of the two commits: the names of its keys, and the texts of its scripts."""

    keys: Sequence[str]
    texts: Mapping[str, str]


def main() -> int:
    """Measure, and print the ratios of this tree to the other commit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("commit", help="whose scripts are the measure, 1.00")
    parser.add_argument("--rounds", type=int, default=100, help="how often each piece of work is done by both")
    asked = parser.parse_args()
    sides = {_HERE: _side(str(ROOT)), _THERE: _side_of(asked.commit)}
    with EmbeddedServer() as server:
        base = server.url.rpartition("/")[0]
        with Redis.from_url(f"{base}/0") as here, Redis.from_url(f"{base}/1") as there:
            figures = _figures({_HERE: here, _THERE: there}, sides, asked.rounds)
    print(table(figures))
    return 0


def _side(folder: str) -> _Side:
    answer = subprocess.run([sys.executable, "-c", _DUMP], cwd=folder, capture_output=True, text=True, check=True)
    return _Side(*json.loads(answer.stdout))


def _side_of(commit: str) -> _Side:
    packed = subprocess.run(["git", "archive", commit, "celery_throttle"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise BenchmarkError(f"git archive {commit}: {packed.stderr.decode().strip()}")
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
            tar.extractall(folder, filter="data")
        return _side(folder)


@contextmanager
def _in_use(side: _Side) -> Iterator[None]:
    scripts = {name: Script.of(name, text) for name, text in side.texts.items()}
    with patch.object(Script, "of_gate", scripts.__getitem__), patch.object(keys, "_NAMES", side.keys):
        yield


def _figures(clients: Mapping[str, Redis], sides: Mapping[str, _Side], rounds: int) -> list[Figure]:
    times: dict[tuple[str, str], list[float]] = {}
    works: dict[str, _Work] = {}
    for name, side in sides.items():
        with _in_use(side):
            works[name] = _Work(clients[name])
    for number in range(rounds):
        for name in (_HERE, _THERE) if number % 2 else (_THERE, _HERE):
            with _in_use(sides[name]):
                for what, piece in works[name].pieces.items():
                    times.setdefault((what, name), []).append(piece())
    load = f"server time of one call, {rounds} pieces each"
    figures = []
    for what in works[_HERE].pieces:
        here, there = times[what, _HERE], times[what, _THERE]
        figures.append(Figure(load, f"{what}, there", (median(there),), "us"))
        # The lower quarter, because other programs on the machine only make calls longer.
        ratios = (_quarter(here) / _quarter(there), median(here) / median(there))
        figures.append(Figure(load, f"{what}, here / there (lower quarter .. median)", ratios, "x"))
    return figures


def _quarter(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]


class _Work:
    """Pieces of work on one group. Each is a function that returns the server's microseconds for one call."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._free = StandIn(client, Keys("free"), "throttled")
        self._free.declare(free=10**6)
        self._crowded = StandIn(client, Keys("crowded"), "throttled")
        self._crowded.declare(crowded=1)
        (holder,) = self._crowded.hold(1, "crowded")
        self._holder = (holder, f"{self._crowded.name}:{holder}")
        self._crowded.park(_PARKED, "crowded", [b"x" * 300])
        self._asked: dict[int, list[list[str]]] = {}
        self.pieces: dict[str, Callable[[], float]] = {
            "empty call": lambda: self._timed([self._free.exchange(Exchange()) for _ in range(_PIECE)]),
            "admit": lambda: self._admit(1),
            "release": lambda: self._release(1),
            "admit 10": lambda: self._admit(10),
            "release 10": lambda: self._release(10),
            "hand-over": self._hand_over,
        }

    def _admit(self, rows: int) -> float:
        self._asked[rows] = [[str(uuid.uuid4()) for _ in range(rows)] for _ in range(_PIECE)]
        return self._timed([self._free.exchange(self._free.asking(tasks, "free")) for tasks in self._asked[rows]])

    def _release(self, rows: int) -> float:
        return self._timed([self._free.exchange(self._free.releasing(tasks)) for tasks in self._asked.pop(rows)])

    def _hand_over(self) -> float:
        self._client.config_resetstat()
        for _ in range(_PIECE):
            task, nonce = self._holder
            (grant,) = self._crowded.send(Exchange(1, ended=[Ended(task, nonce, DONE)])).grants
            self._holder = (grant.task, grant.nonce)
        spent = self._spent()
        self._crowded.park(_PIECE, "crowded", [b"x" * 300])
        return spent

    def _timed(self, calls: Sequence[Call]) -> float:
        self._client.config_resetstat()
        for call in calls:
            execute(self._client, call)
        return self._spent()

    def _spent(self) -> float:
        found = self._client.info("commandstats")
        return float(sum(each["usec"] for name, each in found.items() if name.startswith("cmdstat_eval"))) / _PIECE


if __name__ == "__main__":
    sys.exit(main())
