"""Do pieces of work on a store with the calls and scripts of one commit, and measure the server's time for a call.

`against.py` runs this file in a process for each commit, with that commit's ``benchmarks`` and ``celery_throttle`` on
the path. The process prints the names of the pieces as JSON. For each line with a name it does that piece, and prints
the microseconds of one call.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from redis import Redis

from benchmarks.stand_in import StandIn
from celery_throttle.core.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.store.scripts import Call

_PARKED, _PIECE = 1000, 20


class _Holder(NamedTuple):
    task: str
    nonce: str


class _Work:
    """Pieces of work on one group. Each is a function that returns the server's microseconds for one call."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._free = StandIn(client, Keys("free"), "throttled")
        self._free.declare(free=10**6)
        self._crowded = StandIn(client, Keys("crowded"), "throttled")
        self._crowded.declare(crowded=1)
        self._send = getattr(self._crowded, "send" if hasattr(self._crowded, "send") else "say")  # in earlier commits
        (holder,) = self._crowded.hold(1, "crowded")
        self._holder: Any = _Holder(holder, f"{self._crowded.name}:{holder}")
        self._crowded.park(_PARKED, "crowded", [b"x" * 300])
        self._asked: dict[int, list[list[str]]] = {}
        self.pieces: dict[str, Callable[[], float]] = {
            "empty call": lambda: self._timed([self._free.exchange(self._free.releasing([])) for _ in range(_PIECE)]),
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
            (self._holder,) = self._send(self._crowded.hand_over(self._holder)).grants
        spent = self._spent()
        self._crowded.park(_PIECE, "crowded", [b"x" * 300])
        return spent

    def _timed(self, calls: Sequence[Call]) -> float:
        self._client.config_resetstat()
        for call in calls:
            self._free.call(call)
        return self._spent()

    def _spent(self) -> float:
        found = self._client.info("commandstats")
        return float(sum(each["usec"] for name, each in found.items() if name.startswith("cmdstat_eval"))) / _PIECE


def _main(url: str) -> None:
    with Redis.from_url(url) as client:
        work = _Work(client)
        print(json.dumps(list(work.pieces)), flush=True)
        for line in sys.stdin:
            print(work.pieces[line.rstrip("\n")](), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
