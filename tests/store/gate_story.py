"""Stories of permits and messages: see `tests.store.stories`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.core.sites import Sites
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Grant, Reply, SavedAnswer
from celery_throttle.store.scripts import execute
from tests.primitives.faults import StoreClock
from tests.store.caller import ENDS, ended, held_by, message_of, passed
from tests.store.lock_caller import LockCaller
from tests.store.peek import KEY, change, expire, pass_over, peek
from tests.store.steering import Steering
from tests.store.stories import FACTS, RENEWED, Story
from tests.store.terms_caller import lines, nothing_left, terms, used

__all__ = ["GateStory"]

MOMENT_MS = 4000
#: Workers on sites, and the tags of each.
SITES = {
    "a7": {"host": "a7", "red": "r1", "blue": "b1"},
    "a7b": {"host": "a7"},
    "a8": {"host": "a8"},
    "box": {"host": "a9", "gpu_box": "b1"},
}
#: A limit: name, kind of its sites, key, permits, how many may wait, rate, burst, the value by which it takes turns.
LIMIT = re.compile(r"(\w+)(?:/(\w+))?(?:\[(\w+)\])?(?::(\d+))?(?:<(\d+))?(?:@([\w/,]+))?(?:\^([\d,]+))?(?:~(\w))?")


def limits_of(on: str) -> list[Limit]:
    """Return limits in the words of a story: ``api:3+tenant[a]:2`` is one of three, and one of two for each key.

    ``crowd:1<2``: two may wait. ``mail@20/s^2``: a rate with a burst of two, also beside permits. ``mail@1/s,9/d^1,3``:
    two rates. ``api:1~a``: tasks take turns, and this one is of ``a``. ``gpu/host:2``: each host has two.
    """
    return [limit for limit, _, _ in _parts(on)]


def needs_of(on: str, cost: int = 1, deadline: float | None = None) -> Needs:
    """Return what a task needs of these limits, with the key ``a`` of ``tenant[a]``; see `limits_of`."""
    parts = list(_parts(on))
    policy = terms(*(limit for limit, _, _ in parts), cost=cost, start_deadline=deadline)
    keys = {limit.name: key for limit, key, _ in parts if key}
    turns = [[who, limit.step(who)] for limit, _, who in parts if who]
    return policy.needs({"keys": keys} | ({"fair": turns[0]} if turns else {}))


def _parts(on: str) -> Iterator[tuple[Limit, str | None, str | None]]:
    for each in on.split("+"):
        found = LIMIT.fullmatch(each)
        assert found, each
        name, per, key, permits, waiting, rate, burst, who = found.groups()
        options: dict[str, Any] = {"rate": rate.split(",")} if rate else {}
        options |= {"per": per} if per else {}
        options |= {"burst": [int(each) for each in burst.split(",")]} if burst else {}
        options |= {"max_parked": int(waiting)} if waiting else {}
        options |= {"fair_by": "who"} if who else {}
        yield Limit(name, int(permits) if permits else None, key="key" if key else None, **options), key, who


def _named(answers: Sequence[int]) -> str:
    return " ".join(Answer(each).name.lower() for each in answers)


class GateStory(Story):
    """A story of permits and messages; every task takes one permit of ``gpu``, the only one, unless ``on`` differs
    (`needs_of`).

    Tasks that a call starts are shown by their ids, ``task#1`` if it is another attempt. A caller ends the run that it
    has of a task, and each grant brings the message with which its task was parked.
    """

    def __init__(self, redis: Redis, clock: Callable[[], StoreClock]) -> None:
        super().__init__(redis, clock)
        for name, tags in SITES.items():
            self._callers[name] = LockCaller(redis, f"worker-{name}", "q", sites=Sites({"worker": name, **tags}))
        self.runs: dict[tuple[str, str], Arrival | Grant] = {}
        self.noted = 0
        self.marked: dict[str, bytes] = {}
        self.reply: Any = None

    def _shown(self, reply: Reply, answer: str = "") -> str:
        self.reply = reply
        assert len({each.nonce for each in reply.grants}) == len(reply.grants), "each run has a nonce of its own"
        for each in reply.grants:
            self.runs[self.by.name, each.task] = each
            assert each.message in {message_of(each.task, each.attempt), b"again"}
        started = [
            f"{each.task}{f'#{each.attempt}' * bool(each.attempt)}{' expired' * each.expired}" for each in reply.grants
        ]
        return ", ".join([answer, *started] if answer else started)

    def _run(self, task: str) -> Arrival | Grant:
        return self.runs[self.by.name, task]

    def ask(self, *tasks: str, on: str = "gpu:1", attempt: int = 0, slots: int = 0, **terms: Any) -> str:
        """Ask for permits with one call; return the answers, and the tasks that start."""
        arrivals = [self.by.arrival(task, needs_of(on, **terms), attempt=attempt) for task in tasks]
        reply = self.by.exchange(slots, asked=arrivals)
        for arrival, answer in zip(arrivals, reply.asked, strict=True):
            if answer == Answer.GRANTED:
                self.runs[self.by.name, arrival.task] = arrival
        return self._shown(reply, _named(reply.asked))

    def take(self, *tasks: str, on: str = "gpu:1", attempt: int = 0, **terms: Any) -> None:
        """Ask for permits that must be free."""
        for task in tasks:
            self.runs[self.by.name, task] = self.by.take(task, needs_of(on, **terms), attempt=attempt)

    def park(
        self, *tasks: str, on: str = "gpu:1", slots: int = 0, cost: int = 1, deadline: float | None = None, **parts: Any
    ) -> str:
        """Set tasks aside without asking; return what is wrong with the last, and the tasks that start."""
        for task in tasks:
            self.reply = self.by.put(task, needs_of(on, cost, deadline), slots=slots, **parts)
        answer = _named(self.reply.parked)
        return self._shown(self.reply, answer if answer != "parked" else "")

    def arrive(self, *tasks: str, **how: Any) -> str:
        """Ask, and set those aside that are refused; return those that got their permits."""
        got = []
        for task in tasks:
            if self.ask(task, **how) == "granted":
                got.append(task)
            else:
                self.park(task, **how)
        return " ".join(got)

    def look(self, *, slots: int = 1) -> str:
        return self._shown(self.by.look(slots))

    def told(self, least: str, most: str) -> None:
        """Check the time to the next look that the last reply has: between these (ms)."""
        assert float(least) <= self.reply.wait * 1000 <= float(most), self.reply.wait

    def serve(self, count: str) -> str:
        """Run one task after the other; return the first letters of those that start, sorted: the order varies."""
        order = []
        for _ in range(int(count)):
            *_, run = self.runs.values()
            (grant,) = self.by.release(run, slots=1).grants
            self.runs.pop((self.by.name, run.task))
            self.runs[self.by.name, grant.task] = grant
            order.append(grant.task[0])
        return "".join(sorted(order))

    def look_when_told(self, least: str, most: str) -> str:
        """Look when the last reply has it; see `told`."""
        self.told(least, most)
        self.wait(str(self.reply.wait))
        return self.look(slots=1)

    def end(self, *tasks: str, how: str = "done", slots: int = 0) -> str:
        """End these with one call."""
        return self._shown(
            self.by.exchange(slots, ended=[ended(self._run(task), FACTS.get(how, how)) for task in tasks])
        )

    def end_and_park(self, task: str, other: str, *, on: str = "gpu:1") -> str:
        """End a run and set a task aside with one call."""
        parcel = self.by.parcel(other, needs_of(on))
        return self._shown(self.by.exchange(ended=[ended(self._run(task))], parked=[parcel]))

    def pass_on(self, task: str, to: str, *, on: str = "gpu:1", how: str = "done", attempt: int = 0) -> str:
        """A run has ended, and the one that began in its place in this worker has its permit."""
        run, arrival = self._run(task), self.by.arrival(to, needs_of(on), attempt=attempt)
        self.runs[self.by.name, to] = arrival
        row = passed(task, run.nonce, ENDS[how].result, arrival, run.attempt)
        return self._shown(self.by.exchange(passed=[row]))

    def end_twice(self, task: str) -> None:
        """By one call that has the row twice."""
        self.by.exchange(ended=[ended(self._run(task))] * 2)

    def send_back(self, task: str, *, pause: float = 0.0, about: str | None = None) -> None:
        """After a "slow down", about all limits or about one."""
        run = self._run(task)
        self.reply = self.by.send_back(
            held_by(run) if isinstance(run, Grant) else run, pause, about and "1:" + about.replace("/", "\x1f")
        )

    def began(self, task: str, *, elsewhere: bool = False) -> None:
        """It runs; ``elsewhere``: the report is about another delivery."""
        self.by.exchange(began=[(task, "aaaaaaaa:ff" if elsewhere else self._run(task).nonce)])

    def unacked(self, *tasks: str) -> None:
        """The message could not be acknowledged at the broker."""
        self.by.exchange(unacked=self.by.parcelled(*tasks))

    def acked(self, *tasks: str) -> None:
        self.by.exchange(acked=self.by.parcelled(*tasks))

    def saved(self, *tasks: str) -> str:
        """Return whether the store has the messages that were parked."""
        return " ".join(SavedAnswer(each).name.lower() for each in self.by.saved(*tasks))

    def again(self) -> str:
        """The last call once more, as after a lost reply."""
        reply = self.by.again()
        return self._shown(reply, _named((*reply.asked, *reply.parked)))

    def leave(self) -> None:
        self.by.leave()

    def note(self) -> None:
        """Put a renewal together now."""
        self.noted = self.by.number

    def renew(self, task: str, *, noted: bool = False) -> str:
        run = self._run(task)
        return RENEWED[self.by.renew(run, number=self.noted if noted else None)[0]]

    def say(self, limit: str, name: str, value: str = "1", *, until: str = "0") -> int:
        """An operator overrides a limit, ``until`` so many ms from now: the permits, or a rate such as ``10/m^5``."""
        if "/" in value:
            rates = limits_of(f"any@{value}")[0].rates
            value = json.dumps({"rates": [[rate.count, rate.period, burst] for rate, burst in rates]})
        return Steering(self.redis).say(limit.replace("/", "\x1f"), name, value, until=until)

    def unsay(self, limit: str, name: str) -> int:
        return Steering(self.redis).unsay(limit.replace("/", "\x1f"), name)

    def drop(self, limit: str, *tasks: str) -> int:
        return Steering(self.redis).drop(limit.replace("/", "\x1f"), *tasks)

    def declare(self) -> None:
        """Declare the limits of this caller again."""
        execute(self.redis, self.by.store.declare("", self.by.declared.items()))

    def deploy(self, on: str) -> None:
        """Declare these limits anew."""
        self.by.declare(*limits_of(on))

    def permits(self, limit: str, number: str) -> None:
        """Declare another number of permits."""
        self.by.declare(Limit(limit, int(number)))

    # -- mishaps -----------------------------------------------------------------------------------------------------

    def pass_over(self, limit: str, queue: str) -> None:
        """The moment of a queue for its turn is over."""
        pass_over(self.redis, limit, queue)

    def lose(self, task: str) -> None:
        """Its lease is over, and this caller notices it."""
        expire(self.redis, task)
        self.by.look(0)

    def moved(self, task: str, times: str) -> None:
        """It has gone from one line of its limits to another so often."""
        change(self.redis, "records", task, moves=int(times))

    def bar(self, task: str, *limits: str) -> None:
        """It goes first on these."""
        ticket = peek(self.redis).records[task].ticket
        for limit in limits:
            change(self.redis, "overrides", limit.replace("/", "\x1f"), bar=[ticket, 9e12, "", task, 1])
            self.redis.zadd(KEY["ends"], {f"overrides:{limit}".replace("/", "\x1f"): 9e12})

    # -- looking -----------------------------------------------------------------------------------------------------

    def finished(self) -> str:
        """Return the attempts that are on record as having run: the broker may deliver their messages again."""
        return ", ".join(sorted(peek(self.redis).finished))

    def line(self, limit: str = "gpu") -> str:
        return " ".join(lines(self.redis).get(limit, ()))

    def lines(self) -> str:
        return ", ".join(f"{name} {' '.join(tasks)}" for name, tasks in sorted(lines(self.redis).items()) if name)

    def used(self) -> str:
        return ", ".join(f"{name} {held}" for name, held in sorted(used(self.redis).items()))

    def overrides(self) -> str:
        return " ".join(sorted(peek(self.redis).hashes["overrides"])).replace("\x1f", "/")

    def bars(self) -> str:
        """Return the limits with an override, each with the task that goes first there."""
        limits = sorted(peek(self.redis).hashes["overrides"])
        return ", ".join(f"{each} {Steering(self.redis).stands(each).barred_by}" for each in limits)

    def settling(self) -> bool:
        """Return whether the store waits for holders to put themselves back."""
        return "settling" in peek(self.redis).meta

    def moves(self, task: str) -> int:
        return int(peek(self.redis).records[task].raw["moves"])

    def turns(self) -> str:
        """Return the limits, and the keys of each, whose turns are stored for a while longer."""
        store, soon = peek(self.redis), self._clock().now / 1000 + MOMENT_MS
        assert all(store.sets["ends"][f"turns:{each}"] > soon for each in store.hashes["turns"])
        return " ".join(sorted(store.hashes["turns"])).replace("\x1e", "/")

    def declared(self) -> str:
        return " ".join(sorted(peek(self.redis).hashes["limits"]))

    def due(self) -> str:
        """Return the tasks whose time to wait is limited."""
        return " ".join(sorted(peek(self.redis).due("task")))

    def full_until(self) -> str:
        """Return the limits and keys that are looked at again at some time."""
        return " ".join(sorted(peek(self.redis).due("bucket")))

    def next_start(self, limit: str) -> str:
        """Return the seconds until its rate allows the next start."""
        return f"{Steering(self.redis).stands(limit.replace('/', chr(31))).next_start_in:g}"

    def booked(self) -> str:
        """Return the limits and keys whose rates have bookings."""
        return " ".join(sorted(peek(self.redis).hashes["rates"]))

    def mark_bookings(self) -> None:
        self.marked = peek(self.redis).hashes["rates"]

    def bookings_as_marked(self) -> None:
        assert peek(self.redis).hashes["rates"] == self.marked

    def in_force(self, limit: str) -> str:
        """Return the permits that hold now."""
        return str(Steering(self.redis).stands(limit.replace("/", "\x1f")).in_force)

    def offered(self) -> str:
        return " ".join(sorted(each.replace("\0", " ") for each in peek(self.redis).offered))

    def passed(self) -> str:
        return " ".join(sorted(each.replace("\0", " ") for each in peek(self.redis).passed))

    def left(self) -> str:
        """Return whether anything is left that the tasks had."""
        return "nothing" if nothing_left(self.redis) else "something"

    def leases(self) -> str:
        """Return for how long each lease lasts: ``over``, ``a moment`` or ``long``."""
        store = peek(self.redis)
        left = {task: till - store.now for task, till in sorted(store.leases.items())}
        return ", ".join(
            f"{task} {'over' if ms <= 0 else 'long' if ms > MOMENT_MS else 'a moment'}" for task, ms in left.items()
        )

    def more(self) -> bool:
        """Return whether the last reply asks for another look."""
        return bool(self.reply.more)

    def hinted(self) -> bool:
        """Return whether the last call could publish its hints."""
        return bool(self.reply.hints)

    def open(self) -> str:
        """Return the limits without a line, by the last reply."""
        return " ".join(self.reply.open)

    def closed(self) -> str:
        """Return the limits with a line, by the last reply."""
        return " ".join(self.reply.closed)

    def runs_of(self, task: str) -> str:
        """Return the worker whose run of this task holds its permit."""
        nonce = peek(self.redis).records[task].nonce
        return next(name for name, each in self._callers.items() if nonce.startswith(each.name))

    def unacked_of(self, task: str) -> str:
        """Return the workers whose delivery of this task is not acknowledged."""
        nonces = peek(self.redis).records[task].unacked
        return " ".join(name for name, each in self._callers.items() if any(n.startswith(each.name) for n in nonces))

    def deliveries(self, task: str) -> int:
        run = self._run(task)
        assert isinstance(run, Grant)
        return run.deliveries

    def nothing(self) -> None:
        """No task has left anything."""
        store = peek(self.redis)
        assert (store.records, store.seconds, store.messages, store.ran, store.used) == ({}, {}, {}, {}, {})
