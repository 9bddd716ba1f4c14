"""Unreadable records and outages of the store, told as stories: each costs its own task alone."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.store.gate_story import GateStory
from tests.store.lock_story import LockStory
from tests.store.stories import stories

ASIDE = """
the line goes on without it [garbage | empty | list | number | foreign | older]:
    take t0; park t1; park t2; spoil t1 *; end t0 slots=1 = t2; aside = t1; messages = t1#0 t2#0; waiting = -
a holder holds nothing after its lease [garbage | empty | list | number | foreign | older]:
    take t1 t2 on=gpu2:2; park t3 on=gpu2:2; spoil t1 *; expire t1; look slots=2 = t3; used = gpu2 2; end t2
    used = gpu2 1
a holder is set aside by its end [garbage | empty | list | number | foreign | older]:
    take t1; park t2; spoil t1 *; end t1 slots=1 = t2; used = gpu 1
another delivery of it runs [garbage | empty | list | number | foreign | older]:
    take t0; park t1; spoil t1 *; end t0; arrive t1 slots=1; held = t1
another delivery that waited for it goes on:
    take t; peer: park t; spoil t needs; expire t; peer: look = t; aside = t
of a record that is no record both messages are kept [garbage | empty | list | number | foreign | older]:
    take t; peer: park t; spoil t *; expire t; peer: look = -; aside = t; second_messages = t#0
    lapse aside:t; peer: reap; second_messages = -
a run goes on beside an unreadable delivery:
    take t; peer: park t attempt=1; spoil t second; renew t = renewed; why_aside = t: not readable: second
    end t; records = -; lapse aside:t; peer: reap; second_messages = -; messages = -
an expected retry survives an unreadable delivery:
    take t; end t at_broker; take t attempt=1; spoil t needs; peer: ask t = has_run; finished = 0 t
the other delivery goes on after any discovery [peer: ask t = parked, t | peer: park t; peer: look = t]:
    take t; peer: park t; spoil t needs; *; peer: end t; records = -; lines = -
the other delivery goes on after a discovery [renew t = put back; end t again | end t failed | send_back t | peer: saved t = there]:
    take t; peer: park t; spoil t needs; *; peer: look = t; peer: end t; records = -; lines = -
it does not take the message of a new one along:
    park t1; spoil t1; look; take t0; park t1; lapse aside:t1; reap; messages = t1#0
"""  # noqa: E501 - a title with its words

#: Workers cannot renew while the store is away, so leases that ended in an outage prove nothing about them.
OUTAGE = """
the first look after an outage reclaims nothing, and looks again when the moment is over:
    take t1 t2 on=gpu2:2; peer: park t3 on=gpu2:2; be_away; peer: look = -; leases = t1 a moment, t2 a moment
    told 1 4100; end_moment; peer: look slots=2 = t3; held = t3
the reaper reclaims nothing after an outage:
    take t; be_away; reap = -; leases = t a moment; end_moment; reap = t
while others call a lease that ended is lost:
    take t1; peer: park t2; expire t1; peer: look = t2
a worker that is back from an outage takes none for lost, though another one has called before:
    take t1; peer: park t2; expire t1; peer: come_back; peer: look = -; leases = t1 a moment
a moment is given once:
    take t1 t2 on=gpu2:2; end_moment; expire t2; come_back; leases = t1 over, t2 a moment
a moment ends though no worker calls:
    wait 0; take t; be_away; reap = -; wait 4.001; reap = t
the first renewal leaves the others a moment:
    take t1 on=gpu2:2; peer: take t2 on=gpu2:2; be_away; renew t1 = renewed; leases = t1 long, t2 a moment; reap = -
    peer: renew t2 = renewed; leases = t1 long, t2 long
a second delivery waits after an outage, in which the broker was away, too:
    take t; be_away; peer: ask t = must_park; renew t = renewed
"""

LOCKS = """
duplicates of an unreadable task get the same outcome [garbage | empty | list | number | foreign | older]:
    start t0; arrive t1 on=gpu; arrive t2 on=gpu; spoil t1 *; end t0 slots=2 = t2 conclude t0; aside = t1; waiting = -
the other delivery of an unreadable follower goes on:
    put t slots=1 = t run; put t; unlock; start other; end t again slots=1 = -; verdict t = follow; spoil t needs
    end other slots=1; look; end t; records = -
a task that runs keeps its lock after an outage, as a payment must not be made again:
    publish t1; start t1; be_away; lock_ends; claim t2 = taken t1; reap = -; renew t1 = renewed; claim t3 = taken t1
a lock of a task that was never delivered ends after an outage:
    publish t1; be_away; lock_ends; claim t2 = claimed
"""


@pytest.mark.parametrize("steps", stories(ASIDE, OUTAGE))
def test_a_story_of_mishaps(redis: Redis, request: pytest.FixtureRequest, steps: str) -> None:
    GateStory(redis, lambda: request.getfixturevalue("clock")).tell(steps)


@pytest.mark.parametrize("steps", stories(LOCKS))
def test_a_story_of_locks_in_mishaps(redis: Redis, request: pytest.FixtureRequest, steps: str) -> None:
    LockStory(redis, lambda: request.getfixturevalue("clock")).tell(steps)
