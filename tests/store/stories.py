"""Stories of the gate, a step at a time: what callers do, and the answer to each step.

A story is a title and its steps, which ``;`` and line ends part::

    a late end frees no other lock:
        start t1; arrive t2; lease_ends t1; look = t2 run
        end t1 slots=1 = -; lock = t2 running

A step has a verb (a method of the story), tasks, flags and options; after `` = `` comes its answer.
``peer: look`` is a step of another worker of the same queue, ``stranger: look`` of one with another queue,
``everywhere: look`` of one with both. A title may list words: its story is told with each of them in place of ``*``.
An answer may end with ``...``, and then its beginning counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from celery_throttle.core.facts import Facts, Message, Result
from tests.primitives.faults import StoreClock
from tests.store.caller import ENDS
from tests.store.hints import Hints
from tests.store.lock_caller import LockCaller
from tests.store.peek import KEY, be_away, change, check_empty, end_moment, expire, lapse, let_come_due, peek
from tests.store.steering import Steering

__all__ = ["FACTS", "RENEWED", "UNREADABLE", "Story", "read_stories", "stories"]

#: Ends of runs whose messages the broker has.
FACTS = {
    "at_broker": Facts(True, Message.BROKER, Result.SUCCESS),
    "never_began": Facts(began=False, message=Message.BROKER),
    #: The store has an outcome for a task whose message the broker had delivered before.
    "told_again": Facts(began=False, message=Message.BROKER, result=Result.FAILURE),
}
#: Records that no script can read, in a word each.
UNREADABLE = {
    "garbage": b"\x80 not json",
    "empty": b"",
    "list": b"[]",
    "number": b"7",
    "foreign": b'{"needs":"1:gpu","queue":"q"}',
    "older": b'{"v":3,"needs":"1:gpu"}',
}
RENEWED = ("lost", "renewed", "put back", "later")
FLAGS: dict[str, tuple[str, Any]] = {
    **{each: ("on_conflict", each) for each in ("return_existing", "raise", "skip", "replace", "keep_last")},
    "started": ("lock_until", "started"),
    "expires": ("lock_until", "expires"),
    **{each: ("how", each) for each in (*ENDS, *FACTS)},
    **{each: (each, True) for each in ("awaited", "alone", "before", "noted", "elsewhere", "unacked", "outside")},
}
NUMBERS = {
    "slots": int,
    "attempt": int,
    "wait_ms": int,
    "cost": int,
    "deadline": float,
    "pause": float,
    "age": float,
    "remember": float,
    "lock_ttl": float,
    "least": float,
}


def stories(*texts: str) -> list[Any]:
    """Return the stories of these texts, as parameters of a test."""
    return [pytest.param(steps, id=title) for text in texts for title, steps in read_stories(text)]


def read_stories(text: str) -> Iterator[tuple[str, str]]:
    """Yield the titles with their steps."""
    for title, words, steps in re.findall(r"^(\S[^:\[]*?)(?: \[(.*)\])?:\n((?: +.*\n|\n(?= ))+)", text, re.MULTILINE):
        for word in words.split(" | ") if words else [""]:
            yield f"{title} {word}".strip(), steps.replace("*", word)


class Story:
    """The callers of a store, and what has become of their tasks.

    Args:
        redis: the store.
        clock: returns its clock, for stories in which time passes.
    """

    def __init__(self, redis: Redis, clock: Callable[[], StoreClock]) -> None:
        self.redis, self._admin, self._clock = redis, redis, clock
        self._callers = {
            "worker": LockCaller(redis, "aaaaaaaa", "q"),
            "peer": LockCaller(redis, "bbbbbbbb", "q"),
            "stranger": LockCaller(redis, "cccccccc", "q2"),
            "everywhere": LockCaller(redis, "dddddddd", "q", "q2"),
        }
        self.by = self._callers["worker"]
        self._heard: Hints | None = None
        self._full = self._has_waited = False

    def tell(self, steps: str) -> None:
        try:
            for step in re.split(r";|\n", steps):
                if step.strip():
                    self.step(step.strip())
        finally:
            if self._heard:
                self._heard.close()
            if self._full:
                self.make_room()
            if self.redis is not self._admin:
                self.redis.close()
                self._admin.acl_deluser("mute")

    def step(self, step: str) -> str:
        """Take a step, and compare its answer; return the answer."""
        said, _, wanted = step.partition(" = ")
        name, _, rest = said.rpartition(": ")
        self.by = self._callers[name or "worker"]
        verb, *words = rest.split()
        tasks, options = [], {}
        for word in words:
            key, _, value = word.partition("=")
            if value:
                options[key] = NUMBERS[key](value) if key in NUMBERS else value
            elif word in FLAGS:
                options.update([FLAGS[word]])
            else:
                tasks.append(word)
        found, wanted = str(getattr(self, verb)(*tasks, **options)) or "-", wanted.strip()
        if wanted:
            begins = wanted.endswith("...") and found.startswith(wanted.removesuffix("..."))
            assert begins or found == wanted, f"{step}, but it is {found}"
        return found

    # -- operators ---------------------------------------------------------------------------------------------------

    def lend(self, *tasks: str) -> str:
        """An operator drains these: return the tasks whose messages are lent out."""
        return " ".join(each.task for each in Steering(self.redis).borrow(*tasks)[1])

    def drained(self, *tasks: str) -> int:
        """Report that they are in their queues again."""
        return Steering(self.redis).publish(*tasks)[1]

    def not_drained(self, *tasks: str) -> None:
        """Report that they could not be published."""
        Steering(self.redis).publish(others=tasks)

    # -- mishaps -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.redis.flushall()
        if self._has_waited:
            self.wait("0")

    def wait(self, seconds: str) -> None:
        """Let time pass."""
        self._has_waited = True
        self._clock().move(int(float(seconds) * 1_000_000))

    def fill(self) -> None:
        """The server is out of memory, and evicts nothing."""
        self._full = True
        self.redis.config_set("maxmemory-policy", "noeviction")
        self.redis.config_set("maxmemory", 1)

    def make_room(self) -> None:
        self._full = False
        self.redis.config_set("maxmemory", 0)

    def refused(self, verb: str, *tasks: str, **options: Any) -> None:
        """A full server refuses a step, and nothing of it is carried out."""
        before = peek(self.redis)
        with pytest.raises(OutOfMemoryError):
            getattr(self, verb)(*tasks, **options)
        after = peek(self.redis)
        assert (after.hashes, after.sets) == (before.hashes, before.sets)

    def mute(self) -> None:
        """From now on no client may publish hints."""
        user: dict[str, Any] = {"keys": ["*"], "categories": ["+@all"], "passwords": ["+secret"]}
        self._admin.acl_setuser("mute", enabled=True, reset_channels=True, **user)
        place = self._admin.connection_pool.connection_kwargs
        self.redis = Redis(host=place["host"], port=place["port"], username="mute", password="secret")
        for each in self._callers.values():
            each.client = self.redis

    def come_back(self) -> None:
        self.by.come_back()

    def rejoin(self) -> None:
        self.by.rejoin()

    def be_away(self) -> None:
        """The store was away for an hour, and all leases are over."""
        be_away(self.redis)

    def end_moment(self) -> None:
        """The moment is over that workers have for renewals after an outage."""
        end_moment(self.redis)

    def expire(self, *tasks: str) -> None:
        """The leases of these are over, and no call has noticed it."""
        expire(self.redis, *tasks)

    def lapse(self, entry: str) -> None:
        """The time of an entry of the store is over, such as ``records:t1``."""
        lapse(self.redis, entry)

    def come_due(self, kind: str, *names: str) -> None:
        """The time of all that is due, or of these."""
        let_come_due(self.redis, kind, *names)

    def spoil(self, task: str, how: str = "garbage") -> None:
        """Let its record be unreadable: one of `UNREADABLE`, or only its list of permits, or its second delivery."""
        if how in UNREADABLE:
            self.redis.hset(KEY["records"], task, UNREADABLE[how])
            return
        change(self.redis, "records", task, **{"needs": 7} if how == "needs" else {"second": {"needs": 7}})

    def reap(self, most: str = "100") -> str:
        return " ".join(task for task, _ in self.by.reap(int(most)))

    def withdraw(self, *tasks: str) -> str:
        return " ".join(each.message.decode() for each in self.by.withdraw(*tasks))

    # -- looking -----------------------------------------------------------------------------------------------------

    def workers(self) -> str:
        """Return the ids of the workers that the store has heard of."""
        return " ".join(sorted(peek(self.redis).hashes["workers"]))

    def empty(self) -> None:
        check_empty(peek(self.redis))

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

    def state(self, task: str) -> str:
        """Return the state of a task as an operator sees it."""
        return Steering(self.redis).explain(task).state

    def place(self, task: str) -> int | None:
        return Steering(self.redis).explain(task).place

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

    def waiting(self) -> str:
        """Return how many tasks are counted as parked, for each limit."""
        counts = peek(self.redis).hashes["waiting"]
        return " ".join(f"{limit} {count.decode()}" for limit, count in sorted(counts.items()))

    def used(self) -> str:
        return " ".join(f"{limit} {held}" for limit, held in peek(self.redis).used.items())

    def held(self) -> str:
        return " ".join(sorted(peek(self.redis).leases))

    def listed(self) -> str:
        """Return the parked tasks as an operator sees them, readable or not."""
        return " ".join(each.task_id for each in Steering(self.redis).parked())

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
