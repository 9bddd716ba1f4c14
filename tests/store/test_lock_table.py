"""The table in lock_table.py: the scripts follow each of its cells, and the docs have it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from redis import Redis

from celery_throttle.core.dedup import LockPlan, LockUntil, OnConflict, task_dedup
from celery_throttle.core.facts import Facts, Message
from celery_throttle.core.limits import Limit
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.identity_locks import CLAIMED, OURS, REPLACED, TAKEN
from tests.store.lock_caller import LockCaller, Started, end_lease, end_lock, plan_of
from tests.store.lock_table import IMPOSSIBLE, TABLE, Cell, Event, Fate, Owner, State, Why, printed
from tests.store.peek import KEY, check, peek

GPU = Limit("gpu", 1)
DOCS = Path(__file__).parents[2] / "docs"
KEPT = 600.0
RUNS_END = {
    Event.SUCCEEDS: "done", Event.SUCCEEDS_KEPT: "done", Event.FAILS: "failed", Event.FAILS_KEPT: "failed",
    Event.WAITS: "retry", Event.WAITS_NEVER: "retry", Event.NOTHING: "ignored", Event.NOTHING_KEPT: "ignored",
}  # fmt: skip
#: Events of a task that runs.
OF_A_RUN = {*RUNS_END, Event.UNCLAIMED, Event.RENEWED, Event.TOLD, Event.LOST, Event.LOST_AGAIN}
LASTS = {Event.FAILS_KEPT, Event.NOTHING_KEPT}
CONFLICTS: dict[Event, OnConflict] = {
    Event.PUBLISHED_REPLACE: "replace", Event.PUBLISHED_LAST: "keep_last", Event.NEWER_ARRIVES: "replace",
    Event.LAST_ARRIVES: "keep_last", Event.RAISING_ARRIVES: "raise", Event.SKIPPED_ARRIVES: "skip",
}  # fmt: skip
ARRIVALS = {
    Event.ANOTHER_ARRIVES, Event.RAISING_ARRIVES, Event.SKIPPED_ARRIVES, Event.NEWER_ARRIVES, Event.LAST_ARRIVES,
}  # fmt: skip
WITH_NEXT = (State.RUNNING, State.QUEUED)
ANSWERS = {CLAIMED: "claimed", TAKEN: "taken", OURS: "ours", REPLACED: "replaces"}


def until_of(event: Event, state: State) -> LockUntil:
    """The option with which a lock comes into this state, or the event differs."""
    if event in LASTS or state is State.FAILED:
        return "expires"
    return "started" if state is State.STARTED else "finished"


class World:
    """A lock in one of its states; the task that has it is ``first``."""

    def __init__(
        self,
        redis: Redis,
        state: State,
        event: Event,
        *,
        follower: bool = False,
        last: bool = False,
        parked: bool = False,
    ) -> None:
        self.redis, self.state, self.event = redis, state, event
        self.worker, self.peer = LockCaller(redis, "aaaaaaaa", "q"), LockCaller(redis, "bbbbbbbb", "q")
        kept = state is State.DONE or event in (Event.SUCCEEDS_KEPT, Event.TOLD)
        self.plan = plan_of(lock_until=until_of(event, state), remember=KEPT if kept else 0.0)
        self.follower, self.last, self.parked = follower, last, parked
        self.run: Started | None = None
        self.claimed = self.plan
        #: published before the first: it has a claim, and no lock
        self.older = self.peer.publish("older", self.like(on_conflict="replace"))
        self.peer.give_up("same", "older")
        self.to_state()

    def like(self, *, on_conflict: OnConflict = "return_existing") -> LockPlan:
        return replace(self.plan, dedup=replace(self.plan.dedup, on_conflict=on_conflict))

    def to_state(self) -> None:
        runs = self.event in OF_A_RUN
        if self.state is State.NONE and not runs:
            return
        if self.event is not Event.UNCLAIMED:
            self.claimed = self.worker.publish("first", self.plan)
        if self.follower and self.event is not Event.UNCLAIMED:
            assert self.peer.arrive("follower", self.like()) == ()
        if self.state is State.QUEUED and not runs:
            self.to_queued()
            return
        self.start()
        if self.last:
            self.add_next()
        self.from_running(runs)
        if self.follower and self.event is Event.UNCLAIMED:  # nothing was published, so the first has its lock only now
            assert self.peer.arrive("follower", self.like()) == ()

    def from_running(self, runs: bool) -> None:
        """To the state that is wanted; in some of them the run may go on."""
        if self.state is State.NONE:
            self.redis.hdel(KEY["locks"], "same")
            self.redis.zrem(KEY["ends"], "locks:same")
        elif self.state is State.TAKEN:
            assert self.peer.unlock("same") == 1
        elif self.state is State.QUEUED:
            end_lease(self.redis, self.running, lock=False)
            self.peer.reap()
        elif self.state is State.DONE and runs:
            assert self.worker.succeeded(self.running, "same", KEPT) == 1
        elif self.state in (State.DONE, State.FAILED):
            self.worker.end(self.running, "done" if self.state is State.DONE else "failed")

    def start(self) -> None:
        """From its line, where it goes back to if its lease ends, or at once."""
        if self.state is not State.QUEUED:
            self.run = self.worker.start("first", self.claimed)
            return
        blocker = self.worker.take("blocker", GPU)
        self.worker.arrive("first", self.claimed, GPU)
        (grant,) = self.worker.release(blocker, slots=1).grants
        self.run = Started.of(grant)

    def to_queued(self) -> None:
        """It waits for its retry if another one is next, which comes while the first runs."""
        if self.last:
            run = self.worker.start("first", self.claimed)
            self.add_next()
            self.worker.end(run, "retry")
        if self.parked:
            self.worker.take("blocker", GPU)
            self.worker.arrive("first", self.claimed, GPU)

    def add_next(self) -> None:
        keep_last = self.like(on_conflict="keep_last")
        plan = self.peer.publish("next", keep_last)
        if self.event is not Event.NEXT_GIVEN_UP:  # else it could not be published
            assert self.peer.arrive("next", plan) == ()

    @property
    def running(self) -> Started:
        assert self.run
        return self.run

    # -- events --------------------------------------------------------------------------------------------------------

    def happens(self) -> str:
        """Apply the event; return the answer to its task."""
        if self.event in OF_A_RUN:
            self.of_a_run()
            return ""
        if self.event in (Event.PUBLISHED, Event.PUBLISHED_REPLACE, Event.PUBLISHED_LAST, Event.PUBLISHED_AGAIN):
            return self.publishes()
        if self.event in (Event.ARRIVES, Event.STARTS):
            return self.arrives("first", self.claimed)
        if self.event in ARRIVALS:
            return self.arrives("another", self.like(on_conflict=CONFLICTS.get(self.event, "return_existing")))
        if self.event is Event.OLDER_ARRIVES:
            return self.arrives("another", self.older)
        if self.event is Event.GIVEN_UP:
            self.peer.exchange(never=[("same", "first", "")])
        elif self.event is Event.NEXT_GIVEN_UP:
            self.peer.give_up("same", "next")
        elif self.event is Event.UNLOCKED:
            self.peer.unlock("same")
        else:
            end_lock(self.redis)
            self.peer.reap()
        return ""

    def publishes(self) -> str:
        again = self.event is Event.PUBLISHED_AGAIN
        plan = self.claimed if again else self.like(on_conflict=CONFLICTS.get(self.event, "return_existing"))
        answer = ANSWERS[self.peer.claim("first" if again else "another", plan)[0]]
        lock = peek(self.redis).live_lock()
        return "next" if lock and lock.get("next") == "another" else answer

    def arrives(self, task: str, plan: LockPlan) -> str:
        if self.event is not Event.STARTS and not self.parked:
            self.peer.take("blocker", GPU)
        answer, _, _ = self.peer.ask_once(task, plan, GPU, attempt=self.attempt(task))
        if answer > max(Answer):
            return "started"
        assert answer == Answer.MUST_PARK
        self.peer.put_once(task, plan, GPU, attempt=self.attempt(task))
        store = peek(self.redis)
        return "second" if task in store.seconds else store.records[task].verdict

    def attempt(self, task: str) -> int:
        """A failed one may be published again, as a later attempt."""
        return 1 if task == "first" and self.state is not State.QUEUED else 0

    def of_a_run(self) -> None:
        run, worker = self.running, self.worker
        if self.event is Event.RENEWED:
            assert worker.renew_once(run) > 0, "it may go on"
        elif self.event is Event.TOLD:
            worker.succeeded(run, "same", KEPT)
        elif self.event is Event.UNCLAIMED:
            worker.end(run, Facts(True, Message.BROKER))
        elif self.event in (Event.LOST, Event.LOST_AGAIN):
            if self.event is Event.LOST_AGAIN:
                worker.claim("first", self.claimed)
            end_lease(self.redis, run, lock=False)
            self.peer.reap()
        else:
            if self.event is Event.WAITS_NEVER:
                self.peer.exchange(never=[("same", "first", "")])
            worker.end(run, RUNS_END[self.event])


def cells() -> list[tuple[Event, State, bool, bool]]:
    """Each cell, with a follower or without, and with one that is next or without."""
    found = []
    for event, state, follower, last in product(Event, State, (False, True), (False, True)):
        followed = state in (State.QUEUED, State.RUNNING, State.STARTED)
        may_be_last = state in WITH_NEXT and until_of(event, state) == "finished" and event not in _REMEMBERED
        if state is State.QUEUED and event in OF_A_RUN:
            may_be_last = False  # it would have the lock by now
        if state not in TABLE[event] or (follower and not followed) or (last and not may_be_last):
            continue
        if event is Event.NEXT_GIVEN_UP and not last:
            continue
        if event is Event.UNCLAIMED and state is not State.RUNNING and follower:
            continue  # where nothing was published there is nothing to follow until the first runs
        found.append((event, state, follower, last))
    return found


_REMEMBERED = (Event.SUCCEEDS_KEPT, Event.TOLD)


def named(value: object) -> str:
    return value.name if isinstance(value, (Event, State)) else "with" if value else "without"


@pytest.mark.parametrize(("event", "state", "follower", "last"), cells(), ids=named)
def test_event_leads_to_the_state_in_the_table(
    redis: Redis, event: Event, state: State, *, follower: bool, last: bool
) -> None:
    world = World(redis, state, event, follower=follower, last=last)
    leads_where_the_table_says(world)


QUEUED_HERE = [
    (event, follower)
    for event, state, follower, last in cells()
    if state is State.QUEUED and event not in OF_A_RUN | {Event.ARRIVES, Event.STARTS} and not last
]
#: Ends of a first task that is itself parked.
MAKES_WAY = {
    Event.PUBLISHED_REPLACE: "follow", Event.PUBLISHED_LAST: "follow", Event.NEWER_ARRIVES: "replaced",
    Event.LAST_ARRIVES: "replaced",
}  # fmt: skip


@pytest.mark.parametrize(("event", "follower"), QUEUED_HERE, ids=named)
def test_a_first_that_is_parked_makes_way_only_for_the_newest(redis: Redis, event: Event, *, follower: bool) -> None:
    """Also only once that has come to a worker, since it may fail to be published."""
    world = World(redis, State.QUEUED, event, follower=follower, parked=True)
    leads_where_the_table_says(world)
    assert peek(redis).records["first"].verdict == MAKES_WAY.get(event, "run")


def leads_where_the_table_says(world: World) -> None:
    redis, state, event, follower, last = world.redis, world.state, world.event, world.follower, world.last
    lock = peek(redis).live_lock()
    assert (lock["state"] if lock else "none", lock["task"] if lock else "") == before(state), "as set up"
    answer = world.happens()
    cell = TABLE[event][state]
    store = peek(redis)
    check(store)
    assert answer == cell.event_task
    lock = store.live_lock()
    there = follower, last and event is not Event.NEXT_GIVEN_UP
    assert ((lock["state"], lock["task"]) if lock else None) == after(cell, *there)
    if follower:
        follows(store.records["follower"], cell.follower, state, lock)
    if there[1]:
        verdict = store.records["next"].verdict
        assert verdict in ({"replaced"} if cell.next is Fate.REPLACED else {"next", "follow", "run"})
        assert (verdict == "run") == bool(lock and lock["task"] == "next")


def before(state: State) -> tuple[str, str]:
    if state is State.NONE or state is State.TAKEN:
        return "none", ""
    return state.value, "first"


def after(cell: Cell, follower: bool, last: bool) -> tuple[str, str] | None:
    """The state of the lock and the task that has it."""
    if cell.owner is Owner.NO_TASK:
        return None
    if cell.owner is not Owner.HEIR:
        return cell.state.value, cell.owner.value
    if last:
        return "queued", "next"
    return ("queued", "follower") if follower and cell.follower is Fate.WAITS else None


def follows(record: object, fate: Fate, state: State, lock: dict[str, object] | None) -> None:
    plan = record.lock  # type: ignore[attr-defined]
    if fate is Fate.OUTCOME:
        assert (plan["verdict"], plan["first"]) == ("conclude", "first")
    elif lock and lock["task"] == "follower":
        assert plan["verdict"] == "run"
    else:
        assert plan["verdict"] == "follow"
        # From the start on the lock is free, and the follower waits for the first all the same.
        assert plan["first"] == ("first" if state is State.STARTED else lock and lock["task"])


# -- cells that there are not -----------------------------------------------------------------------------------


def test_each_event_has_a_cell_or_a_reason_in_each_state() -> None:
    for event in Event:
        there, not_there = set(TABLE[event]), set(IMPOSSIBLE.get(event, {}))
        assert there | not_there == set(State), event
        assert not there & not_there, event


NONE_THERE = [(event, state, why) for event, states in IMPOSSIBLE.items() for state, why in states.items()]
OPTIONS_OF_STATES: dict[State, dict[str, object]] = {
    State.STARTED: {"lock_until": "started"}, State.DONE: {"remember": 5}, State.FAILED: {"lock_until": "expires"},
}  # fmt: skip
OPTIONS_OF_EVENTS: dict[Event, dict[str, object]] = {
    **{event: {"on_conflict": conflict} for event, conflict in CONFLICTS.items()},
    Event.OLDER_ARRIVES: {"on_conflict": "replace"}, Event.TOLD: {"remember": 5}, Event.SUCCEEDS_KEPT: {"remember": 5},
    Event.FAILS_KEPT: {"lock_until": "expires"}, Event.NOTHING_KEPT: {"lock_until": "expires"},
}  # fmt: skip


@pytest.mark.parametrize(("event", "state", "why"), NONE_THERE, ids=lambda each: each.name)
def test_impossible_event_has_its_reason(redis: Redis, event: Event, state: State, why: Why) -> None:
    if why is Why.REFUSED:
        one, other = OPTIONS_OF_STATES[state], OPTIONS_OF_EVENTS[event]
        if set(one) & set(other):
            assert one != other
            return
        with pytest.raises(ConfigurationError, match="makes no sense"):
            task_dedup("shop.charge", singleton=True, options={**one, **other})
        return
    world = World(redis, state, Event.LOST if why is Why.CLAIMED else Event.PUBLISHED)
    store = peek(redis)
    if why is Why.NO_RUN:
        assert not store.leases
    elif why is Why.NO_NEXT:
        assert "next" not in (store.live_lock() or {})
    elif why is Why.NO_LOCK:
        assert store.live_lock() is None
    elif why is Why.LATER:
        assert store.lock_ends() > store.leases["first"]
    else:
        world.worker.claim("first", world.claimed)
        lock = peek(redis).live_lock()
        assert lock
        assert (lock["state"], lock["task"]) == ("queued", "first")


def test_the_docs_have_the_table() -> None:
    """``python -c "from tests.store.lock_table import printed; print(printed())"`` prints it."""
    assert printed() in (DOCS / "internals" / "locks.md").read_text()
