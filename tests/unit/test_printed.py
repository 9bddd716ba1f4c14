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

NOON = datetime(2026, 11, 22, 12, 0, 5, tzinfo=timezone.utc)
TWO = NOON.replace(hour=14, second=0)
API = LimitStatus(
    name="api", key=None, permits=8, rates=(), max_parked=None, declared=True, in_force=8, override=None, paused=None,
    disabled=None, held_back=None, held=3, parked=0, next_start_in=0.0, barred_by=None,
)  # fmt: skip
ANA = RuntimeOverride("api", "ana", "", NOON, TWO)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "api 3/8"),
        (
            {"parked": 12, "in_force": 20, "override": replace(ANA, permits=20)},
            "api 3/8, 12 parked, override 20 instead of 8 by ana until 14:00 UTC",
        ),
        ({"name": "tenant", "key": "acme", "parked": 1}, "tenant[acme] 3/8, 1 parked"),
        ({"parked": 12, "max_parked": 50}, "api 3/8, 12 parked (at most 50)"),
        ({"permits": None, "in_force": None}, "api 3"),
        ({"permits": None, "in_force": 0, "held": 0, "declared": False}, "api 0, no worker has declared it"),
        (
            {"rates": (RateStatus("10/s", 1), RateStatus("5000/h", 500)), "next_start_in": 0.44},
            "api 3/8, rate 10/s, rate 5000/h (burst 500), next start in 0.4 s",
        ),
        ({"paused": replace(ANA, until=None, why="incident 42")}, "api 3/8, paused by ana (incident 42)"),
        (
            {"disabled": replace(ANA, until=TWO + timedelta(days=1))},
            "api 3/8, disabled by ana until 2026-11-23 14:00 UTC",
        ),
        (
            {"held_back": replace(ANA, by="", why="rate limited", until=NOON + timedelta(seconds=30))},
            "api 3/8, held back until 12:00:35 UTC (rate limited)",
        ),
        ({"barred_by": "6f0c"}, "api 3/8, task 6f0c goes first"),
    ],
)
def test_a_limit(changes: dict[str, object], text: str) -> None:
    assert str(replace(API, **changes)) == text  # type: ignore[arg-type]  # one case each


def test_printed_value_is_one_line_for_any_text() -> None:
    said = replace(ANA, by="a\nb", why="\x1b[31mred\r\nalert")
    assert str(replace(API, paused=said)) == r"api 3/8, paused by a\nb until 14:00 UTC (\x1b[31mred\r\nalert)"
    assert "\n" not in str(Parked("a\nb", "c\nd", "api", None, "e\nf", 1, 0))


HOLDER = Holder("6f0c", (Need("api", None, 1), Need("tenant", "acme", 2)), "1a2b", 48.4, "celery", 0, NOON)
PARKED = Parked("6f0c", "shop.render", "tenant", "acme", "celery", 3, 0)
LOCKED = Locked("6f0c", "running", NOON, 59.1, 17, None)
CHANGE = Change(
    NOON, "override", "ana", "their big day", "api", after=replace(ANA, permits=20), permits_before=8, permits_after=20
)
BOOKED = (True, TWO, 0.6, "id", None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            replace(HOLDER, needs=(), task_name="shop.\nrender"),
            (
                r"shop.\nrender[6f0c] holds no permit since 2026-11-22 12:00:05 UTC"
                ", worker 1a2b, lease ends in 48 s, queue celery"
            ),
        ),
        (
            HOLDER,
            (
                "6f0c holds 1 permit of api and 2 permits of tenant[acme] since 2026-11-22 12:00:05 UTC"
                ", worker 1a2b, lease ends in 48 s, queue celery"
            ),
        ),
        (
            replace(HOLDER, needs=(), lease_left=-3.0, queue=None, deliveries=1),
            (
                "6f0c holds no permit since 2026-11-22 12:00:05 UTC, worker 1a2b, lease ended 3.0 s ago, "
                "started once before"
            ),
        ),
        (PARKED, "shop.render[6f0c]: place 3 in the line of tenant[acme], queue celery"),
        (
            replace(PARKED, task_name=None, limit=None, key=None, deliveries=2),
            "Task[6f0c]: in no limit's line, queue celery, started 2 times before",
        ),
        (
            SetAside("6f0c", "not readable", NOON, "{"),
            "6f0c: set aside since 2026-11-22 12:00:05 UTC, its record is not readable",
        ),
        (CHANGE, "2026-11-22 12:00:05 UTC ana: override api, 8 -> 20 permits, until 14:00 UTC (their big day)"),
        (
            replace(CHANGE, action="disable", key="acme", after=replace(ANA, until=None), permits_after=None, why=""),
            "2026-11-22 12:00:05 UTC ana: disable api[acme], 8 -> any number of permits",
        ),
        (
            Change(NOON, "unlock", "", "a\nb", task_id="6f0c", task_name="shop.charge"),
            "2026-11-22 12:00:05 UTC unknown: unlock shop.charge[6f0c] (a\\nb)",
        ),
        (
            Change(NOON, "drop", "ana", "", "api", "acme", tasks=12),
            "2026-11-22 12:00:05 UTC ana: drop api[acme], 12 tasks",
        ),
        (Change(NOON, "drain", "ana", "bye", tasks=1), "2026-11-22 12:00:05 UTC ana: drain, 1 task (bye)"),
        (Drained("a\nb", 12, 0), "a\\nb: 12 tasks"),
        (Drained("celery", 1, 3), "celery: 1 task, 3 left"),
        (
            LockStatus("ab12", "6f0c", "shop.charge", "running", NOON, 59.1, 17, "1a2b", None),
            "shop.charge[6f0c] has lock ab12, running on worker 1a2b since 2026-11-22 12:00:05 UTC, it ends in 59 s",
        ),
        (
            LockStatus("ab12", "6f0c", None, "queued", NOON, 5.0, 0, None, "7a1b"),
            "Task[6f0c] has lock ab12, queued since 2026-11-22 12:00:05 UTC, it ends in 5.0 s, next 7a1b",
        ),
        (LOCKED, "6f0c is running since 2026-11-22 12:00:05 UTC, the lock ends in 59 s, fencing token 17"),
        (
            replace(LOCKED, state="done", next_id="7a1b"),
            ("6f0c is done, started 2026-11-22 12:00:05 UTC, the lock ends in 59 s, fencing token 17, next 7a1b"),
        ),
        (LockInfo("me", 17, 4.96, NOON), "me since 2026-11-22 12:00:05 UTC, lease ends in 5.0 s, fencing token 17"),
        (PermitInfo("me", 7, 5.0, NOON), "me since 2026-11-22 12:00:05 UTC, lease ends in 5.0 s, ticket 7"),
        (Decision(allowed=True, retry_after=0.0, remaining=3), "allowed, 3 more now"),
        (Decision(allowed=False, retry_after=0.6, remaining=0), "refused, again in 0.6 s"),
        (Reservation(*BOOKED), "booked for 2026-11-22 14:00:00 UTC, in 0.6 s"),
        (
            AsyncReservation(*(False, *BOOKED[1:])),
            "refused, next start 2026-11-22 14:00:00 UTC, in 0.6 s",
        ),
    ],
)
def test_the_rest(value: object, text: str) -> None:
    assert str(value) == text
    assert repr(value).startswith(f"{type(value).__name__}(")
