"""Stories of the gate, a step at a time: what callers do, and the answer to each step.

A story is a title and its steps, which ``;`` and line ends part::

    a late end frees no other lock:
        start t1; arrive t2; lease_ends t1; look = t2 run
        end t1 slots=1 = -; lock = t2 running

A step has a verb (a method of the story), tasks, flags and options; after `` = `` comes its answer.
``peer: look`` is a step of another worker of the same queue, ``stranger: look`` of one with another queue. A title may
list words: its story is told with each of them in place of ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from tests.primitives.faults import StoreClock
from tests.store.caller import ENDS
from tests.store.lock_caller import LockCaller
from tests.store.peek import peek

__all__ = ["FACTS", "RENEWED", "Story", "read_stories"]

#: Ends of runs whose messages the broker has.
FACTS = {
    "at_broker": Facts(True, Message.BROKER, Result.SUCCESS),
    "never_began": Facts(began=False, message=Message.BROKER),
}
RENEWED = ("lost", "renewed", "put back", "later")
FLAGS: dict[str, tuple[str, Any]] = {
    **{each: ("on_conflict", each) for each in ("return_existing", "raise", "skip", "replace", "keep_last")},
    "started": ("lock_until", "started"),
    "expires": ("lock_until", "expires"),
    **{each: ("how", each) for each in (*ENDS, *FACTS)},
    **{each: (each, True) for each in ("awaited", "alone", "before", "noted", "elsewhere", "unacked")},
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
        self.redis, self._clock = redis, clock
        self._callers = {
            "worker": LockCaller(redis, "aaaaaaaa", "q"),
            "peer": LockCaller(redis, "bbbbbbbb", "q"),
            "stranger": LockCaller(redis, "cccccccc", "q2"),
        }
        self.by = self._callers["worker"]

    def tell(self, steps: str) -> None:
        for step in re.split(r";|\n", steps):
            if step.strip():
                self._step(step.strip())

    def _step(self, step: str) -> None:
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
        answer = getattr(self, verb)(*tasks, **options)
        if wanted:
            found = str(answer) or "-"
            assert found == wanted.strip(), f"{step}, but it is {found}"

    # -- mishaps -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.redis.flushall()

    def wait(self, seconds: str) -> None:
        """Let time pass."""
        self._clock().move(int(float(seconds) * 1_000_000))

    def reap(self, most: str = "100") -> str:
        return " ".join(task for task, _ in self.by.reap(int(most)))

    def withdraw(self, *tasks: str) -> str:
        return " ".join(each.message.decode() for each in self.by.withdraw(*tasks))

    # -- looking -----------------------------------------------------------------------------------------------------

    def used(self) -> str:
        return " ".join(f"{limit} {held}" for limit, held in peek(self.redis).used.items())

    def held(self) -> str:
        return " ".join(sorted(peek(self.redis).leases))

    def parked(self) -> str:
        return " ".join(sorted(peek(self.redis).parked))

    def records(self) -> str:
        return " ".join(sorted(peek(self.redis).records))

    def messages(self) -> str:
        return " ".join(sorted(each.decode() for each in peek(self.redis).messages.values()))

    def seconds(self) -> str:
        """Return the deliveries that wait for a run of their own task to end."""
        found = peek(self.redis).seconds
        return " ".join(f"{task}#{each.attempt}" if each.attempt else task for task, each in found.items())
