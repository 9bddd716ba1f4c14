"""The life of an identity lock: the scripts follow each cell of the table in docs/internals/locks.md.

An event is the steps of a story, with the tasks of the table: first, another, follower, next. `WORDS` are options that
an event needs, and ``*`` is where the call of another task has them all.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.store.peek import Snapshot, check, peek
from tests.store.stories import Story

LOCKS = Path(__file__).parents[2] / "docs" / "internals" / "locks.md"
STATES = ("none", "taken", "queued", "running", "started", "done", "failed")
ARRIVES_FULL = "take blocker@blocker on=gpu; "
SENT = "the message of the first was sent, as its publisher reports, early or late"
ARRIVES = {
    "a delivery of the first arrives, its limit is full": f"{ARRIVES_FULL}peer: arrive first on=gpu",
    "a delivery of the first arrives, and there is room": "peer: arrive first on=gpu",
    "another task arrives": f"{ARRIVES_FULL}peer: arrive another * on=gpu",
    "another task arrives, `raise`": f"{ARRIVES_FULL}peer: arrive another * raise on=gpu",
    "another task arrives, `skip`": f"{ARRIVES_FULL}peer: arrive another * skip on=gpu",
    "a newer task arrives, `replace`": f"{ARRIVES_FULL}peer: arrive another * replace on=gpu",
    "a newer task arrives, `keep_last`": f"{ARRIVES_FULL}peer: arrive another * keep_last on=gpu",
    "an older task arrives, `replace` or `keep_last`": f"{ARRIVES_FULL}peer: arrive older on=gpu",
    (
        NOT_COME := "one of these three arrives before the first has come"
    ): f"{ARRIVES_FULL}peer: arrive another * raise on=gpu",
}
#: Another task ends because of the first only once that has come to a worker.
ONCE_COME = (
    "another task arrives, `raise`",
    "another task arrives, `skip`",
    "an older task arrives, `replace` or `keep_last`",
)
PUBLISHED = {
    "another call is published": "peer: claim another *",
    "another call is published, `replace`": "peer: claim another * replace",
    "another call is published, `keep_last`": "peer: claim another * keep_last",
    "the first is published again (a retry)": "peer: claim first",
}
UNCLAIMED = "the run ends, and a delivery follows; nothing had claimed the lock"
OF_A_RUN = {
    "the run renews its lease": "renew first",
    "the run reports its success at once (`remember`)": "succeeded first",
    "the run succeeds": "end first",
    "the run succeeds, `remember` or before it expires": "end first",
    "the run fails": "end first failed",
    "the run fails before its lock expires": "end first failed",
    "the run ends, and a delivery follows (a retry, or back in line)": "end first retry",
    "the same, but it was revoked while it ran": "peer: never first; end first retry",
    UNCLAIMED: "end first again",
    "the run ends with nothing (ignored, rejected)": "end first ignored",
    "the run ends with nothing before its lock expires": "end first ignored",
    "the lease of the run ends": "expire first; peer: reap",
    "the lease of the run ends after a retry was published": "claim first; expire first; peer: reap",
}
NEXT_GIVEN_UP = "the next will never run"
EVENTS = {
    **PUBLISHED, **ARRIVES, **OF_A_RUN, SENT: "peer: sent first",
    "the first will never run (revoked, expired, not published)": "peer: never first",
    NEXT_GIVEN_UP: "peer: give_up next",
    "an operator takes the lock away": "peer: unlock",
    "its time is over": "lock_ends; peer: reap",
}  # fmt: skip
#: Options of the lock that an event needs, or else a state.
WORDS = {
    "the run reports its success at once (`remember`)": "remember=600",
    "the run succeeds, `remember` or before it expires": "remember=600",
    "the run fails before its lock expires": "expires",
    "the run ends with nothing before its lock expires": "expires",
    "started": "started",
    "done": "remember=600",
    "failed": "expires",
}
#: What becomes of a running first in each state, where its run goes on, and where not.
GOES_ON = {
    "none": "lose_lock",
    "taken": "peer: unlock",
    "queued": "expire first; peer: reap",
    "done": "succeeded first",
}
HAS_ENDED = {"taken": "peer: unlock", "done": "end first", "failed": "end first failed"}


def table() -> dict[tuple[str, str], str]:
    """Return the cells of the docs, by event and state."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in LOCKS.read_text().splitlines()]
    first = rows.index(["event", *STATES])
    return {(row[0], state): cell for row in rows[first + 2 :] for state, cell in zip(STATES, row[1:], strict=True)}


TABLE = table()


def cells() -> list[tuple[str, str, bool, bool]]:
    """Return each cell, with a follower or without, and with one that is next or without."""
    found = []
    for (event, state), follower, last in product(TABLE, (False, True), (False, True)):
        followed = state in {"queued", "running", "started"} and (event != UNCLAIMED or state == "running")
        # Only one that ends with its run has a next one, which has the lock once the first is back in line.
        may_be_last = state == "running" or (state == "queued" and event not in OF_A_RUN)
        may_be_last = may_be_last and not WORDS.get(event) and event != NOT_COME
        possible = (followed or not follower) and (may_be_last or not last) and (last or event != NEXT_GIVEN_UP)
        if TABLE[event, state] != "-" and possible:
            found.append((event, state, follower, last))
    return found


class World(Story):
    """A lock in one of its states; the task that has it is ``first``."""

    def __init__(
        self, request: pytest.FixtureRequest, event: str, state: str, *, follower: bool, last: bool, parked: bool
    ) -> None:
        super().__init__(request.getfixturevalue("redis"), request, "same")
        self.event, self.before, self.last = event, state, last
        self.words = WORDS.get(state, "") + " " + WORDS.get(event, "")
        runs, claimed = event in OF_A_RUN, event != UNCLAIMED
        # Published before the first, it has a claim and no lock.
        self.tell(f"peer: publish older replace {self.words}; peer: give_up older")
        if state == "none" and not runs:
            return
        if claimed:
            self.tell(f"publish first {self.words}")
        if follower and claimed:
            self.tell(f"peer: arrive follower {self.words} = -")
        if state != "queued":
            self.tell("take first" if claimed else f"take first {self.words}")
            self.add_next()
        elif runs:  # from its line, where it goes back to if its lease ends
            self.tell("take blocker@blocker on=gpu; arrive first on=gpu; end blocker slots=1")
        elif last:  # which comes while the first runs
            self.tell("take first")
            self.add_next()
            self.tell("end first retry")
        elif event in ONCE_COME:
            self.tell("take first; end first retry")
        if parked:
            self.tell(f"{ARRIVES_FULL}arrive first on=gpu")
        self.tell((GOES_ON if runs else HAS_ENDED).get(state, ""))
        if follower and not claimed:  # nothing was published, so the first has its lock only now
            self.tell(f"peer: arrive follower {self.words} = -")

    def add_next(self) -> None:
        if self.last:
            self.tell("peer: publish next keep_last")
            if self.event != NEXT_GIVEN_UP:  # else it could not be published
                self.tell("peer: arrive next = -")

    def happens(self, *, parked: bool) -> str:
        """Apply the event; return the answer to its task."""
        steps = EVENTS[self.event].replace("*", self.words)
        if self.event in PUBLISHED:
            answer = self.step(steps).split()[0]
            lock = peek(self.redis).live_lock()
            return "next" if lock and lock.get("next") == "another" else answer
        if self.event not in ARRIVES:
            self.tell(steps)
            return ""
        # One that has failed may be published again, as a later attempt.
        again = " attempt=1" if "arrive first" in steps and self.before != "queued" else ""
        self.tell((steps.removeprefix(ARRIVES_FULL) if parked else steps) + again)
        task = steps.split("arrive ")[1].split()[0]
        store = peek(self.redis)
        if store.records[task].held and task not in store.seconds:
            return "started"
        return "second" if task in store.seconds else store.records[task].verdict


def leads_where_the_table_says(
    request: pytest.FixtureRequest, event: str, state: str, *, follower: bool, last: bool, parked: bool = False
) -> Snapshot:
    world = World(request, event, state, follower=follower, last=last, parked=parked)
    stays = "none" if state in {"none", "taken"} else f"{state}, first"
    assert owner(peek(world.redis)) == stays, "as set up"
    answer = world.happens(parked=parked)
    becomes, *more = TABLE[event, state].split("; ")
    store = peek(world.redis)
    check(store)
    assert answer == "".join(each.strip("*") for each in more if each.startswith("*"))
    lock, outcome = store.live_lock(), "followers end" in more
    last = last and event != NEXT_GIVEN_UP
    heir = "queued, next" if last else "queued, follower" if follower and not outcome else "none"
    assert owner(store) == {"stays": stays, "heir": heir}.get(becomes, becomes)
    if follower:
        follows(store.records["follower"].lock, state, lock, outcome=outcome)
    if last:
        verdict = store.records["next"].verdict
        assert verdict in ({"replaced"} if "next replaced" in more else {"next", "follow", "run"})
        assert (verdict == "run") == bool(lock and lock["task"] == "next")
    return store


def owner(store: Snapshot) -> str:
    """Return the state of the lock, and the task that has it; an older task is another one."""
    lock = store.live_lock()
    return f"{lock['state']}, {lock['task']}".replace("older", "another") if lock else "none"


def follows(plan: dict[str, Any], state: str, lock: dict[str, Any] | None, *, outcome: bool) -> None:
    if outcome:
        assert (plan["verdict"], plan["first"]) == ("conclude", "first")
    elif lock and lock["task"] == "follower":
        assert plan["verdict"] == "run"
    else:
        assert plan["verdict"] == "follow"
        # From the start on the lock is free, and the follower waits for the first all the same.
        assert plan["first"] == ("first" if state == "started" else lock and lock["task"])


def test_the_table_has_each_event() -> None:
    assert {event for event, _ in TABLE} == set(EVENTS)
    # Such options are refused together, or no run is left, none is next, there is no lock, or it outlasts its lease.
    impossible = {"none": 4, "taken": 4, "queued": 2, "running": 2, "started": 9, "done": 11, "failed": 20}
    assert Counter(state for (_, state), cell in TABLE.items() if cell == "-") == impossible


@pytest.mark.parametrize(("event", "state", "follower", "last"), cells())
def test_event_leads_to_the_state_in_the_table(
    request: pytest.FixtureRequest, event: str, state: str, *, follower: bool, last: bool
) -> None:
    leads_where_the_table_says(request, event, state, follower=follower, last=last)


#: Ends of a first task that is itself parked: the newest call takes its place, and only once it has come to a worker.
MAKES_WAY = {
    "another call is published, `replace`": "follow",
    "another call is published, `keep_last`": "follow",
    "a newer task arrives, `replace`": "replaced",
    "a newer task arrives, `keep_last`": "replaced",
}


@pytest.mark.parametrize(
    ("event", "follower"),
    [
        (event, follower)
        for event, state, follower, last in cells()
        if state == "queued" and event not in OF_A_RUN and "arrive first" not in EVENTS[event] and not last
        if event != NOT_COME
    ],
)
def test_a_first_that_is_parked_makes_way_only_for_the_newest(
    request: pytest.FixtureRequest, event: str, *, follower: bool
) -> None:
    store = leads_where_the_table_says(request, event, "queued", follower=follower, last=False, parked=True)
    assert store.records["first"].verdict == MAKES_WAY.get(event, "run")
