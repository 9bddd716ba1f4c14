"""The line of a fair semaphore of two permits, as stories: calls one after the other, on a clock of the test's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from celery_throttle.primitives.semaphore_calls import SemaphoreCalls, Turn
from tests.primitives.faults import Resending, StoreClock
from tests.store.stories import stories

#: Callers in capitals wait on a channel that is subscribed, others are killed programs. A lease is 5 s without
#: another number, and a place in line lasts for 3 s. Holders are shown with the seconds that are left.
STORIES = """
permits are given in the order of the line:
    A asks = held; B asks = held; C asks = waits; D asks = waits; line = C D
    A releases = yes; holders = B:5 C:5; line = D; hints = C; B releases = yes; holders = C:5 D:5; hints = D; line = -
a caller that does not wait leaves no place, and gets no permit before the line:
    A asks 1 = held; B asks = held; C asks once = refused; line = -; C asks = waits; D asks = waits; after 1
    E asks once = refused; holders = B:4 C:5; line = D; hints = C; D asks once = refused; line = -
a caller that asks again keeps its place:
    A asks; B asks; C asks = waits; D asks = waits; after 2; D asks; C asks = waits; line = C D; after 2
    A releases; holders = B:1 C:5; hints = C; line = D
a caller that is late keeps its place, unless another call has removed it:
    A asks 9; B asks 9; C asks; after 4; C asks = waits; D asks = waits; line = C D
    after 3; E asks once = refused; line = -
the place of a caller that has not asked for too long is passed over:
    A asks; B asks; C asks; D asks; after 2; D asks; after 1; A releases; holders = B:2 D:5; hints = D; line = -
the first that asks after a lease gets its permit, also at its last look, without a hint:
    A asks 1; B asks 1; C asks; D asks; after 1; C asks = held; holders = C:5 D:5; hints = D; line = -
    E asks; after 5; E asks once = held; hints = -
a permit that a killed program is handed lasts until its next look was due:
    A asks; B asks; c asks; d asks 1; after 1; A releases; B releases; holders = c:2 d:1; hints = -
a holder that asks again has its whole lease, never a shorter one:
    A asks = held; after 1; A asks = held; holders = A:5; A renews 9 = yes; A asks = held; holders = A:9; line = -
only a holder can renew:
    A asks; B asks; C asks; A renews 1 = yes; holders = A:1 B:5; C renews 1 = no; D renews 1 = no
    after 1; C asks = held; A renews 1 = no; A releases = no; holders = B:4 C:5
a release also leaves the line, and gives all that is free to it:
    A asks 1; B asks; C asks; D asks; E asks; C releases = yes; line = D E; after 1
    B releases = yes; holders = D:5 E:5; hints = D E; B releases = yes; F releases = no
a limit that is set counts at once, and takes no permit away:
    A asks; B asks; C asks; D asks; limit 0; A releases; holders = B:5; line = C D; limit 1; holders = B:5; B releases
    holders = C:5; hints = C; limit 2; holders = C:5 D:5; hints = D; limit 4; E asks = held; limit none; F asks = waits
a limit that is set gives away the permits whose lease is over:
    A asks 1; B asks 2; C asks; after 1; limit 1; holders = B:1; line = C; after 1; limit 1; holders = C:5; hints = C
a clock that is set back does not change the order:
    A asks; B asks; C asks; after -9; D asks; line = C D; A releases; hints = C
nothing is left of a server that comes back empty:
    A asks; B asks; C asks; all is lost; A renews 5 = no; A releases = no; C asks = held; holders = C:5; line = -
"""


class Line:
    """The callers, and the state of the store."""

    def __init__(self, client: Resending) -> None:
        self.client, self.clock = client, StoreClock(client)
        # Far enough away that no key ends by the real clock.
        self.clock.set(4_000_000_000_000_000)
        self.calls, self.turns = SemaphoreCalls("throttle", "a", 2, 60), dict[str, Turn]()
        self.heard: Any = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self.heard.subscribe("listened")
        self.heard.get_message(timeout=5)

    def tell(self, step: str) -> str:
        """Carry out a step; return its answer."""
        found = ""
        match step.split():
            case ["after", seconds]:
                self.clock.move(int(seconds) * 1_000_000)
            case ["all", "is", "lost"]:
                self.client.flushall()
                self.clock.move(0)
            case ["limit", number]:
                self._send(self.calls.set_limit(None if number == "none" else int(number)))
            case ["line"]:
                self.scores("looks")
                found = " ".join(self.scores("line"))
            case ["holders"]:
                ends = {name: end - self.clock.now // 1000 for name, end in self.scores("leases").items()}
                found = " ".join(f"{name}:{left // 1000}" for name, left in sorted(ends.items()) if left > 0)
            case ["hints"]:
                found = " ".join(self.hints())
            case [name, "asks", *how]:
                lease = next((int(each) for each in how if each != "once"), 5)
                turn = self.turn(name, lease)
                channel = "listened" if name.isupper() else "unheard"
                answer, *_ = self._send(self.calls.acquire(turn, 0 if "once" in how else 3, channel))
                found = {1: "held", 0: "waits", -1: "refused"}[answer]
            case [name, "renews", seconds]:
                found = "yes" if self._send(self.calls.renew(self.turn(name), int(seconds))) else "no"
            case [name, "releases"]:
                found = "yes" if self._send(self.calls.release(self.turn(name))) else "no"
            case _:
                raise ValueError(step)
        return found

    def turn(self, name: str, lease: float = 5) -> Turn:
        return self.turns.setdefault(name, self.calls.turn(name, lease))

    def scores(self, part: str) -> dict[str, int]:
        """Return the callers in a part of the store; those in both parts of a pair are the same."""
        pairs = {"leases": "holders", "line": "waiters", "looks": "waiters"}
        members: Any = self.client.zrange(_key(part), 0, -1, withscores=True)
        assert set(self.client.hkeys(_key(pairs[part]))) == {member for member, _ in members}
        return {member.decode()[16:]: int(score) for member, score in members}

    def hints(self) -> Iterator[str]:
        self.client.publish("listened", "the end")
        while (message := self.heard.get_message(timeout=5))["data"] != b"the end":
            yield message["data"].decode().split(" ")[2][16:]

    def end(self) -> None:
        """After the work, only the proofs of releases are left, and until then each key but the limit ends."""
        for key in self.client.scan_iter():
            assert (self.client.pttl(key) > 0) is (key not in (b"{clock}", _key("limit").encode()))
        self._send(self.calls.set_limit(None))
        for turn in (*self.turns.values(), *self.turns.values()):
            self._send(self.calls.release(turn))
        assert {key for key in self.client.scan_iter() if b":released:" not in key} == {b"{clock}"}
        self.heard.close()

    def _send(self, call: Any) -> Any:
        return self.clock.execute(self.client, call)


def _key(part: str) -> str:
    return f"{{throttle}}:3:semaphore:{part}:a"


@pytest.mark.parametrize("times", [1, 3], ids=["", "each call is sent three times"])
@pytest.mark.parametrize("steps", stories(STORIES))
def test_line(resending: Resending, redis: Redis, steps: str, times: int) -> None:
    redis.flushall()
    line = Line(resending)
    resending.times = times
    for step in filter(None, map(str.strip, re.split(r";|\n", steps))):
        said, _, wanted = step.partition(" = ")
        answer = line.tell(said)
        assert not wanted or (answer or "-") == wanted, f"{step}, but it is {answer}"
    line.end()
