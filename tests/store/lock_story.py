"""Stories of identity locks: see `tests.store.stories`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis

from celery_throttle.core.dedup import LockPlan
from celery_throttle.core.limits import Limit
from celery_throttle.store import identity_locks
from celery_throttle.store.exchange_reply import Answer
from tests.primitives.faults import StoreClock
from tests.store.lock_caller import Started, end_lease, end_lock, plan_of, started_of
from tests.store.peek import KEY, peek
from tests.store.steering import Steering
from tests.store.stories import FACTS, RENEWED, UNREADABLE, Story
from tests.store.terms_caller import lines

__all__ = ["LockStory"]

LIMITS = {"gpu": Limit("gpu", 1), "gpu2": Limit("gpu2", 2), "crowd": Limit("crowd", 1, max_parked=1)}
ANSWERS = {
    identity_locks.CLAIMED: "claimed",
    identity_locks.TAKEN: "taken",
    identity_locks.OURS: "ours",
    identity_locks.REPLACED: "replaces",
    identity_locks.LOST: "lost",
}
PLAN = ("on_conflict", "lock_until", "remember", "lock_ttl")


class LockStory(Story):
    """A story of identity locks.

    ``t1@other`` is a task with the identity ``other``, all others have ``same``. Tasks that a call starts are shown as
    ``task verdict first``.
    """

    def __init__(self, redis: Redis, clock: Callable[[], StoreClock]) -> None:
        super().__init__(redis, clock)
        self.runs: dict[str, Started] = {}
        self.own: dict[tuple[str, str], Started] = {}
        self.plans: dict[str, LockPlan] = {}
        self.claims: dict[str, str] = {}
        self.lasts = self.wait_s = 0.0

    def _plan(self, task: str, options: dict[str, Any]) -> tuple[str, LockPlan]:
        """Take the words about a plan from the options; a task that was published has its plan in its message."""
        task, _, identity = task.partition("@")
        words = {each: options.pop(each) for each in PLAN if each in options}
        if not words and not identity and task in self.plans:
            return task, self.plans[task]
        return task, plan_of(identity or "same", **words)

    def _shown(self, started: tuple[Started, ...]) -> str:
        for each in started:
            known = self.runs.get(each.task)
            if each.verdict == "run":
                assert known is None or known.verdict != "run" or each.token > known.token, "each run has a newer token"
            else:
                assert each.verdict == "done" or each.token == 0, "a task that does not run has no token"
            self.runs[each.task] = self.own[self.by.name, each.task] = each
        return ", ".join(f"{each.task} {each.verdict} {each.first}".strip() for each in started)

    def _run(self, task: str) -> Started:
        """Return the run that this caller has of it, or else the newest."""
        return self.own.get((self.by.name, task), self.runs[task])

    # -- publishers --------------------------------------------------------------------------------------------------

    def claim(self, task: str, *, least: float = 3600.0, **words: Any) -> str:
        """Publish, and forget the answer."""
        task, plan = self._plan(task, words)
        answer, other, claim = self.by.claim(task, plan, least=least)
        assert answer != identity_locks.OURS or claim == self.claims.get(task, claim)
        self.claims[task] = claim
        return f"{ANSWERS[answer]} {other}".strip()

    def publish(self, task: str, *, awaited: bool = False, **words: Any) -> str:
        """Publish with the answer in the message; return the first that it waits for."""
        task, plan = self._plan(task, words)
        self.plans[task] = self.by.publish(task, plan, awaited=awaited)
        return self.plans[task].first

    def give_up(self, task: str, first: str = "") -> int:
        return self.by.give_up("same", task, first)

    def unlock(self, task: str = "") -> int:
        return self.by.unlock("same", task)

    # -- workers -----------------------------------------------------------------------------------------------------

    def start(self, task: str, *, on: str = "", attempt: int = 0, **words: Any) -> None:
        """Arrive, and start at once."""
        task, plan = self._plan(task, words)
        self._shown((self.by.start(task, plan, LIMITS.get(on), attempt=attempt),))

    def arrive(self, task: str, *, on: str = "", attempt: int = 0, slots: int = 0, **words: Any) -> str:
        """Arrive, and be parked if refused."""
        task, plan = self._plan(task, words)
        return self._shown(self.by.arrive(task, plan, LIMITS.get(on), attempt=attempt, slots=slots))

    def ask(self, task: str, *, on: str = "", **words: Any) -> str:
        """Arrive, and not be parked."""
        task, plan = self._plan(task, words)
        answer, _, _ = self.by.ask_once(task, plan, LIMITS.get(on))
        return Answer(answer).name.lower() if answer in list(Answer) else "run"

    def put(self, task: str, *, on: str = "", attempt: int = 0, slots: int = 0, **words: Any) -> str:
        """Be parked without asking; return why not, or the tasks that start."""
        task, plan = self._plan(task, words)
        reply = self.by.put(task, LIMITS.get(on), attempt=attempt, lock=plan.spec, slots=slots)
        self.wait_s, answer = reply.wait, Answer(reply.parked[0])
        return self._shown(started_of(reply)) if answer == Answer.PARKED else answer.name.lower()

    def look_within(self, seconds: str) -> None:
        """Check that the reply to the last `put` asks for a look so soon."""
        assert 0 < self.wait_s <= float(seconds)

    def end(self, task: str, *, how: str = "done", slots: int = 0) -> str:
        return self._shown(self.by.end(self._run(task), FACTS.get(how, how), slots=slots))

    def again(self) -> str:
        """Repeat the last call, as after a lost reply; runs have the tokens that they had."""
        reply, answers = self.by.again(), []
        for arrival, answer in zip(self.by.last.asked, reply.asked, strict=True):
            assert answer in list(Answer) or answer == self.runs[arrival.task].token
            answers.append(Answer(answer).name.lower() if answer in list(Answer) else "run")
        assert all(each.token == self.runs[each.task].token for each in started_of(reply))
        return ", ".join([*answers, *(f"{each.task} {each.verdict}" for each in started_of(reply))])

    def look(self, *, slots: int = 1) -> str:
        return self._shown(self.by.look_once(slots))

    def renew(self, task: str) -> str:
        return RENEWED[self.by.renew_once(self._run(task))]

    def succeeded(self, task: str, *, before: bool = False) -> int:
        """Report a success that is remembered for a minute; ``before``: of the grant before this one."""
        run = self.runs[task]
        return self.by.succeeded(run, "same", 60, token=run.token - before)

    def never(self, task: str, first: str = "") -> None:
        """A worker has a delivery that does not run: it is revoked, or has expired."""
        self.by.exchange(never=[("same", task, first or getattr(self.plans.get(task), "first", ""))])

    def drop(self, *tasks: str) -> int:
        """An operator takes parked tasks out: these, or all of the limit."""
        return Steering(self.redis).drop(LIMITS["gpu"], *tasks)

    def told(self) -> str:
        """Look for dropped tasks, and end them."""
        grants = self.by.look(9).grants
        for grant in grants:
            assert grant.expired
            assert grant.lock is None
            self.by.release(grant, "never")
        return " ".join(grant.task for grant in grants)

    # -- mishaps -----------------------------------------------------------------------------------------------------

    def lease_ends(self, task: str, *, alone: bool = False) -> None:
        """Its worker was silent; ``alone``: the lock lasts longer."""
        end_lease(self.redis, self.runs[task], lock=not alone)

    def lock_ends(self) -> None:
        """Its time has passed, whatever its holder."""
        end_lock(self.redis)

    def spoil_lock(self, how: str = "garbage") -> None:
        """Let the lock be unreadable: one of `UNREADABLE`."""
        self.redis.hset(KEY["locks"], "same", UNREADABLE[how])

    # -- looking -----------------------------------------------------------------------------------------------------

    def lock(self, identity: str = "same") -> str:
        found = self.by.locked(identity)
        return f"{found.task_id} {found.state}" if found else ""

    def locks(self) -> str:
        """Return the identities whose locks are stored, readable or not."""
        return " ".join(sorted(peek(self.redis).hashes["locks"]))

    def lock_awaited(self) -> int:
        """Return how many calls ask for the outcome of its holder."""
        found = peek(self.redis).live_lock()
        assert found
        return int(found["awaited"])

    def next(self) -> str:
        found = self.by.locked()
        assert found
        return found.next_id or ""

    def verdict(self, task: str) -> str:
        return peek(self.redis).records[task].verdict

    def passed(self) -> str:
        return " ".join(map(str, peek(self.redis).passed))

    def line(self) -> str:
        return " ".join(lines(self.redis).get("gpu", ()))

    def parked_by_limit(self) -> str:
        """Return the parked tasks that need a permit of the limit, each with what it waits for."""
        rows = sorted(Steering(self.redis).parked_ids(LIMITS["gpu"]))
        return ", ".join(f"{each.task} {each.what}" for each in rows)

    def awaited(self) -> str:
        return " ".join(map(str, peek(self.redis).awaited))

    def later(self, task: str, than: str) -> None:
        """Compare two claims."""
        assert int(self.claims[task]) > int(self.claims[than])

    def newer(self, task: str, than: str) -> None:
        """Compare two fencing tokens."""
        assert self.runs[task].token > self.runs[than].token

    def mark(self) -> None:
        """Remember when the lock ends."""
        self.lasts = peek(self.redis).lock_ends()

    def as_marked(self) -> None:
        assert peek(self.redis).lock_ends() == self.lasts

    def lasts_hours(self, hours: str) -> None:
        found = self.by.locked()
        assert found
        assert found.expires_in > (float(hours) - 1) * 3600
