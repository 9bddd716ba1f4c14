"""Claims: they last seconds until the message was sent or has come to a worker, told as stories."""

from __future__ import annotations

import pytest

from celery_throttle.store.calls import CLAIMED_FOR
from celery_throttle.store.identity_locks import read_locks
from tests.primitives.faults import StoreClock
from tests.store.lock_caller import KEEP_LAST, PLAN, LockCaller
from tests.store.stories import Story, stories

SENT = """
a call that is never published is free after seconds, and leaves nothing:
    wait 0; claim t1; lasts = seconds; claim t2 = taken t1; wait 11; lock = -; claim t2 = claimed; reap
    give_up t2 = 1; empty
a call that was sent keeps its lock:
    wait 0; claim t1; sent t1 = 1; lasts = long; wait 3000; claim t2 = taken t1; wait 601; lock = -
a lock that lasts less than a claim does is over in time:
    wait 0; claim t1 expires lock_ttl=2 least=2; sent t1 least=2; wait 3; lock = -
a duplicate that waits for a call that was never published runs:
    wait 0; claim t1; arrive t2 = -; verdict t2 = follow; wait 11; look = t2 run
a call that was sent after its claim has ended changes nothing:
    wait 0; claim t1; wait 11; sent t1 = 0; lock = -; claim t2 = claimed; sent t1 = 0; lock = t2 queued; lasts = seconds
a message of a claim that has ended follows the call that has claimed since:
    wait 0; publish t1 unconfirmed; wait 11; publish t2; arrive t1 = -; verdict t1 = follow; take t2
    end t2 slots=1 = t1 conclude t2; end t1; empty
a late confirmation changes no lock of a task that runs [return_existing | expires | started]:
    wait 0; publish t1 * unconfirmed; claim t1 *; take t1; mark; sent t1; as_marked; end t1 ignored
a late confirmation brings no lock back [end t1 | end t1 failed | end t1 ignored | expire t1; reap | peer: unlock]:
    wait 0; claim t1; take t1; *; lock = -; sent t1 = 0; lock = -
a late confirmation lengthens no memory:
    wait 0; claim t1 remember=60; take t1 remember=60; end t1; mark; sent t1 = 0; as_marked; lock = t1 done
"""

CAME = """
a task that has come to a worker keeps its lock, without its publisher [arrive | park]:
    take t0@other on=gpu; publish t1 unconfirmed; lasts = seconds; * t1 on=gpu = -; lasts = long
a task that runs keeps its lock, without its publisher:
    wait 0; publish t1 unconfirmed; take t1; wait 500; claim t2 = taken t1; end t1 retry; lasts = long
until expires, it lasts from its claim, without its publisher:
    wait 0; publish t1 expires unconfirmed; wait 5; take t1; end t1; wait 3594; lock = t1 done; wait 2; lock = -
until expires, the confirmation counts:
    wait 0; publish t1 expires; mark; wait 5; take t1; as_marked; end t1; as_marked
a task whose copy is parked has its lock again at once, for long:
    take t0@other on=gpu; publish t1; arrive t1 on=gpu; unlock t1; claim t1 = claimed; lasts = long
"""

RETRIED = """
a retry whose publisher ends before it is sent holds no lock for long:
    wait 0; publish t1; take t1; claim t1 = ours; wait 11; expire t1; reap; lock = -; claim t2 = claimed
a retry that was sent keeps the lock of its lost run:
    wait 0; publish t1; take t1; claim t1 = ours; sent t1 = 1; wait 11; expire t1; reap; lock = t1 queued; lasts = long
a claim for a retry shortens nothing [claim t1 | claim t1; sent t1 least=1]:
    wait 0; publish t1; mark; *; as_marked; take t1; claim t1; sent t1; claim t1; expire t1; reap; lasts = long
a confirmation of a retry counts when its run has ended:
    wait 0; publish t1 lock_ttl=60; take t1; claim t1 lock_ttl=60; end t1 retry; sent t1 least=360000; lasts_hours 100
"""

NEXT = """
a next call that is never published is next for seconds:
    wait 0; take t1; claim t2 keep_last; next = t2; wait 11; next = -; end t1; lock = -; reap; empty
a next call that is never published gives its place back to the one before it:
    wait 0; take t1 keep_last; publish t2 keep_last; arrive t2 = -; claim t3 keep_last = replaces t2; wait 11
    renew t1; next = t2; end t1 slots=1 = t2 run
an older call is not replaced by a next call that was never published:
    wait 0; take t1 keep_last; publish t2 keep_last; claim t3 keep_last = replaces t2; wait 11; arrive t2 = -
    verdict t2 = next; end t1 slots=1 = t2 run
a next call that was claimed a moment ago has the lock for that moment:
    wait 0; take t1; claim t2 keep_last; end t1; lock = t2 queued; lasts = seconds; wait 11; lock = -
a next call that was sent has the lock for long:
    wait 0; take t1; claim t2 keep_last; sent t2 = 1; wait 500; end t1; lock = t2 queued; lasts = long
a next call that was sent after it had the lock keeps the lock for long:
    wait 0; take t1; claim t2 keep_last; end t1; sent t2 = 1; lasts = long
a next call that has come keeps its place, without its publisher:
    wait 0; take t1 keep_last; publish t2 keep_last unconfirmed; arrive t2 = -; wait 11; next = t2
    end t1 slots=0 = -; lasts = long; look = t2 run
a next call that has come and is published again keeps its place:
    wait 0; take t1 keep_last; publish t2 keep_last unconfirmed; arrive t2 = -; claim t2 keep_last; wait 11
    next = t2; end t1 slots=0 = -; lasts = long
the newest call that is never published leaves the lock to the one that is parked:
    wait 0; take t0@other on=gpu; publish t1 replace; arrive t1 on=gpu; claim t2 replace = replaces t1; wait 11; reap
    lock = t1 queued; lasts = long; end t0 slots=1 = t1 run
"""

UNSENT = """
a task that raised RateLimited waits while a newer call may not be published [replace | keep_last]:
    wait 0; publish t1 *; take t1; send_back t1 pause=5; claim t2 * = replaces t1; verdict t1 = follow
    give_up t2 = 1; verdict t1 = run; wait 6; look = t1 run; end t1; empty
a parked task has its lock back when the claim of a newer one ends [replace | keep_last]:
    wait 0; take b@other on=gpu; publish t1 *; arrive t1 on=gpu; claim t2 * = replaces t1; verdict t1 = follow
    wait 11; reap; verdict t1 = run; end b slots=1 = t1 run; end t1; empty
an older call that arrives waits while the newest may not be published [replace | keep_last | raise | skip]:
    wait 0; publish t1 * unconfirmed; wait 11; claim t2 *; arrive t1 = -; verdict t1 = follow; wait 11; look = t1 run
    end t1; empty
a call sent by name waits while the call that has the lock may not be published [raise | skip]:
    wait 0; claim t1 *; arrive t2 * = -; wait 11; look = t2 run; end t2; empty
a call sent by name runs when the call that has the lock was not published [raise | skip]:
    claim t1 *; arrive t2 * = -; verdict t2 = follow; give_up t1 = 1; look = t2 run; end t2; empty
an older call is replaced once the newest has come, not before [replace | keep_last]:
    take b@other on=gpu; publish t1 *; publish t2 *; arrive t1 on=gpu = -; verdict t1 = follow; look = -
    arrive t2 on=gpu = -; verdict t1 = replaced; look = t1 replaced t2
a duplicate is skipped once the first has come, not before:
    publish t1 skip; arrive t2 skip = -; verdict t2 = follow; look = -; take t1; look = t2 skip t1
a duplicate raises once the first has come, not before:
    publish t1 raise; arrive t2 raise = -; verdict t2 = follow; look = -; take t1; look = t2 duplicate t1
a duplicate of a call with other options ends with its outcome [skip | raise]:
    publish t1 remember=60; arrive t2 * = -; take t1; end t1 slots=1 = t2 conclude t1
a task that is lent out while a newer call is not published runs in the end:
    wait 0; take t1 keep_last; publish t2 keep_last; arrive t2 = -; lend t2 = t2; claim t3 keep_last; not_drained t2
    wait 11; end t1 slots=1 = t2 run; end t2; empty
"""


@pytest.mark.parametrize("steps", stories(SENT, CAME, RETRIED, NEXT, UNSENT))
def test_a_story_of_claims(lock_story: Story, steps: str) -> None:
    lock_story.tell(steps)


def test_a_confirmation_is_about_one_claim_not_about_a_task_id(once: LockCaller) -> None:
    first = once.publish("t1", PLAN)
    once.unlock("same")
    once.claim("t1", PLAN)
    assert once.sent("t1", first) == 0
    found = once.locked()
    assert found
    assert found.expires_in <= CLAIMED_FOR


def test_operators_see_no_next_task_that_has_never_come(once: LockCaller, clock: StoreClock) -> None:
    once.start("t1", KEEP_LAST)
    once.claim("t2", KEEP_LAST)
    clock.move(int(CLAIMED_FOR + 1) * 1_000_000)
    _, page = read_locks(clock.execute(once.client, once.store.locks("")))
    found = once.locked()
    assert found
    assert [found.next_id, *(each.next_id for each in page)] == [None, None]
