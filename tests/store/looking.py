"""Verbs of stories that look at the store, or at the last reply: see `tests.store.stories`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis import Redis

from celery_throttle.store.calls import CLAIMED_FOR
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Grant, SavedAnswer
from celery_throttle.store.parked_tasks import read_firsts, read_oldest
from tests.primitives.faults import StoreClock
from tests.store.hints import Hints
from tests.store.lock_caller import LockCaller, token_of
from tests.store.peek import check_empty, peek
from tests.store.steering import Steering
from tests.store.terms_caller import lines, used

__all__ = ["Looking"]

MOMENT_MS = 4000


class Looking:
    """What can be seen of a store."""

    def __init__(self, redis: Redis, request: pytest.FixtureRequest) -> None:
        self.redis, self._request = redis, request
        self._callers: dict[str, LockCaller] = {}
        self.by: LockCaller
        self._heard: Hints | None = None
        self._marked: object = None
        self.reply: Any = None
        self.newest: dict[str, Arrival | Grant] = {}

    def _clock(self) -> StoreClock:
        clock: StoreClock = self._request.getfixturevalue("clock")
        return clock

    # -- the last reply ----------------------------------------------------------------------------------------------

    def told(self, least: str, most: str) -> None:
        """Check the time to the next look: between these (ms)."""
        assert float(least) <= self.reply.wait * 1000 <= float(most), self.reply.wait

    def withdrawn(self) -> str:
        """Return the messages that it has."""
        return " ".join(each.message.decode() for each in self.reply.withdrawn)

    def more(self) -> bool:
        """Return whether it asks for another look."""
        return bool(self.reply.more)

    def hinted(self) -> bool:
        """Return whether the call could publish its hints."""
        return bool(self.reply.hints)

    def open(self) -> str:
        """Return the limits without a line."""
        return " ".join(self.reply.open)

    def closed(self) -> str:
        """Return the limits with a line."""
        return " ".join(self.reply.closed)

    # -- hints -------------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Listen for hints from now on."""
        self._heard = Hints(self.redis)

    def hints(self) -> str:
        """Return the hints since the last time."""
        assert self._heard
        return ", ".join(self._heard.take())

    def ready(self) -> str:
        """Return the queues whose workers were sent a hint that they can start something."""
        assert self._heard
        return " ".join(self._heard.ready())

    # -- what is stored ----------------------------------------------------------------------------------------------

    def stored(self, name: str) -> str:
        """Return the names of the entries of a hash, readable or not."""
        return " ".join(sorted(peek(self.redis).hashes[name])).translate({0: " ", 0x1E: "/", 0x1F: "/"}).strip()

    def empty(self) -> None:
        """No task has left anything."""
        check_empty(peek(self.redis))

    def mark(self) -> None:
        """Remember when the lock ends, and the bookings of rates."""
        store = peek(self.redis)
        self._marked = store.lock_ends(), store.hashes["rates"]

    def as_marked(self) -> None:
        marked = self._marked
        self.mark()
        assert self._marked == marked

    def used(self) -> str:
        return ", ".join(f"{name} {held}" for name, held in sorted(used(self.redis).items()))

    def held(self) -> str:
        return " ".join(sorted(peek(self.redis).leases))

    def leases(self) -> str:
        """Return for how long each lease lasts: ``over``, ``a moment`` or ``long``."""
        store = peek(self.redis)
        left = {task: till - store.now for task, till in sorted(store.leases.items())}
        return ", ".join(
            f"{task} {'over' if ms <= 0 else 'long' if ms > MOMENT_MS else 'a moment'}" for task, ms in left.items()
        )

    def parked(self) -> str:
        return " ".join(sorted(peek(self.redis).parked))

    def records(self) -> str:
        return " ".join(sorted(peek(self.redis).records))

    def messages(self) -> str:
        return " ".join(sorted(each.decode() for each in peek(self.redis).messages.values()))

    def second_messages(self) -> str:
        return " ".join(each.decode() for each in peek(self.redis).second_messages.values())

    def seconds(self) -> str:
        """Return the deliveries that wait for a run of their own task to end."""
        found = peek(self.redis).seconds
        return " ".join(f"{task}#{each.attempt}" if each.attempt else task for task, each in found.items())

    def finished(self) -> str:
        """Return the attempts that are on record as having run: the broker may deliver their messages again."""
        return ", ".join(sorted(peek(self.redis).finished))

    def lines(self) -> str:
        return ", ".join(f"{name} {' '.join(tasks)}" for name, tasks in sorted(lines(self.redis).items()) if name)

    def waiting(self) -> str:
        """Return how many tasks are counted as parked, for each limit."""
        counts = peek(self.redis).hashes["waiting"]
        return " ".join(f"{limit} {count.decode()}" for limit, count in sorted(counts.items()))

    def meta(self, name: str) -> str:
        return peek(self.redis).meta[name]

    def settling(self) -> bool:
        """Return whether the store waits for holders to put themselves back."""
        return "settling" in peek(self.redis).meta

    def turns(self) -> str:
        """Return the limits, and the keys of each, whose turns are stored for a while longer."""
        store, soon = peek(self.redis), self._clock().now / 1000 + MOMENT_MS
        assert all(store.sets["ends"][f"turns:{each}"] > soon for each in store.hashes["turns"])
        return self.stored("turns")

    def due(self, kind: str) -> str:
        """Return the tasks whose time to wait is limited, or the buckets that are looked at again at some time."""
        return " ".join(sorted(peek(self.redis).due(kind)))

    def offered(self) -> str:
        return " ".join(sorted(each.replace("\0", " ") for each in peek(self.redis).offered))

    def passed(self) -> str:
        return " ".join(sorted(each.replace("\0", " ") for each in peek(self.redis).passed))

    def moves(self, task: str) -> int:
        return int(peek(self.redis).records[task].raw["moves"])

    def saved(self, *tasks: str) -> str:
        """Return whether the store has the messages that were parked."""
        return " ".join(SavedAnswer(each).name.lower() for each in self.by.saved(*tasks))

    def runs_of(self, task: str) -> str:
        """Return the worker whose run of this task holds its permit."""
        return self._workers({peek(self.redis).records[task].nonce})

    def unacked_of(self, task: str) -> str:
        """Return the workers whose delivery of this task is not acknowledged."""
        return self._workers(peek(self.redis).records[task].unacked)

    def _workers(self, nonces: set[str]) -> str:
        return " ".join(name for name, each in self._callers.items() if any(n.startswith(each.name) for n in nonces))

    def deliveries(self, task: str) -> int:
        """Return how often it was started before, by the last reply."""
        (grant,) = (each for each in self.reply.grants if each.task == task)
        assert isinstance(grant, Grant)
        return grant.deliveries

    # -- identity locks ----------------------------------------------------------------------------------------------

    def lock(self, identity: str = "same") -> str:
        found = self.by.locked(identity)
        if found and found.state == "running" and found.task_id in self.newest:
            assert found.fencing_token == token_of(self.newest[found.task_id])
        return f"{found.task_id} {found.state}" if found else ""

    def lock_awaited(self) -> int:
        """Return how many calls ask for the outcome of its holder."""
        found = peek(self.redis).live_lock()
        assert found
        return int(found["awaited"])

    def lasts_hours(self, hours: str) -> None:
        found = self.by.locked()
        assert found
        assert found.expires_in > (float(hours) - 1) * 3600

    def lasts(self) -> str:
        """Return for how long the lock lasts: ``seconds`` or ``long``."""
        found = self.by.locked()
        assert found
        return "seconds" if found.expires_in <= CLAIMED_FOR else "long"

    def next(self) -> str:
        found = self.by.locked()
        assert found
        return found.next_id or ""

    def verdict(self, task: str) -> str:
        return peek(self.redis).records[task].verdict

    def awaited(self) -> str:
        return " ".join(map(str, peek(self.redis).awaited))

    # -- what an operator sees ---------------------------------------------------------------------------------------

    def state(self, task: str) -> str:
        return Steering(self.redis).explain(task).state

    def place(self, task: str) -> int | None:
        return Steering(self.redis).explain(task).place

    def limit_of(self, task: str) -> str | None:
        """Return the limit in whose line it waits, which is in the list of parked tasks, too."""
        found = Steering(self.redis).explain(task).limit
        assert found in [each.limit for each in Steering(self.redis).parked() if each.task_id == task]
        return found

    def why(self, task: str, number: str = "1") -> str:
        """Return a reason why a task waits, by its number; each time is ``TIME``, a very long one ``LONG``."""
        reasons = Steering(self.redis).explain(task).reasons
        reason = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", reasons[int(number) - 1])
        return re.sub(r"\d{7,}", "LONG", reason)

    def aside(self) -> str:
        """Return the tasks whose unreadable records are set aside."""
        return " ".join(sorted(each.task_id for each in Steering(self.redis).aside()))

    def why_aside(self) -> str:
        (aside,) = Steering(self.redis).aside()
        return f"{aside.task_id}: {aside.why}"

    def listed(self) -> str:
        """Return the parked tasks, readable or not."""
        return " ".join(each.task_id for each in Steering(self.redis).parked())

    def audited(self) -> int:
        """Return how many changes are in the audit."""
        return len(Steering(self.redis).audit())

    def parked_by_limit(self, limit: str = "") -> str:
        """Return the parked tasks that need a permit of the limit, in order, each with what it waits for."""
        return ", ".join(f"{each.task} {each.what}" for each in sorted(Steering(self.redis).parked_ids(limit)))

    def firsts(self, *buckets: str) -> str:
        """Return the first parked task of each of these lines."""
        steering = Steering(self.redis)
        found = read_firsts(steering.ask(steering.store.firsts([each.replace("/", "\x1f") for each in buckets])))
        return ", ".join(str(each and each.task_id) for each in found)

    def oldest(self, *limits: str) -> str:
        """Return the line of the parked task of each limit that waits for longest, and the task."""
        steering = Steering(self.redis)
        found = read_oldest(steering.ask(steering.store.oldest(limits)))
        texts = [f"{each.bucket.text} {each.first.task_id}" if each else "None" for each in found]
        return ", ".join(texts).replace("\x1f", "/")

    def bars(self) -> str:
        """Return the limits with an override, each with the task that goes first there."""
        limits = sorted(peek(self.redis).hashes["overrides"])
        return ", ".join(f"{each} {Steering(self.redis).stands(each).barred_by}" for each in limits)

    def in_force(self, limit: str) -> str:
        """Return the permits that hold now."""
        return str(Steering(self.redis).stands(limit.replace("/", "\x1f")).in_force)

    def next_start(self, limit: str) -> str:
        """Return the seconds until its rate allows the next start."""
        return f"{Steering(self.redis).stands(limit.replace('/', chr(31))).next_start_in:g}"
