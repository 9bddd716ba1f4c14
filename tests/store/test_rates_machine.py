"""Any sequence of starts, and of other rates at run time: no window has more starts than the larger rate allows.

``HYPOTHESIS_EXAMPLES=2000`` runs that many random sequences; without it the same few run every time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, Reply
from tests.primitives.faults import StoreClock
from tests.store import caller
from tests.store import steering as steer
from tests.store.caller import held_by
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms
from tests.support.machines import run_machine

MS, SECOND = 1_000, 1_000_000
LATE = 100 * MS
RATES = ("10/s", "3/s", "1/s", "60/m", "7/m", "1/m", "100/h", "1/h")
#: Of which several together matter beside each other.
PAIRS = (("10/s", "100/h"), ("3/s", "7/m"), ("1/s", "100/h"))

bursts = st.integers(1, 4)
each_rate = st.tuples(st.sampled_from(RATES), bursts).map(lambda both: ((both[0],), (both[1],)))
each_pair = st.tuples(st.sampled_from(PAIRS), bursts).map(lambda both: (both[0], (1, 4 + both[1])))
some_rates = st.one_of(each_rate, each_rate, each_pair)
keys = st.sampled_from((None, "a"))
Chosen = tuple[tuple[str, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Pace:
    """A rate: so many at once, each other one so much later (us)."""

    burst: int
    spacing: Fraction

    @property
    def late(self) -> Fraction:
        return min(Fraction(LATE), self.spacing)

    def allows(self, window: int) -> Fraction:
        """Starts in a window of so many microseconds, both ends included."""
        return self.burst + (window + self.late) / self.spacing


@dataclass
class Line:
    """A key of the limit: when it had which rates, and its starts."""

    rates: list[tuple[int, tuple[Pace, ...]]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)

    def between(self, since: int, until: int) -> list[tuple[Pace, ...]]:
        """The rates that were in force then; of two at the same moment both."""
        first = max((at for at, _ in self.rates if at < since), default=self.rates[0][0])
        return [paces for at, paces in self.rates if first <= at <= until]


class RatesMachine(RuleBasedStateMachine):
    """One worker, a limit with keys and rates, and an operator that changes them."""

    client: ClassVar[Redis]
    clock: ClassVar[StoreClock]

    @initialize(declared=some_rates)
    def begin(self, declared: Chosen) -> None:
        self.client.flushall()
        self.clock.set(1_800_000_000_000_000)
        self.worker = TermsCaller(self.client, "aaaaaaaa", "q")
        self.steering = Steering(self.client)
        self.limit = Limit("mail", rate=list(declared[0]), burst=list(declared[1]), key="who")
        self.worker.declare(self.limit)
        self.declared = self._paces(self.limit)
        #: overrides of the limit, and of keys: (until, rates)
        self.said: dict[str | None, tuple[int | None, tuple[Pace, ...]]] = {}
        self.lines = {name: Line([(self.clock.now, self.declared)]) for name in "ab"}
        self.count = 0

    # -- starts --------------------------------------------------------------------------------------------------------

    @rule(who=st.sampled_from("ab"), cost=st.sampled_from((1, 1, 1, 2)), begins=st.sampled_from((True, True, False)))
    def arrive(self, who: str, cost: int, begins: bool) -> None:
        self.count += 1
        task = f"t{self.count}"
        needs = terms(self.limit, cost=cost).needs({"keys": {"mail": who}})
        arrival = self.worker.arrival(task, needs)
        reply = self.worker.exchange(asked=[arrival])
        if reply.asked[0] == Answer.GRANTED:
            self._started(who, cost, arrival, begins=begins)
            return
        self._resumed(reply)
        self._resumed(self.worker.put(task, needs))

    @rule(slots=st.integers(1, 3))
    def look(self, slots: int) -> None:
        self._resumed(self.worker.look(slots))

    @rule(who=st.sampled_from("ab"))
    def reserve(self, who: str) -> None:
        """A start is booked, within ten minutes."""
        call = self.steering.store.reserve(f"mail\x1f{who}", self.limit.declared, 1, 600 * SECOND)
        start, now = self.steering.ask(call)
        if start >= now:
            self.lines[who].starts.append((start, 1))

    def _resumed(self, reply: Reply) -> None:
        for grant in reply.grants:
            cost, _, bucket = grant.needs.partition(":")
            self._started(bucket[-1], int(cost), held_by(grant), begins=True)

    def _started(self, who: str, cost: int, run: Arrival, *, begins: bool) -> None:
        """It ends at once, so that nothing but the rates keeps others; one that does not begin is no start."""
        self.worker.end(run, "done" if begins else "never")
        if begins:
            self.lines[who].starts.append((self.clock.now, cost))

    # -- time, and the operator ----------------------------------------------------------------------------------------

    @rule(us=st.sampled_from((1, 99 * MS, 333 * MS, SECOND, 8 * SECOND, 36 * SECOND, 1800 * SECOND)))
    def time_passes(self, us: int) -> None:
        self._pass(us)

    @precondition(lambda self: self._waits())
    @rule()
    def until_the_next_start(self) -> None:
        """A parked task gets the time of its start, and starts then, under any rate."""
        for _ in range(20):
            reply = self.worker.look(0)
            self._pass(int(reply.wait * SECOND) + 1)
            before = sum(len(line.starts) for line in self.lines.values())
            self.look(1)
            if sum(len(line.starts) for line in self.lines.values()) > before:
                return
        pytest.fail("nothing starts")

    @rule(key=keys, chosen=some_rates, lasts=st.sampled_from((None, None, 5 * SECOND, 600 * SECOND)))
    def override(self, key: str | None, chosen: Chosen, lasts: int | None) -> None:
        limit = Limit("other", rate=list(chosen[0]), burst=list(chosen[1]))
        rates = [[rate.count, rate.period, burst] for rate, burst in limit.rates]
        until = "0" if lasts is None else f"+{lasts // MS}"
        self.steering.say(self._bucket(key), "override", json.dumps({"rates": rates}), until=until)
        # The store counts the end from its last millisecond.
        ends = None if lasts is None else self.clock.now // MS * MS + lasts
        self.said[key] = (ends, self._paces(limit))
        self._note()

    @rule(key=keys)
    def reset(self, key: str | None) -> None:
        assert self.steering.unsay(self._bucket(key), "override") == int(key in self.said)
        self.said.pop(key, None)
        self._note()

    def _pass(self, us: int) -> None:
        """Time goes on to each end of an override in turn."""
        until = self.clock.now + us
        ends = sorted({each for each, _ in self.said.values() if each is not None and each <= until})
        for end in ends:
            self.said = {key: said for key, said in self.said.items() if said[0] != end}
            self._note(end)
        self.clock.set(until)

    def _note(self, at: int | None = None) -> None:
        for name, line in self.lines.items():
            paces = next((self.said[key][1] for key in (name, None) if key in self.said), self.declared)
            if line.rates[-1][1] != paces:
                line.rates.append((self.clock.now if at is None else at, paces))

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def no_window_has_too_many(self) -> None:
        for line in getattr(self, "lines", {}).values():
            starts = sorted(line.starts)
            if starts and starts != getattr(line, "checked", None):
                line.checked = starts
                last, _ = starts[-1]
                for place, (first, _) in enumerate(starts):
                    self._check(line, starts[place:], first, last)

    def _check(self, line: Line, starts: list[tuple[int, int]], first: int, last: int) -> None:
        several, costs = line.between(first, last), [cost for _, cost in starts]
        extra = max(costs)  # one that costs more than the burst starts alone
        if len(set(several)) == 1:
            allowed = min(max(pace.burst, extra) - pace.burst + pace.allows(last - first) for pace in several[0])
        else:
            # Of several rates each goes on from the nearest: as a whole no more than the larger of them.
            paces = [pace for each in several for pace in each]
            larger = Pace(max(max(pace.burst, extra) for pace in paces), min(pace.spacing for pace in paces))
            allowed = larger.allows(last - first)
        assert sum(costs) <= allowed, (several, starts)

    @invariant()
    def the_next_start_is_one_spacing_away(self) -> None:
        """The next start is at most one spacing after the last one, for any earlier rate."""
        for name, line in getattr(self, "lines", {}).items():
            (_, paces), last = line.rates[-1], max((start for start, _ in line.starts), default=0)
            cost = max([1, *(cost for start, cost in line.starts if start == last)])
            longest = max((1 + max(0, cost - pace.burst)) * pace.spacing for pace in paces)
            wait = self.steering.stands(f"mail\x1f{name}").next_start_in * SECOND
            assert wait <= max(last + longest - self.clock.now, 0) + 2 * MS, (line, wait)

    # -- how it is done ------------------------------------------------------------------------------------------------

    @staticmethod
    def _bucket(key: str | None) -> str:
        return "mail" if key is None else f"mail\x1f{key}"

    @staticmethod
    def _paces(limit: Limit) -> tuple[Pace, ...]:
        return tuple(Pace(burst, Fraction(rate.period, rate.count)) for rate, burst in limit.rates)

    def _waits(self) -> bool:
        return "worker" in vars(self) and any(self.steering.stands(f"mail\x1f{name}").parked for name in "ab")


@pytest.mark.slow
@pytest.mark.timeout(3600)  # finding the smallest failing sequence takes minutes
def test_starts_under_changing_rates(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """No window has too many, no start is delayed by more than one spacing, and parked tasks start."""

    class OnThisServer(RatesMachine):
        client, clock = redis, StoreClock(redis)

    modules: tuple[Any, ...] = (caller, steer)
    for module in modules:
        monkeypatch.setattr(module, "execute", OnThisServer.clock.execute)
    run_machine(OnThisServer, examples=20, steps=40, random_steps=60)
