"""Any sequence of calls on a fair semaphore, against a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives.semaphore_calls import SemaphoreCalls, Turn
from celery_throttle.store.scripts import Call
from tests.primitives.faults import Resending, StoreClock
from tests.support.machines import run_machine

#: Far enough away that no key ends by the real clock.
START_US = 4_000_000_000_000_000
#: Milliseconds.
LEASES = (1_000, 5_000)
STAY = 3_000
OWN_LIMIT = 2

picks = st.integers(0, 12)
sent = st.sampled_from((1, 1, 1, 2, 3))


def _key(part: str) -> str:
    return f"{{throttle}}:2:semaphore:{part}:a"


@dataclass
class Place:
    """A place in the line of the model."""

    turn: Turn
    channel: str
    till: int


@dataclass
class Model:
    """The rules: the holders with their ends; the waiting callers, in their order, with their ends."""

    now: int
    limit: int = OWN_LIMIT
    holders: dict[str, int] = field(default_factory=dict)
    line: list[Place] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def place(self, turn: Turn) -> Place | None:
        return next((place for place in self.line if place.turn == turn), None)

    def acquire(self, turn: Turn, channel: str, stay: int) -> int:
        """Return the answer of the script."""
        if turn.permit in self.holders:
            return self._extend(turn)
        if place := self.place(turn):
            place.till = self.now + max(stay, 1)
        self.settle(turn)
        if turn.permit in self.holders:
            return self._extend(turn)
        if not self.line and len(self.holders) < self.limit:
            self.holders[turn.permit] = self.now + round(turn.lease * 1000)
            return 1
        place = self.place(turn)
        if place is None and stay:
            self.line.append(Place(turn, channel, self.now + stay))
        if place is not None and not stay:
            self.line.remove(place)
        return 0 if stay else -1

    def release(self, turn: Turn) -> bool:
        place = self.place(turn)
        if place is None and turn.permit not in self.holders:
            return False
        self.holders.pop(turn.permit, None)
        if place is not None:
            self.line.remove(place)
        self.settle(turn)
        return True

    def settle(self, caller: Turn | None = None) -> None:
        """A late caller is out, the first one is in."""
        self.holders = {permit: till for permit, till in self.holders.items() if till > self.now}
        self.line = [place for place in self.line if place.till > self.now]
        while self.line and len(self.holders) < self.limit:
            first = self.line.pop(0)
            till = self.now + round(first.turn.lease * 1000)
            self.holders[first.turn.permit] = till if first.channel == LISTENED else min(till, first.till)
            if first.turn != caller and first.channel == LISTENED:
                self.hints.append(first.turn.permit)

    def _extend(self, turn: Turn) -> int:
        self.holders[turn.permit] = max(self.holders[turn.permit], self.now + round(turn.lease * 1000))
        return 1


LISTENED, UNHEARD = "listened", "unheard"


class SemaphoreMachine(RuleBasedStateMachine):
    """Programs on time and late, listening or killed, some of whose calls are sent again; limits that change."""

    client: ClassVar[Resending]
    clock: ClassVar[StoreClock]

    def __init__(self) -> None:
        super().__init__()
        self.client.times = 1
        self.client.flushall()
        self.hints: Any = self.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self.hints.subscribe(LISTENED)
        self.hints.get_message(timeout=5)
        self.clock.set(START_US)
        self.calls = SemaphoreCalls("throttle", "a", OWN_LIMIT, 60)
        self.model = Model(START_US // 1000)
        self.turns: list[tuple[Turn, str]] = []
        self.released: set[str] = set()

    def teardown(self) -> None:
        """After the work, only the proofs of carried out releases are left."""
        self.client.times = 1
        self._call(self.calls.set_limit(None))
        self.model.limit = OWN_LIMIT
        for _ in range(2):
            for turn, _ in self.turns:
                self._call(self.calls.release(turn))
        assert {key for key in self.client.scan_iter() if b":released:" not in key} == {b"{clock}"}
        self.hints.close()

    @rule(lease=st.sampled_from(LEASES), stay=st.sampled_from((0, STAY, STAY)), listens=st.booleans(), times=sent)
    def ask(self, lease: int, stay: int, listens: bool, times: int) -> None:
        """A new caller asks."""
        turn = self.calls.turn(None, lease / 1000)
        self.turns.append((turn, LISTENED if listens else UNHEARD))
        self._acquire(*self.turns[-1], stay, times)

    @precondition(lambda self: self.turns)
    @rule(pick=picks, times=sent, stay=st.sampled_from((0, STAY, STAY)))
    def look(self, pick: int, times: int, stay: int) -> None:
        """In time, late, long after it was over, or for the last time."""
        self._acquire(*self._pick(pick), stay, times)

    @precondition(lambda self: self.turns)
    @rule(pick=picks, times=sent)
    def release(self, pick: int, times: int) -> None:
        """Release a held, awaited or lost permit, or one again."""
        turn, _ = self._pick(pick)
        self.client.times = times
        expected = self.model.release(turn)
        if expected:
            self.released.add(turn.permit)
        assert bool(self._call(self.calls.release(turn))) is (expected or turn.permit in self.released)

    @precondition(lambda self: self.turns)
    @rule(pick=picks, times=sent, lease=st.sampled_from(LEASES))
    def renew(self, pick: int, times: int, lease: int) -> None:
        """Only a holder can."""
        turn, _ = self._pick(pick)
        self.client.times = times
        held = turn.permit in self.model.holders
        assert bool(self._call(self.calls.renew(turn, lease / 1000))) is held
        if held:
            self.model.holders[turn.permit] = self.model.now + lease

    @rule(limit=st.sampled_from((None, 0, 1, 2, 4)), times=sent)
    def set_limit(self, limit: int | None, times: int) -> None:
        self.client.times = times
        assert self._call(self.calls.set_limit(limit)) == 0
        self.model.limit = OWN_LIMIT if limit is None else limit
        self.model.settle()

    @rule(milliseconds=st.sampled_from((1, 500, 999, 1_000, 2_999, 5_001)))
    def wait(self, milliseconds: int) -> None:
        self.clock.move(milliseconds * 1000)
        self.model.now += milliseconds

    @rule()
    def lose_the_scripts(self) -> None:
        self.client.script_flush()

    @rule()
    def lose_everything(self) -> None:
        """The server comes back empty."""
        self.client.flushall()
        self.clock.move(0)
        self.released.clear()
        self.model = Model(self.model.now)

    @invariant()
    def the_store_agrees(self) -> None:
        waiting = {place.turn.permit: place.till for place in self.model.line}
        assert self._scores("leases") == self.model.holders
        assert list(self._scores("line")) == list(waiting)
        assert self._scores("looks") == waiting
        for part, permits in (("holders", self.model.holders), ("waiters", waiting)):
            fields: Any = self.client.hkeys(_key(part))
            assert {field.decode() for field in fields} == permits.keys()

    @invariant()
    def each_hint_went_to_whom_it_was_for(self) -> None:
        heard: list[str] = []
        while message := self.hints.get_message(timeout=int(len(heard) < len(self.model.hints))):
            heard.append(message["data"].split(b" ")[2].decode())
        assert heard == self.model.hints
        self.model.hints.clear()

    @invariant()
    def every_key_ends_but_the_limit(self) -> None:
        for key in self.client.scan_iter():
            assert (self.client.pttl(key) > 0) is (key not in {b"{clock}", _key("limit").encode()})

    def _acquire(self, turn: Turn, channel: str, stay: int, times: int) -> None:
        self.client.times = times
        expected = [self.model.acquire(turn, channel, stay) for _ in range(times)]
        assert self._call(self.calls.acquire(turn, stay / 1000, channel))[0] == expected[-1]

    def _call(self, call: Call) -> Any:
        return self.clock.execute(self.client, call)

    def _scores(self, part: str) -> dict[str, int]:
        members: Any = self.client.zrange(_key(part), 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in members}

    def _pick(self, pick: int) -> tuple[Turn, str]:
        # Recent ones are the interesting ones.
        return self.turns[-1 - pick % len(self.turns)]


@pytest.mark.slow
@pytest.mark.usefixtures("redis")
def test_any_sequence_of_calls_keeps_the_rules_of_semaphores(server: EmbeddedServer) -> None:
    """Never more holders than permits, first come first served, hints to the right callers, and nothing stays."""
    with Resending.from_url(server.url) as resending:

        class OnThisServer(SemaphoreMachine):
            client = resending
            clock = StoreClock(resending)

        run_machine(OnThisServer, examples=25, steps=40, random_steps=60)
