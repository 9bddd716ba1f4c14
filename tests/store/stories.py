"""Stories of the gate, a step at a time: what callers do, and the answer to each step.

A story is a title and its steps, which ``;`` and line ends part::

    a late end frees no other lock:
        take t1; arrive t2; lease_ends t1; look = t2 run
        end t1 slots=1 = -; lock = t2 running

A step has a verb (a method of the story), tasks, flags and options; after `` = `` comes its answer.
``peer: look`` is a step of another worker of the same queue, ``stranger: look`` of one with another queue,
``everywhere: look`` of one with both. A title may list words: its story is told with each of them in place of ``*``.
An answer may end with ``...``, and then its beginning counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from celery_throttle.core.dedup import LockPlan
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import NOTHING, Needs
from celery_throttle.core.sites import Sites
from celery_throttle.store import identity_locks
from celery_throttle.store.exchange import Arrival, Delivery
from celery_throttle.store.exchange_reply import Answer, Grant
from tests.store.caller import ENDS, Rows, ended, held_by, message_of, passed
from tests.store.lock_caller import LockCaller, Started, end_lease, end_lock, granted, plan_of, token_of
from tests.store.looking import Looking
from tests.store.peek import KEY, be_away, change, end_moment, expire, lapse, let_come_due, pass_over, peek
from tests.store.steering import Steering
from tests.store.terms_caller import terms

__all__ = ["UNREADABLE", "Story", "read_stories", "stories"]

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
CLAIMS = {
    identity_locks.CLAIMED: "claimed",
    identity_locks.TAKEN: "taken",
    identity_locks.OURS: "ours",
    identity_locks.REPLACED: "replaces",
    identity_locks.LOST: "lost",
}
#: Workers on sites, and the tags of each. Those with a z serve ``q2``, the others ``q``.
SITES = {
    "a7": {"host": "a7", "red": "r1", "blue": "b1"},
    "a7b": {"host": "a7"},
    "a8": {"host": "a8"},
    "z7": {"host": "a7"},
    "z8": {"host": "a8"},
    "box": {"host": "a9", "gpu_box": "b1"},
}
#: Options of a task for its identity lock.
PLAN = ("on_conflict", "lock_until", "remember", "lock_ttl")
FLAGS: dict[str, tuple[str, Any]] = {
    **{each: ("on_conflict", each) for each in ("return_existing", "raise", "skip", "replace", "keep_last")},
    **{each: ("lock_until", each) for each in ("started", "expires")},
    **{each: ("how", each) for each in (*ENDS, *FACTS)},
    **{each: (each, True) for each in ("awaited", "before", "noted", "elsewhere", "unacked", "outside", "unconfirmed")},
}
NUMBERS = {
    **dict.fromkeys(("slots", "attempt", "wait_ms", "expires_ms", "cost", "unread"), int),
    **dict.fromkeys(("deadline", "pause", "age", "remember", "lock_ttl", "least", "clock"), float),
}
#: A limit: name, kind of its sites, key, permits, how many may wait, rate, burst, the value by which it takes turns.
LIMIT = re.compile(r"(\w+)(?:/(\w+))?(?:\[(\w+)\])?(?::(\d+))?(?:<(\d+))?(?:@([\w/,]+))?(?:\^([\d,]+))?(?:~(\w?))?")


def stories(*texts: str) -> list[Any]:
    """Return the stories of these texts, as parameters of a test."""
    return [pytest.param(steps, id=title) for text in texts for title, steps in read_stories(text)]


def read_stories(text: str) -> Iterator[tuple[str, str]]:
    """Yield the titles with their steps."""
    for title, words, steps in re.findall(r"^(\S[^:\[]*?)(?: \[(.*)\])?:\n((?: +.*\n|\n(?= ))+)", text, re.MULTILINE):
        for word in words.split(" | ") if words else [""]:
            yield f"{title} {word}".strip(), steps.replace("*", word)


def limits_of(on: str) -> list[Limit]:
    """Return limits in the words of a story: ``api:3+tenant[a]:2`` is one of three, and one of two for each key.

    ``gpu``: one permit. ``crowd<2``: two may wait. ``mail@20/s^2``: a rate with a burst of two, also beside permits.
    ``mail@1/s,9/d^1,3``: two rates. ``api~a``: tasks take turns, and this one is of ``a``; ``api~``: it brings no turn.
    ``gpu/host:2``: each host has two.
    """
    return [limit for limit, _, _ in _parts(on)]


def needs_of(on: str, cost: int = 1, deadline: float | None = None) -> Needs:
    """Return what a task needs of these limits, with the key ``a`` of ``tenant[a]``; see `limits_of`."""
    parts = list(_parts(on)) if on else []
    if not parts:
        return NOTHING
    policy = terms(*(limit for limit, _, _ in parts), cost=cost, start_deadline=deadline)
    keys = {limit.name: key for limit, key, _ in parts if key}
    turns = [[who, limit.step(who)] for limit, _, who in parts if who is not None]
    needs = policy.needs({"keys": keys, "fair": turns[0]} if turns else {"keys": keys})
    return needs if all(who for who, _ in turns) else replace(needs, turn=None)


def _parts(on: str) -> Iterator[tuple[Limit, str | None, str | None]]:
    for each in on.split("+"):
        found = LIMIT.fullmatch(each)
        assert found, each
        name, per, key, permits, waiting, rate, burst, who = found.groups()
        options: dict[str, Any] = {
            "rate": rate and rate.split(","),
            "per": per,
            "key": key and "key",
            "burst": [int(each) for each in burst.split(",")] if burst else 1,
            "max_parked": int(waiting) if waiting else None,
            "fair_by": None if who is None else "who",
        }
        yield Limit(name, int(permits or 1) if permits or not rate else None, **options), key, who


class Story(Looking):
    """The callers of a store, and what has become of their tasks.

    Each task takes one permit of ``gpu``, the only one, unless ``on`` differs (`limits_of`). ``t1@order`` is a task
    that runs once, and ``order`` its identity. Each grant brings the message with which its task was parked. Tasks that
    a call starts are shown by their ids, ``task#1`` if it is another attempt, and as ``task verdict first`` if they
    run once.

    Args:
        redis: the store.
        request: has the fixture ``clock``, for stories in which time passes.
        identity: of each task without another, as all tasks of the story run once; they need no permit then.
    """

    def __init__(self, redis: Redis, request: pytest.FixtureRequest, identity: str = "") -> None:
        super().__init__(redis, request)
        self._admin, self.identity, self.on = redis, identity, "" if identity else "gpu"
        for name, letter in (("worker", "a"), ("peer", "b"), ("stranger", "c"), ("everywhere", "d")):
            queues = {"stranger": ["q2"], "everywhere": ["q", "q2"]}.get(name, ["q"])
            self._callers[name] = LockCaller(redis, letter * 8, *queues)
        for name, tags in SITES.items():
            queue = "q2" if name.startswith("z") else "q"
            self._callers[name] = LockCaller(redis, f"worker-{name}", queue, sites=Sites({"worker": name, **tags}))
        self.by = self._callers["worker"]
        self.runs: dict[tuple[str, str], Arrival | Grant] = {}
        self.plans: dict[str, LockPlan] = {}
        self.claims: dict[str, str] = {}
        self.claimed: dict[str, tuple[LockPlan, bool]] = {}
        self.noted = 0
        self._rows: Rows | None = None
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

    # -- the numbered call -------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Gather the rows of the following steps for one call."""
        self._rows = Rows()

    def send(self, *, slots: int = 0, clock: float = 0.0) -> str:
        """Make the call with the gathered rows; return its answers, and the tasks that start."""
        rows, self._rows = self._rows, None
        assert rows
        rows.slots, rows.clock = slots, clock
        self.reply = self.by.say(rows)
        return self._shown("asked", "parked")

    def again(self) -> str:
        """The last call once more, as after a lost reply; runs have the tokens that they had."""
        before = dict(self.newest)
        self.reply = self.by.again()
        shown = self._shown("asked", "parked", again=True)
        assert all(token_of(self.newest[task]) == token_of(run) for task, run in before.items())
        return shown

    def copy(self) -> None:
        """A copy of the last call comes late, on a connection that broke."""
        self.by.raw(self.by.last, self.by.number)

    def _call(self, slots: int = 0, *, clock: float = 0.0, read: int | None = None, **rows: list[Any]) -> None:
        if self._rows is None:
            self.reply = self.by.exchange(slots, clock=clock, read=read, **rows)
        for name, some in rows.items() if self._rows else ():
            getattr(self._rows, name).extend(some)

    def _shown(self, *kinds: str, again: bool = False) -> str:
        """Return the answers to these kinds of rows and the tasks that start; keep their runs."""
        if self._rows is not None:
            return ""
        grants = self.reply.grants
        assert len({each.nonce for each in grants}) == len(grants), "each run has a nonce of its own"
        for arrival, answer in zip(self.by.last.asked, self.reply.asked, strict=True):
            if answer == Answer.GRANTED or answer > max(Answer):
                self._keep(granted(arrival, answer), again=again)
        started = []
        for each in grants:
            assert each.message in {message_of(each.task, each.attempt), b"again"}
            self._keep(each, again=again)
            verdict = f" {each.lock.verdict} {each.lock.first}".rstrip() if each.lock else ""
            started.append(f"{each.task}{f'#{each.attempt}' * bool(each.attempt)}{' expired' * each.expired}{verdict}")
        answers = [_named(each) for kind in kinds for each in getattr(self.reply, kind)]
        return ", ".join(filter(None, [" ".join(answers), *started]))

    def _keep(self, run: Arrival | Grant, *, again: bool) -> None:
        known, verdict = self.newest.get(run.task), _verdict(run)
        if verdict != "run":
            assert verdict == "done" or not token_of(run), "a task that does not run has no token"
        elif token_of(run) and known and _verdict(known) == "run" and not again:
            assert token_of(run) > token_of(known), "each run has a newer token"
        self.runs[self.by.name, run.task] = self.newest[run.task] = run

    def _run(self, task: str) -> Arrival | Grant:
        """Return the run that this caller has of it, or else the newest."""
        return self.runs.get((self.by.name, task), self.newest[task])

    def _plan(self, task: str, options: dict[str, Any]) -> tuple[str, LockPlan | None]:
        """Take the words about a plan from the options; a task that was published has its plan in its message."""
        task, _, identity = task.partition("@")
        words = {each: options.pop(each) for each in PLAN if each in options}
        if not words and not identity and task in self.plans:
            return task, self.plans[task]
        return task, plan_of(identity or self.identity, **words) if identity or self.identity else None

    def _task(self, task: str, options: dict[str, Any]) -> tuple[str, Needs, str]:
        """Take the words about a task from the options; return its id, needs and plan."""
        task, plan = self._plan(task, options)
        on, cost, deadline = options.pop("on", self.on), options.pop("cost", 1), options.pop("deadline", None)
        return task, needs_of(on, cost, deadline), plan.spec if plan else ""

    # -- workers -----------------------------------------------------------------------------------------------------

    def ask(self, *tasks: str, attempt: int = 0, slots: int = 0, **options: Any) -> str:
        """Ask for permits with one call; return the answers, and the tasks that start."""
        arrivals = []
        for each in tasks:
            words = dict(options)
            task, needs, lock = self._task(each, words)
            arrivals.append(self.by.arrival(task, needs, attempt=attempt, lock=lock, **words))
        self._call(slots, asked=arrivals)
        return self._shown("asked")

    def ask_again(self, task: str) -> str:
        """Ask once more for a permit that it has."""
        run = self._run(task)
        self._call(asked=[run])
        assert self.reply.asked[0] == (token_of(run) or Answer.GRANTED)
        return _named(self.reply.asked[0])

    def take(self, *tasks: str, **how: Any) -> None:
        """Ask for permits and locks that must be free."""
        for task in tasks:
            assert self.ask(task, **how) == "granted", f"{task} had to be parked"

    def park(self, *tasks: str, slots: int = 0, clock: float = 0.0, **options: Any) -> str:
        """Set tasks aside without asking; return what is wrong with the last, and the tasks that start."""
        for each in tasks:
            words = dict(options)
            task, needs, lock = self._task(each, words)
            self._call(slots, clock=clock, parked=[self.by.parcel(task, needs, lock=lock, **words)])
        return re.sub("^parked(, )?", "", self._shown("parked"))

    def arrive(self, *tasks: str, slots: int = 0, **how: Any) -> str:
        """Ask, and set those aside that are refused; return those that got their permits, and others that start."""
        got, others = [], []
        for task in tasks:
            answer, *started = self.ask(task, **how).split(", ")
            others += started
            if answer == "granted":
                got.append(task)
            elif answer == "must_park":
                others.append(self.park(task, slots=slots, **how))
        return ", ".join(filter(None, [" ".join(got), *others]))

    def look(self, *, slots: int = 1, clock: float = 0.0, unread: int | None = None) -> str:
        """Look for tasks to start; ``unread``: how many of the last replies were not read."""
        self._call(slots, clock=clock, read=None if unread is None else self.by.number - unread)
        return self._shown()

    def serve(self, count: str) -> str:
        """Run one task after the other; return the first letters of those that start, sorted: the order varies."""
        order = []
        for _ in range(int(count)):
            *_, run = self.runs.values()
            self.runs.pop((self.by.name, run.task))
            order.append(self.end(run.task, slots=1)[0])
        return "".join(sorted(order))

    def look_when_told(self, least: str, most: str) -> str:
        """Look when the last reply has it; see `told`."""
        self.told(least, most)
        self.wait(str(self.reply.wait))
        return self.look(slots=1)

    def end(self, *tasks: str, how: str = "done", slots: int = 0, unacked: bool = False) -> str:
        """End these with one call; ``unacked``: their messages are being acknowledged."""
        rows = [ended(self._run(task), FACTS.get(how, how))._replace(unacked=unacked) for task in tasks]
        self._call(slots, ended=rows)
        return self._shown()

    def pass_on(self, task: str, to: str, *, how: str = "done", attempt: int = 0, slots: int = 0, **on: str) -> str:
        """A run has ended, and the one that began in its place in this worker has its permit."""
        run, arrival = self._run(task), self.by.arrival(to, needs_of(on.get("on", self.on)), attempt=attempt)
        self.runs[self.by.name, to] = self.newest[to] = arrival
        self._call(slots, passed=[passed(task, run.nonce, ENDS[how].result, arrival, run.attempt)])
        return self._shown()

    def send_back(self, task: str, *, pause: float = 0.0, about: str | None = None, unacked: bool = False) -> None:
        """After a "slow down", about all limits or about one."""
        run = self._run(task)
        held = held_by(run) if isinstance(run, Grant) else run
        what = "1:" + about.replace("/", "\x1f") if about else held.needs
        self._call(back=[held._replace(message=b"again", pause=(pause, what), unacked=unacked)])

    def began(self, task: str, *, elsewhere: bool = False) -> None:
        """It runs; ``elsewhere``: the report is about another delivery."""
        self._call(began=[(task, "aaaaaaaa:ff" if elsewhere else self._run(task).nonce)])

    def unacked(self, *tasks: str) -> None:
        """The message could not be acknowledged at the broker."""
        self._call(unacked=self._deliveries(tasks))

    def acked(self, *tasks: str) -> None:
        self._call(acked=self._deliveries(tasks))

    def _deliveries(self, tasks: Sequence[str]) -> list[Delivery]:
        """Return those that this worker parked last, or else runs."""
        runs = {task: self._run(task) for task in tasks if task not in self.by.parcels}
        return [
            Delivery(task, runs[task].attempt, runs[task].nonce) if task in runs else self.by.parcels[task]
            for task in tasks
        ]

    def never(self, task: str, first: str = "") -> None:
        """A worker has a delivery that does not run: it is revoked, or has expired."""
        self._call(never=[("same", task, first or getattr(self.plans.get(task), "first", ""))])

    def withdraw(self, *tasks: str) -> str:
        self._call(revoked=list(tasks))
        return self.withdrawn() if self._rows is None else ""

    def errors(self, count: str) -> None:
        """Report so many errors."""
        self.by.exchange(errors=int(count))

    def lost_run(self, task: str) -> None:
        """A delivery of it runs here, and the store has no permit of it."""
        self.runs[self.by.name, task] = self.newest[task] = self.by.arrival(task, needs_of(self.on))

    def note(self) -> None:
        """Put a renewal together now."""
        self.noted = self.by.number

    def renew(self, *tasks: str, noted: bool = False) -> str:
        number = self.noted if noted else None
        return ", ".join(RENEWED[each] for each in self.by.renew(*map(self._run, tasks), number=number))

    def keep(self, *tasks: str) -> str:
        """Callers outside of tasks wait on: return which of them the store has."""
        return " ".join(map(str, self.by.renew_all(waiting=tasks)[1]))

    def reserve(self, on: str) -> str:
        """Book a start; return in how many seconds it is."""
        (limit,) = limits_of(on)
        steering = Steering(self.redis)
        start = steering.ask(steering.store.reserve(limit.name, limit.declared, 1, 1e12))[0]
        return f"{(start - self._clock().now) / 1e6:g}"

    def succeeded(self, task: str, *, before: bool = False) -> int:
        """Report a success that is remembered for a minute; ``before``: of the grant before this one."""
        run = Started.of(self.newest[task])
        return self.by.succeeded(run, "same", 60, token=run.token - before)

    def newer(self, task: str, than: str) -> None:
        """Compare two fencing tokens."""
        assert token_of(self.newest[task]) > token_of(self.newest[than])

    def reap(self, most: str = "100") -> str:
        return " ".join(task for task, _ in self.by.reap(int(most)))

    def leave(self) -> None:
        self.by.leave()

    def come_back(self) -> None:
        self.by.come_back()

    def rejoin(self) -> None:
        self.by.rejoin()

    def deploy(self, *on: str) -> None:
        """Declare these limits anew."""
        self.by.declare(*(limit for each in on for limit in limits_of(each)))

    # -- publishers --------------------------------------------------------------------------------------------------

    def claim(self, task: str, *, least: float = 3600.0, **words: Any) -> str:
        """Claim, as a publisher does before it sends the message."""
        task, plan = self._plan(task, words)
        assert plan
        answer, other, claim = self.by.claim(task, plan, least=least)
        assert answer != identity_locks.OURS or claim == self.claims.get(task, claim)
        self.claims[task] = claim
        self.claimed[task] = replace(plan, claim=claim), answer == identity_locks.OURS
        return f"{CLAIMS[answer]} {other}".strip()

    def sent(self, task: str, *, least: float = 3600.0) -> int:
        """Confirm that the message of the task's last claim was sent."""
        plan, is_retry = self.claimed.get(task, (plan_of(self.identity), False))
        return self.by.sent(task, plan, least=least, is_retry=is_retry)

    def publish(self, task: str, *, awaited: bool = False, unconfirmed: bool = False, **words: Any) -> str:
        """Publish with the answer in the message; return the first that it waits for.

        ``unconfirmed``: the publisher ends as soon as the message was sent.
        """
        task, plan = self._plan(task, words)
        assert plan
        self.plans[task] = self.by.publish(task, plan, awaited=awaited, confirms=not unconfirmed)
        self.claimed[task] = self.plans[task], False
        return self.plans[task].first

    def later(self, task: str, than: str) -> None:
        """Compare two claims."""
        assert int(self.claims[task]) > int(self.claims[than])

    def give_up(self, task: str, first: str = "") -> int:
        return self.by.give_up("same", task, first)

    # -- operators ---------------------------------------------------------------------------------------------------

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

    def unlock(self, task: str = "") -> int:
        return self.by.unlock("same", task)

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

    def be_away(self) -> None:
        """The store was away for an hour, and all leases are over."""
        be_away(self.redis)

    def end_moment(self) -> None:
        """The moment is over that workers have for renewals after an outage."""
        end_moment(self.redis)

    def expire(self, *tasks: str) -> None:
        """The leases of these are over, and no call has noticed it."""
        expire(self.redis, *tasks)

    def lose(self, task: str) -> None:
        """Its lease is over, and this caller notices it."""
        expire(self.redis, task)
        self.by.look(0)

    def lease_ends(self, task: str) -> None:
        """Its worker was silent: its lease is over, and its lock."""
        end_lease(self.redis, Started.of(self.newest[task]))

    def lock_ends(self) -> None:
        """Its time has passed, whatever its holder."""
        end_lock(self.redis)

    def lose_lock(self) -> None:
        """The store has it no more, and no call has noticed it."""
        self.redis.hdel(KEY["locks"], "same")
        self.redis.zrem(KEY["ends"], "locks:same")

    def lapse(self, entry: str) -> None:
        """The time of an entry of the store is over, such as ``records:t1``."""
        lapse(self.redis, entry)

    def come_due(self, kind: str, *names: str) -> None:
        """The time of all that is due, or of these."""
        let_come_due(self.redis, kind, *names)

    def pass_over(self, limit: str, queue: str) -> None:
        """The moment of a queue for its turn is over."""
        pass_over(self.redis, limit.replace("/", "\x1f"), queue)

    def ahead(self, name: str, number: str) -> None:
        """The clock of the store was ahead when it gave this number."""
        self.redis.hset(KEY["meta"], name, number)

    def spoil(self, task: str, how: str = "garbage") -> None:
        """Let its record be unreadable: one of `UNREADABLE`, or only its list of permits, or its second delivery."""
        if how in UNREADABLE:
            self.redis.hset(KEY["records"], task, UNREADABLE[how])
            return
        change(self.redis, "records", task, **{"needs": 7} if how == "needs" else {"second": {"needs": 7}})

    def spoil_lock(self, how: str = "garbage") -> None:
        """Let the lock be unreadable: one of `UNREADABLE`."""
        self.redis.hset(KEY["locks"], "same", UNREADABLE[how])

    def moved(self, task: str, times: str) -> None:
        """It has gone from one line of its limits to another so often."""
        change(self.redis, "records", task, moves=int(times))

    def bar(self, task: str, *limits: str) -> None:
        """It goes first on these."""
        ticket = peek(self.redis).records[task].ticket
        for limit in limits:
            change(self.redis, "overrides", limit.replace("/", "\x1f"), bar=[ticket, 9e12, "", task, 1])
            self.redis.zadd(KEY["ends"], {f"overrides:{limit}".replace("/", "\x1f"): 9e12})


def _named(answer: int) -> str:
    return "granted" if answer > max(Answer) else Answer(answer).name.lower()


def _verdict(run: Arrival | Grant) -> str:
    return Started.of(run).verdict
