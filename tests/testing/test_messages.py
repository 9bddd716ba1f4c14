"""Each assertion fails with the expectation, the state instead, and the output of explain and status."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import dedent
from typing import Any
from unittest.mock import ANY

import pytest

from celery_throttle import StoreUnavailable
from celery_throttle.testing import ThrottleTest
from tests.testing.shop import API, MAILS, TENANT, make_shop

SOON: Any = {"within": 0.05}
#: Times, leases, and the parts of names that differ from run to run.
DIFFERS = [
    (r"w(\d)@test/\d+/[0-9a-f]+", r"w\1"),
    (r"\d+ s unless", "60 s unless"),
    (r"in \d+ s, fencing token \d+", "in 60 s, fencing token 1"),
    (r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00| UTC)", "THEN"),
    (r"outside:[0-9a-f-]{36}", "outside"),
]


def shown(text: str, **results: Any) -> str:
    """Return a message with the names of results in place of their ids."""
    for name, result in results.items():
        text = text.replace(result.id, name).replace(result.id[:8], name)
    for pattern, instead in DIFFERS:
        text = re.sub(pattern, instead, text)
    return text


def failing(assertion: Callable[..., object], *args: Any, **options: Any) -> str:
    """Return the message of an assertion that fails."""
    with pytest.raises(AssertionError) as raised:
        assertion(*args, **options)
    return str(raised.value)


def assert_first_lines(results: dict[str, Any], *failures: tuple[Callable[..., object], list[Any], Any, str]) -> None:
    """Assert that each assertion, with its arguments and options, fails with this first line."""
    found = [shown(failing(assertion, *args, **options), **results) for assertion, args, options, _ in failures]
    assert [text.splitlines()[0] for text in found] == [line for *_, line in failures]


def renders(kit: ThrottleTest, number: int) -> list[Any]:
    """Publish calls; each of the first two has begun before the next call."""
    results: list[Any] = []
    for video in range(number):
        results.append(kit.app.tasks["shop.render"].delay(video))
        kit.settle()
    return results


def message(text: str) -> str:
    """Return an expected message, written with indentation."""
    return dedent(text).strip()


@pytest.mark.usefixtures("worker")
def test_parked_and_held(kit: ThrottleTest, tasks: Any) -> None:
    with kit.gate():
        results = dict(zip("ABCD", renders(kit, 4), strict=True))
        a, _, c, d = results.values()
        kit.assert_parked(c)
        kit.assert_parked(d, behind=API, place=2)
        kit.assert_line("api", [c, d])
        kit.assert_held(tasks["render"], 2)
        assert shown(failing(kit.assert_parked, a, **SOON), **results) == message("""
            shop.render[A] is not parked: it is at a gate on w1@test.
              shop.render[A]: held
              It runs, or is about to, on worker w1, and holds 1 permit of api.
              Its lease ends in 60 s unless its worker renews it.
              status: api 2/2, 2 parked
        """)
        assert shown(failing(kit.assert_parked, d, place=1, **SOON), **results) == message("""
            shop.render[D] has place 2 behind api, not 1: the line is C, D.
              shop.render[D]: parked
              Limit api is full: 2 of 2 permits are held.
              1 task is before it in the line of api, of queue 'celery'.
              status: api 2/2, 2 parked
        """)
        assert shown(failing(kit.assert_line, "api", [d, c], **SOON), **results) == message("""
            The line of api is C, D, not D, C: place 1 differs.
              shop.render[C]: parked
              Limit api is full: 2 of 2 permits are held.
              status: api 2/2, 2 parked
        """)
        assert_first_lines(
            results,
            (kit.assert_line, ["api", [c, d, a]], SOON, "The line of api is C, D, not C, D, A: place 3 differs."),
            (kit.assert_held, ["api", 1], SOON, "api has 2 permits in use, not 1, held by A, B."),
            (kit.assert_held, ["crawls", 1], SOON, "crawls has 0 permits in use, not 1, held by no task."),
            (
                kit.assert_parked,
                [c],
                {"behind": TENANT, "key": "t1", **SOON},
                "shop.render[C] is parked behind api, not behind tenant[t1].",
            ),
        )


@pytest.mark.usefixtures("worker")
def test_started(kit: ThrottleTest, tasks: Any) -> None:
    with kit.gate() as gate, kit.hold(API, 1):
        a, b = tasks["render"].delay(1), tasks["render"].delay(2)
        kit.assert_started(a)
        kit.assert_not_started(b)
        assert shown(failing(kit.assert_not_started, a), A=a) == message("""
            shop.render[A] has started: it is at a gate on w1@test.
              shop.render[A]: held
              It runs, or is about to, on worker w1, and holds 1 permit of api.
              Its lease ends in 60 s unless its worker renews it.
              status: api 2/2, 1 parked
        """)
        assert shown(failing(kit.assert_started, b, **SOON), B=b) == message("""
            shop.render[B] has not started within 0.05 s: it is parked behind api, place 1.
              shop.render[B]: parked
              Limit api is full: 2 of 2 permits are held.
              status: api 2/2, 1 parked
        """)
        assert failing(gate.wait_for, 2, **SOON) == message("""
            1 of 2 bodies came to the gate within 0.05 s.
              status: api 2/2, 1 parked
        """)
    early = tasks["render"].apply_async((3,), countdown=1000)
    kit.drain()
    assert_first_lines(
        {"E": early},
        (kit.assert_started, [early], SOON, "shop.render[E] has not started within 0.05 s: it waits for its ETA THEN."),
        (kit.assert_started, ["1a2b3c4d5e"], SOON, "Task 1a2b3c4d was not published in this test."),
    )


@pytest.mark.usefixtures("worker")
def test_most_at_once(kit: ThrottleTest) -> None:
    with kit.gate():
        a, b = renders(kit, 2)
        kit.assert_most_at_once(API, 2)
        kit.assert_most_at_once(API, 3, at_most=True)
        assert shown(failing(kit.assert_most_at_once, API, 1), A=a, B=b) == message("""
            api: 2 at once, not 1: A, B overlapped.
              shop.render[A]: held
              It runs, or is about to, on worker w1, and holds 1 permit of api.
              Its lease ends in 60 s unless its worker renews it.
              shop.render[B]: held
              It runs, or is about to, on worker w1, and holds 1 permit of api.
              Its lease ends in 60 s unless its worker renews it.
              status: api 2/2
        """)
        advice = "Publish more tasks, or have their bodies wait at a gate()."
        assert_first_lines(
            {},
            (kit.assert_most_at_once, [API, 3], {}, f"api was never full: 2 of 3 at once. {advice}"),
            (kit.assert_most_at_once, [MAILS, 1], {"at_most": True}, f"mails was never full: 0 of 1 at once. {advice}"),
        )


@pytest.mark.usefixtures("worker")
def test_dropped_and_sent_back(kit: ThrottleTest, tasks: Any) -> None:
    with kit.hold("crawls"):
        late = tasks["crawl"].delay("t1")
        kit.assert_parked(late)
        is_parked = "it is parked behind crawls, place 1."
        hint = "Its start_deadline is 60 s: throttle.advance(61)."
        assert_first_lines(
            {"L": late},
            (kit.assert_dropped, [late], SOON, f"shop.crawl[L] is not dropped: {is_parked} {hint}"),
            (kit.assert_sent_back, [late], SOON, f"shop.crawl[L] was not sent back: {is_parked}"),
        )
        kit.control.drop(late, by="ana", why="a test")
    kit.assert_dropped(late, "dropped by ana")
    back = tasks["sync"].delay()
    kit.assert_sent_back(back, pauses=30)
    kit.settle()
    assert shown(failing(kit.assert_sent_back, back, pauses=60), B=back) == message("""
        shop.sync[B] pauses its limits for 30 s, not for 60 s.
          shop.sync[B]: parked
          Limit shop.sync is held back since THEN until THEN by B, because: rate limited.
          status: shop.sync 0/1, 1 parked, held back by B until THEN (rate limited)
    """)
    runs = tasks["render"].delay(1)
    kit.drain()
    reason = "'dropped by ana: a test', not 'expired'"
    assert_first_lines(
        {"L": late, "R": runs},
        (kit.assert_dropped, [late, "expired"], {}, f"shop.crawl[L] was dropped for the reason {reason}."),
        (kit.assert_dropped, [runs], SOON, "shop.render[R] is not dropped: it ended with SUCCESS."),
    )


@pytest.mark.usefixtures("worker")
def test_ran(kit: ThrottleTest, tasks: Any) -> None:
    charge = tasks["charge"]
    charge.delay(7, 2)
    kit.drain()
    charge.delay(order_id=8)
    kit.assert_ran(charge.s(order_id=7, amount=2))
    kit.assert_ran(charge.s(8, ANY))
    kit.assert_ran(charge, times=2)
    kit.assert_ran(charge.s(9), times=0)
    assert failing(kit.assert_ran, charge.s(7, amount=2), times=2, **SOON).splitlines()[0] == (
        "shop.charge(7, amount=2) ran once, not 2 times: shop.charge(7, 2) on w1@test, shop.charge(order_id=8) on "
        "w1@test."
    )
    assert failing(kit.assert_ran, tasks["total"], **SOON) == message("""
        shop.total ran 0 times, not once: no body of the task began.
          status: no limit is in use
    """)


@pytest.mark.usefixtures("worker")
def test_locks(kit: ThrottleTest, tasks: Any) -> None:
    charge, remind, index = (tasks[name] for name in ("charge", "remind", "index"))
    with kit.gate():
        a, b, other = charge.delay(7), charge.delay(7, 2), charge.delay(8)
        kit.assert_duplicate(b, of=a)
        kit.assert_locked(charge.s(7))
        first = index.delay("a")
        kit.assert_started(first)
        last = index.delay("b")
        kit.assert_parked(last)
        kit.assert_duplicate(last, of=first)
        no_duplicate = "its identity shop.charge: {'order_id': 8} is not shop.charge: {'order_id': 7}."
        waits = "shop.index[B] is not parked behind api: it is waiting for its identity lock."
        assert_first_lines(
            {"B": last, "O": other},
            (kit.assert_parked, [last], {"behind": API, **SOON}, waits),
            (kit.assert_duplicate, [other], {"of": a}, f"shop.charge[O] is no duplicate: {no_duplicate}"),
        )
    kit.drain()
    kit.assert_not_locked(charge.s(7))
    again = charge.delay(7)
    kit.drain()
    unlocked = "the last body of the task ended with SUCCESS, and remember is off."
    assert_first_lines(
        {"B": again},
        (kit.assert_duplicate, [again], {"of": a}, "shop.charge[B] is no duplicate: it ended with SUCCESS."),
        (kit.assert_locked, [charge.s(7)], SOON, f"shop.charge(7) is not locked: {unlocked}"),
        (kit.assert_locked, [remind.s(1)], SOON, "shop.remind(1) is not locked: no body has ended."),
    )
    remembered = remind.delay(1)
    kit.drain()
    skipped = remind.delay(1)
    kit.assert_duplicate(skipped, of=remembered)
    assert shown(failing(kit.assert_not_locked, remind.s(1), **SOON), R=remembered) == message("""
        shop.remind(1) is locked: R is done, started THEN, the lock ends in 60 s, fencing token 1.
          status: no limit is in use
    """)


@pytest.mark.usefixtures("worker")
def test_tools(kit: ThrottleTest, tasks: Any) -> None:
    with kit.gate():
        results = dict(zip("ABC", renders(kit, 3), strict=True))
        assert shown(failing(kit.drain, 0.05), **results).splitlines()[0] == (
            "Not drained within 0.05 s, bodies run: shop.render[A] on w1@test, shop.render[B] on w1@test. Open their "
            "gate, or write drain(60)."
        )
        assert shown(failing(kit.forget_all), **results).splitlines()[:2] == [
            "Permits are held: A, B. Call drain() before, or end the block of hold().",
            "  shop.render[A]: held",
        ]
        for permits, wanted in ((None, "1 permit"), (3, "3 permits")):
            assert failing(kit.hold(API, permits).__enter__) == message(f"""
                api: {wanted} cannot be held: 2 of 2 are in use.
                  status: api 2/2, 1 parked
            """)
        assert (
            failing(kit.hold(MAILS).__enter__).splitlines()[0] == "mails: 1 permit cannot be held: it has only a rate."
        )
    kit.drain()
    lost = tasks["render"].apply_async((1,), queue="other")
    assert shown(failing(kit.settle, 0.05), L=lost) == message("""
        Not settled within 0.05 s: shop.render[L]: it is in queue 'other'.
          status: no limit is in use
    """)


def test_without_a_worker(kit: ThrottleTest, tasks: Any) -> None:
    result = tasks["render"].delay(1)
    no_worker = message("""
        No worker runs, so no task starts: use the fixture throttle_worker, or with throttle.run_worker().
          status: no limit is in use
    """)
    for assertion in (kit.settle, kit.drain):
        assert failing(assertion) == no_worker
    assert failing(kit.assert_not_started, result) == no_worker
    assert shown(failing(kit.assert_started, result, **SOON), R=result) == message("""
        shop.render[R] has not started within 0.05 s: it is in queue 'celery', and no worker runs.
          status: no limit is in use
    """)


@pytest.mark.usefixtures("worker")
def test_while_the_store_is_cut_off(kit: ThrottleTest, tasks: Any) -> None:
    with kit.cut_store():
        result = tasks["render"].delay(1)
        kit.settle()  # the worker has the message
        assert shown(failing(kit.assert_started, result, **SOON), R=result).splitlines() == [
            "shop.render[R] has not started within 0.05 s: it waits in worker w1@test for a slot, or for the store.",
            ANY,
        ]
        with pytest.raises(StoreUnavailable):
            kit.assert_parked(result, **SOON)
    kit.assert_started(result)


NEEDS = [
    (
        {"permits": {"tenant[t2]": 5}},
        "takes 5 permits of tenant[t1] and 5 permits of crawls, not 5 permits of tenant[t2].",
    ),
    ({"permits": {}}, "takes 5 permits of tenant[t1] and 5 permits of crawls, not no permit."),
    ({"identity": {"tenant_id": "t1"}}, "has the identity None, not {'tenant_id': 't1'}."),
    ({"deadline": 30}, "has the start_deadline 60.0, not 30."),
]


@pytest.mark.parametrize(("options", "differs"), NEEDS, ids=str)
def test_needs(options: dict[str, Any], differs: str) -> None:
    kit = ThrottleTest(make_shop())
    crawl = kit.app.tasks["shop.crawl"]
    kit.assert_needs(crawl.s("t1", pages=5), permits={"tenant[t1]": 5, "crawls": 5}, identity=None, deadline=60)
    assert failing(kit.assert_needs, crawl.s("t1", pages=5), **options) == f"shop.crawl('t1', pages=5) {differs}"
