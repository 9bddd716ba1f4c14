"""The site of a run of chaos: a broker, a store, and workers that reach each of them through relays."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError

from tests.chaos.kinds import LEASE
from tests.conftest import new_server
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.workers import Workers, alive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

    from celery_throttle.embedded import EmbeddedServer
    from tests.support.workers import Worker

__all__ = ["Place", "Town", "Trouble"]

APP = "tests.chaos.tasks"
#: Of the workers that are not like the others, by place.
_OPTIONS: dict[int, dict[str, Any]] = {
    1: {"options": ("--max-tasks-per-child", "40")},
    2: {"pool": "gevent"},
    3: {"pool": "threads"},
}
#: The broker delivers unacknowledged messages again after so many seconds.
VISIBILITY = 15
#: Celery itself waits for half a minute and more for a job that did not get to its process.
_ENDS_WITHIN = 75
_SAFE = {"appendfsync": "always"}
_SETTINGS = {
    "throttle_lease": LEASE,
    # Each worker has a relay, and so an address of its own.
    "throttle_broker": "chaos",
    # A worker that dies while it delivers messages of lost ones again keeps all others from it, by default for five
    # minutes.
    "broker_transport_options": {"visibility_timeout": VISIBILITY, "unacked_mutex_expire": 5},
    "worker_send_task_events": False,
}


@dataclass
class Trouble:
    """Something that happened to one worker, or to all (``worker`` is empty), from when to when."""

    what: str
    worker: str
    began: float
    ended: float


class Place:
    """A place where one worker after the other runs, with the same relays.

    Attributes:
        busy: whether a mishap happens to it now.
        expected_end: whether its worker was stopped or killed on purpose.
    """

    def __init__(self, options: dict[str, Any], release: int, broker: Relay, store: Relay) -> None:
        self.options, self.release, self.broker, self.store = options, release, broker, store
        self.worker: Worker | None = None
        self.busy = self.expected_end = False

    @property
    def up(self) -> bool:
        """Whether its worker is there and ready."""
        return bool(self.worker and self.worker.running and re.search(r"@\S+ ready\.", self.worker.log()))

    @property
    def node(self) -> str:
        return self.worker.name if self.worker else ""

    @property
    def pool(self) -> str:
        return str(self.options.get("pool", "prefork"))


class Town:
    """Starts everything, and ends it with the ``with`` block."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.directory = directory
        self.journal = Journal(directory / "journal.jsonl")
        self.troubles: list[Trouble] = []
        self.died: list[tuple[str, str]] = []  # workers that ended otherwise than they should, and how
        self.wrong: list[str] = []  # what a mishap has found
        self.told_to_end: dict[str, float] = {}  # workers that are to finish their runs, since when
        self._pids: set[int] = set()
        self.busy: set[str] = set()  # servers that something happens to
        self._count = workers
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.broker = stack.enter_context(new_server(persistent=True, options=_SAFE))
            self.store = stack.enter_context(new_server(persistent=True, options=_SAFE))
            self.workers = Workers(self.broker.url, self.journal, self.directory)
            stack.callback(self.workers.end)
            self.workers.conf = {**_SETTINGS, "throttle_url": self.store.url}
            self.app = self.workers.app(APP).app
            self.state = State(lambda: self.store.url)
            self.places = [self._place(stack, _OPTIONS.get(number, {})) for number in range(self._count)]
            self.guest = self._place(stack, {"concurrency": 2}, release=1)
            self.pools: dict[str, str] = {}  # of each worker that was started
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _place(self, stack: ExitStack, options: dict[str, Any], *, release: int = 0) -> Place:
        broker, store = (stack.enter_context(Relay(server.port)) for server in (self.broker, self.store))
        return Place({"concurrency": 4} | options, release, broker, store)

    @property
    def all_places(self) -> list[Place]:
        return [*self.places, self.guest]

    # -- workers ------------------------------------------------------------------------------------------------------

    def start(self, place: Place) -> None:
        """Start a worker there; it is `up` later."""
        env = {"BROKER_URL": place.broker.url, "RESULT_BACKEND": place.broker.url.removesuffix("/0") + "/1"}
        env["CHAOS_RELEASE"] = str(place.release)
        conf = {"throttle_url": place.store.url}
        place.worker = self.workers.start(APP, **place.options, env=env, conf=conf, wait=False)
        place.expected_end = False
        self.pools[place.node] = place.pool

    def start_again(self, place: Place) -> None:
        """Do so where a worker has to be all the time."""
        if place is not self.guest:
            self.start(place)

    @staticmethod
    def runs_at(place: Place) -> bool:
        """Whether a worker is there, ready or not."""
        return place.worker is not None and place.worker.running

    def kill(self, place: Place) -> None:
        """SIGKILL the worker."""
        assert place.worker
        place.expected_end = True
        self.note("killed", place)
        place.worker.kill()

    def tell(self, place: Place, how: str) -> None:
        """Tell the worker to end: ``term`` or ``quit``."""
        assert place.worker
        place.expected_end = True
        if how == "quit":
            self.note("killed", place)
            self.journal.killed(place.worker.children())
        else:
            self.told_to_end.setdefault(place.node, time.monotonic())
        getattr(place.worker, how)()

    def ended(self, place: Place) -> Iterator[float]:
        """Wait until the worker has ended, and kill the rest of it; for a mishap to yield from."""
        assert place.worker
        trouble = self.note("told to end", place)
        children = place.worker.children()
        deadline = time.monotonic() + _ENDS_WITHIN
        while place.worker.running and time.monotonic() < deadline:
            yield 0.1
        if place.worker.running:
            self.died.append((place.node, f"did not end within {_ENDS_WITHIN} s of being told to"))
            place.worker.cry()  # the verdict reads in its log the reason of the wait
            yield 0.5
            self.kill(place)
        while any(alive(child) for child in children):
            yield 0.05
        self.over(trouble)

    def watch(self) -> None:
        """Notice workers that ended by themselves, and start them again; and processes that are gone."""
        self._count_processes()
        for place in self.all_places:
            if place.worker and not place.worker.running and not place.expected_end:
                status = place.worker.process.returncode
                self.died.append((place.node, f"ended by itself at {time.monotonic():.3f} with status {status}"))
                self.note("killed", place)
                self.start(place)

    def _count_processes(self) -> None:
        for place in self.all_places:
            if place.worker and place.worker.running:
                self._pids.update((place.worker.pid, *place.worker.children()))
        # Also those that no mishap killed by name: by a time limit, or since they began as their worker was killed.
        if gone := [pid for pid in self._pids if not alive(pid)]:
            self.journal.killed(gone)
            self._pids.difference_update(gone)

    # -- troubles -----------------------------------------------------------------------------------------------------

    def note(self, what: str, place: Place | None = None) -> Trouble:
        """Note that something begins; say its end by `over`."""
        now = time.monotonic()
        trouble = Trouble(what, place.node if place else "", now, now)
        self.troubles.append(trouble)
        return trouble

    @staticmethod
    def over(trouble: Trouble) -> None:
        trouble.ended = time.monotonic()

    def server(self, name: str) -> EmbeddedServer:
        return self.broker if name == "broker" else self.store

    def holders_without_a_body(self) -> set[str]:
        """Return the tasks that hold permits and do not run."""
        try:
            held = self.state.holders
        except RedisError as error:
            return {repr(error)}
        return held & {run.task_id for run in self.journal.runs()} - {run.task_id for run in self.journal.running()}

    # -- the end ------------------------------------------------------------------------------------------------------

    def in_broker(self) -> dict[str, int]:
        """How many messages the broker has: waiting, and given out."""
        with Redis.from_url(self.broker.url, socket_timeout=5) as client:
            return {"queued": int(client.llen("celery")), "unacknowledged": int(client.hlen("unacked"))}

    def in_store(self) -> list[str]:
        """Return the keys of the store, except the counts, which end by themselves."""
        with Redis.from_url(self.store.url, socket_timeout=5) as client:
            return [key.decode() for key in client.scan_iter() if client.type(key) != b"string" or client.pttl(key) < 0]
