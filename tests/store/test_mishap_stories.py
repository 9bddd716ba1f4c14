"""Unreadable records, lost workers, and a store that was away, empty or full, told as stories."""

from __future__ import annotations

import pytest

from tests.store.stories import Story, stories

ASIDE = """
the line goes on without it [garbage | empty | list | number | foreign | older]:
    take t0; park t1; park t2; spoil t1 *; end t0 slots=1 = t2; aside = t1; messages = t1#0 t2#0; waiting = -
one that no script can read is explained [garbage | empty]:
    park t1; spoil t1 *; listed = t1; look; listed = -; state t1 = set aside
    why t1 = Its record in the store is not readable, so it cannot start, and its line went on without it...
one of another release is explained [list | number | foreign | older]:
    park t1; spoil t1 *; listed = t1; look; listed = -; state t1 = set aside
    why t1 = Its record in the store is written by another release, so it cannot start...
a holder holds nothing after its lease [garbage | empty | list | number | foreign | older]:
    take t1 t2 on=gpu2:2; park t3 on=gpu2:2; spoil t1 *; expire t1; look slots=2 = t3; used = gpu2 2; end t2
    used = gpu2 1
a holder is set aside by its end [garbage | empty | list | number | foreign | older]:
    take t1; park t2; spoil t1 *; end t1 slots=1 = t2; used = gpu 1
one that may wait for so long is due no more:
    take t0; park t1 deadline=600; park t2 t3; spoil t1; end t0 slots=1 = t2; due task = -; lines = gpu t3
another delivery of it runs [garbage | empty | list | number | foreign | older]:
    take t0; park t1; spoil t1 *; end t0; arrive t1 slots=1; held = t1
the permit of a holder is free again in the call that finds its record [garbage | empty | list | number]:
    take t; spoil t *; ask new t = must_park granted
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
the other delivery goes on after any discovery [peer: ask t = is_copy, t | peer: park t; peer: look = t]:
    take t; peer: park t; spoil t needs; *; peer: end t; records = -; lines = -
the other delivery goes on after a discovery [renew t = put back; end t again | end t failed | send_back t | peer: saved t = there]:
    take t; peer: park t; spoil t needs; *; peer: look = t; peer: end t; records = -; lines = -
another delivery of a parked one goes on:
    park t slots=1 = t; peer: park t attempt=1; end t requeue = -; spoil t needs
    come_due task; peer: look = t#1; peer: end t
    lines = -
all that is unreadable at once holds up no other:
    take h0 h1 on=gpu2:2; park p0 p1 p2 p3 p4 p5 p6 p7 on=gpu2:2 wait_ms=600000; park good on=gpu2:2; spoil h0
    spoil h1; spoil p0; spoil p1; spoil p2; spoil p3; spoil p4; spoil p5; spoil p6; spoil p7; expire h0 h1; reap
    look slots=9 = good; withdraw p0 p1 p2 p3 p4 p5 p6 p7 = -; aside = h0 h1 p0 p1 p2 p3 p4 p5 p6 p7; used = gpu2 1
it is kept for a week:
    wait 0; park t1; spoil t1; look; wait 604700; reap; aside = t1; wait 200; reap; aside = -; messages = -
one that the broker keeps is there, also when it is set aside:
    take first; park t unacked; spoil t; saved t = there; saved t = there; end first slots=1 = -; saved t = there
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
a lease that ends soon has the moment, too:
    wait 0; take t; wait 599; come_back; peer: look; wait 2; peer: look; held = t; wait 3; peer: look; held = -
a call that was long on its way takes nothing for lost, as the store stood still and some leases ended:
    take t1 t2 on=gpu2:2; peer: park t3 on=gpu2:2 clock=1000; expire t1; peer: look clock=800 = -
    leases = t1 a moment, t2 long
a return during a moment gives no other:
    wait 0; take t1 t2 on=gpu2:2; expire t1; come_back; wait 2; expire t2; come_back; reap = -; wait 2.1; reap = t1 t2
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

#: A store that has lost all data grants nothing for a moment, in which holders put themselves back.
EMPTIED = """
nothing starts until the holders are back:
    wait 0; take t1; peer: take x on=gpu2:2; flush; peer: rejoin; peer: ask t2 = must_park; peer: park t2 slots=1 = -
    told 1 5000; more = False; peer: park t3 on=gpu2:2 slots=1 = -; peer: look slots=2 = -; renew t1 = put back; wait 5
    peer: look slots=2 = t3; settling = False; end t1 slots=1 = t2
"""

#: Entries of workers end by themselves.
WORKERS = """
a killed worker is forgotten after a day:
    wait 0; take t; end t; wait 86300; peer: look; stored workers = aaaaaaaa bbbbbbbb; wait 200; reap
    stored workers = bbbbbbbb
a worker that left is forgotten after an hour, as a copy of one of its calls may come:
    wait 0; look; leave; wait 3500; reap; stored workers = aaaaaaaa; wait 200; reap; stored workers = -
a worker that calls is not forgotten, else a call that is sent again would be carried out again:
    wait 0; look; wait 40000; look; wait 40000; look; wait 40000; reap; stored workers = aaaaaaaa
"""

#: A server that is out of memory refuses what takes more of it, and nothing that makes room.
FULL = """
a task is not parked, until there is room:
    take t; fill; refused park t1; make_room; again = parked; lines = gpu t1
a call that parks is refused as a whole, so its worker sends the rest without it:
    take t1 t2 on=gpu2:2; fill; gather; end t1; park t3 on=gpu2:2; refused send; end t1; used = gpu2 1
a task that is parked already is not parked again either, as a call is carried out or not:
    take t; park t1; fill; refused park t1
a task does not go back after a slow down:
    take t; fill; refused send_back t pause=1
permits go on changing hands:
    take t1; park t2; fill; end t1 slots=1 = t2; end t2 slots=1 = -; used = -
a rejected task goes back in line:
    park t1 slots=1 = t1; fill; end t1 requeue; parked = t1
leases are renewed, else permits in use would be free:
    take t; expire t; fill; renew t = renewed; leases = t long
limits are declared, else a new connection could give nothing back:
    take t; fill; deploy gpu:5; in_force gpu = 5
an answer is repeated:
    ask t = granted; fill; again = granted
holders are put back after all data was lost:
    take t; flush; deploy gpu:1; fill; renew t = put back
expired holders are cleared:
    take t1 on=gpu2:2; park t2 on=gpu2:2 slots=1 = t2; expire t1 t2; fill; reap 1 = t1; make_room; look slots=0
    come_due task; look = t2; deliveries t2 = 1
a look offers a turn, so that a dead queue at the head holds up no other:
    stranger: park theirs; park ours; fill; look = -; told 1 110; make_room; pass_over gpu q2; fill; look = ours
a new task takes a free permit:
    deploy gpu:1; fill; take t
a revoked task is withdrawn:
    take t; park t1; fill; withdraw t1 = t1#0
a parked task is dropped, which makes room:
    take t; park t1; fill; drop gpu = 1; look = t1 expired
a worker signs off:
    park t; fill; leave; peer: look = t; peer: end t; finished = -
an operator ends a pause and raises a limit:
    say gpu pause; park t; fill; unsay gpu pause = 1; say gpu override 2 = 1; in_force gpu = 2; look = t
a parked message is asked for and acknowledged:
    park t unacked; fill; saved t = there; acked t
"""

#: Without the right to publish hints all goes on, since workers look by themselves.
MUTE = """
a hint that is refused is reported once it was due:
    mute; take t1; look; hinted = True; park t2; hinted = False; end t1; hinted = False
a call takes effect without its hints:
    mute; take t1; stranger: park t2; end t1; park t3 t4; lines = gpu t2 t3 t4; stranger: look = t2
    stored workers = aaaaaaaa cccccccc
all other scripts go on:
    mute; take t1; park t2; expire t1; reap = t1; say gpu pause = 1; unsay gpu pause = 1; deploy gpu:5; look = t2
"""

LOCKS = """
a singleton without limits does not start in a store that was emptied either, as it may still run:
    wait 0; take t1; flush; peer: rejoin; peer: ask t2 = must_park; peer: park t2 slots=1 = -; told 1 5000; lock = -
    renew t1 = put back; wait 5; peer: look = -; end t1 slots=1 = t2 conclude t1
a lock that is put back waits for no delivery, which an emptied store may have lost [again | requeue | return | retry]:
    publish t1; take t1; peer: park t1; peer: look; flush; renew t1 = put back; lock = t1 running; end t1 *; lock = -
a full server lets claim, as a publish would be unchecked without it:
    fill; claim t1 = claimed; claim t2 = taken t1
an unreadable lock is free at once [garbage | empty | list | number | foreign | older]:
    claim t1; spoil_lock *; take t2 skip on=gpu
an unreadable lock goes when its time is over [garbage | empty | list | number | foreign | older]:
    claim t1; spoil_lock *; lock_ends; reap; stored locks = -
duplicates of an unreadable task get the same outcome [garbage | empty | list | number | foreign | older]:
    take t0; arrive t1 on=gpu; arrive t2 on=gpu; spoil t1 *; end t0 slots=2 = t2 conclude t0; aside = t1; waiting = -
the other delivery of an unreadable follower goes on:
    park t slots=1 = t run; park t; unlock; take other; end t again
    come_due task; look slots=1 = -; verdict t = follow; spoil t needs
    end other slots=1; look; end t; records = -
a task that runs keeps its lock after an outage, as a payment must not be made again:
    publish t1; take t1; be_away; lock_ends; claim t2 = taken t1; reap = -; renew t1 = renewed; claim t3 = taken t1
a lock of a task that was never delivered ends after an outage:
    publish t1; be_away; lock_ends; claim t2 = claimed
"""


@pytest.mark.parametrize("steps", stories(ASIDE, OUTAGE, EMPTIED, WORKERS, FULL, MUTE))
def test_a_story_of_mishaps(story: Story, steps: str) -> None:
    story.tell(steps)


@pytest.mark.parametrize("steps", stories(LOCKS))
def test_a_story_of_locks_in_mishaps(lock_story: Story, steps: str) -> None:
    lock_story.tell(steps)
