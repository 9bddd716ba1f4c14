"""The printed form of the library's return values, for people."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from celery_throttle.primitives.lock_calls import LockInfo
from celery_throttle.primitives.rate import AsyncReservation, Decision, Reservation
from celery_throttle.primitives.semaphore_calls import PermitInfo
from celery_throttle.store.audit import Change
from celery_throttle.store.draining import Drained
from celery_throttle.store.holders import Holder
from celery_throttle.store.identity_locks import Locked, LockStatus
from celery_throttle.store.limit_status import LimitStatus, RateStatus, RuntimeOverride
from celery_throttle.store.needs import Need
from celery_throttle.store.parked_tasks import Parked
from celery_throttle.store.unreadable import SetAside
from tests.unit.refusals import rows

NOON = datetime(2026, 11, 22, 12, 0, 5, tzinfo=timezone.utc)
TWO = NOON.replace(hour=14, second=0)
API = LimitStatus(
    name="api", key=None, permits=8, rates=(), max_parked=None, declared=True, in_force=8, override=None, paused=None,
    disabled=None, held_back=None, held=3, parked=0, next_start_in=0.0, barred_by=None,
)  # fmt: skip
ANA = RuntimeOverride("api", "ana", "", NOON, TWO)
MORE = replace(ANA, permits=20)
HOLDER = Holder("6f0c", (Need("api", None, 1), Need("tenant", "acme", 2)), "1a2b", 48.4, "q", 0, NOON)
PARKED = Parked("6f0c", "shop.render", "tenant", "acme", "celery", 3, 0)
LOCKED = Locked("6f0c", "running", NOON, 59.1, 17, None)
CHANGE = Change(
    NOON, "override", "ana", "a big day", "api", after=replace(ANA, permits=20), permits_before=8, permits_after=20
)
KEY_CHANGE = replace(CHANGE, action="disable", key="acme", after=replace(ANA, until=None), permits_after=None, why="")
NAMES = {
    **{each.__name__: each for each in (LockInfo, Decision, PermitInfo, Change, Drained, LockStatus, RateStatus)},
    **{each.__name__: each for each in (Parked, SetAside, Reservation, AsyncReservation, replace, timedelta)},
    "NOON": NOON,
    "TWO": TWO,
    "API": API,
    "ANA": ANA,
    "MORE": MORE,
    "HOLDER": HOLDER,
    "PARKED": PARKED,
    "LOCKED": LOCKED,
    "CHANGE": CHANGE,
    "KEY_CHANGE": KEY_CHANGE,
}

#: Values and their texts, in which NOON stands for that time.
PRINTED = rows(r"""
API => api 3/8
replace(API, parked=12, in_force=20, override=MORE)
    => api 3/8, 12 parked, override 20 instead of 8 by ana until 14:00 UTC
replace(API, name='tenant', key='acme', parked=1) => tenant[acme] 3/8, 1 parked
replace(API, parked=12, max_parked=50) => api 3/8, 12 parked (at most 50)
replace(API, permits=None, in_force=None) => api 3
replace(API, permits=None, in_force=0, held=0, declared=False) => api 0, no worker has declared it
replace(API, rates=(RateStatus('10/s', 1), RateStatus('5000/h', 500)), next_start_in=0.44)
    => api 3/8, rate 10/s, rate 5000/h (burst 500), next start in 0.4 s
replace(API, paused=replace(ANA, until=None, why='incident 42')) => api 3/8, paused by ana (incident 42)
replace(API, disabled=replace(ANA, until=TWO + timedelta(1))) => api 3/8, disabled by ana until 2026-11-23 14:00 UTC
replace(API, held_back=replace(ANA, by='', why='429', until=NOON)) => api 3/8, held back until 12:00:05 UTC (429)
replace(API, barred_by='6f0c') => api 3/8, task 6f0c goes first
# -- one line for any text
replace(API, paused=replace(ANA, by='a\nb', why='\x1b[31mred\r\nalert'))
    => api 3/8, paused by a\nb until 14:00 UTC (\x1b[31mred\r\nalert)
Parked('a\nb', 'c\nd', 'api', None, 'e\nf', 1, 0) => c\nd[a\nb]: place 1 in the line of api, queue e\nf
replace(HOLDER, needs=(), task_name='shop.\nrender')
    => shop.\nrender[6f0c] holds no permit since NOON, worker 1a2b, lease ends in 48 s, queue q
# -- holders, parked tasks, locks
HOLDER
    => 6f0c holds 1 permit of api and 2 permits of tenant[acme] since NOON, worker 1a2b, lease ends in 48 s, queue q
replace(HOLDER, needs=(), lease_left=-3.0, queue=None, deliveries=1)
    => 6f0c holds no permit since NOON, worker 1a2b, lease ended 3.0 s ago, started once before
PARKED => shop.render[6f0c]: place 3 in the line of tenant[acme], queue celery
replace(PARKED, task_name=None, limit=None, key=None, deliveries=2)
    => Task[6f0c]: in no limit's line, queue celery, started 2 times before
SetAside('6f0c', 'not readable', NOON, '{') => 6f0c: set aside since NOON, its record is not readable
LockStatus('ab12', '6f0c', 'pay', 'running', NOON, 59.1, 17, '1a2b', None)
    => pay[6f0c] has lock ab12, running on worker 1a2b since NOON, it ends in 59 s
LockStatus('ab12', '6f0c', None, 'queued', NOON, 5.0, 0, None, '7a1b')
    => Task[6f0c] has lock ab12, queued since NOON, it ends in 5.0 s, next 7a1b
LOCKED => 6f0c is running since NOON, the lock ends in 59 s, fencing token 17
replace(LOCKED, state='done', next_id='7a1b')
    => 6f0c is done, started NOON, the lock ends in 59 s, fencing token 17, next 7a1b
# -- changes
CHANGE => NOON ana: override api, 8 -> 20 permits, until 14:00 UTC (a big day)
KEY_CHANGE => NOON ana: disable api[acme], 8 -> any number of permits
Change(NOON, 'unlock', '', 'a\nb', task_id='6f0c', task_name='pay') => NOON unknown: unlock pay[6f0c] (a\nb)
Change(NOON, 'drop', 'ana', '', 'api', 'acme', tasks=12) => NOON ana: drop api[acme], 12 tasks
Change(NOON, 'drain', 'ana', 'bye', tasks=1) => NOON ana: drain, 1 task (bye)
Drained('a\nb', 12, 0) => a\nb: 12 tasks
Drained('celery', 1, 3) => celery: 1 task, 3 left
# -- primitives
LockInfo('me', 17, 4.96, NOON) => me since NOON, lease ends in 5.0 s, fencing token 17
PermitInfo('me', 7, 5.0, NOON) => me since NOON, lease ends in 5.0 s, ticket 7
Decision(allowed=True, retry_after=0.0, remaining=3) => allowed, 3 more now
Decision(allowed=False, retry_after=0.6, remaining=0) => refused, again in 0.6 s
Reservation(True, TWO, 0.6, 'id', None) => booked for 2026-11-22 14:00:00 UTC, in 0.6 s
AsyncReservation(False, TWO, 0.6, 'id', None) => refused, next start 2026-11-22 14:00:00 UTC, in 0.6 s
""")


@pytest.mark.parametrize(("code", "text"), PRINTED)
def test_printed_form(code: str, text: str) -> None:
    value = eval(code, dict(NAMES))
    expected = text.replace("NOON", "2026-11-22 12:00:05 UTC")
    assert str(value) == expected
    assert repr(value).startswith(f"{type(value).__name__}(")
