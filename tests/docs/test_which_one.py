"""What "Which one do I need?" promises, with the code of that page and a real worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.pages import app_of
from tests.support.kit import new_app, throttle_celery_app, throttle_server
from tests.support.waiting import until

if TYPE_CHECKING:
    from celery_throttle.testing import ThrottleTest

__all__ = ["throttle_celery_app", "throttle_server"]

APP = new_app("shop")
SHOP = app_of("howto/which-one.md", APP)

pytestmark = [pytest.mark.throttle_worker(concurrency=16), pytest.mark.usefixtures("throttle_worker")]
APP.conf.task_routes = {}  # the page has a queue of its own, which the kit's worker does not consume


def states(*results: Any) -> list[str]:
    return [each.state for each in results]


def test_a_limit_runs_every_call(throttle: ThrottleTest) -> None:
    render = SHOP["render"]
    with throttle.gate():
        results = [render.delay(number) for number in range(6)]
        throttle.assert_held(render, 2)
        throttle.assert_line(render, results[2:])
    throttle.drain()
    assert states(*results) == ["SUCCESS"] * 6


def test_a_key_keeps_the_order_of_each_account(throttle: ThrottleTest) -> None:
    book = SHOP["book"]
    with throttle.gate():
        _, second, third = [book.delay("a", amount) for amount in range(3)]
        throttle.assert_started(book.delay("b", 1))
        throttle.assert_line(book, [second, third], key="a")
    throttle.drain()
    throttle.assert_ran(book, times=4)


def test_a_singleton_gives_the_first_result(throttle: ThrottleTest) -> None:
    sync = SHOP["sync"]
    with throttle.gate():
        first = sync.delay(7)
        throttle.assert_started(first)
        assert sync.delay(7).id == first.id
    throttle.drain()
    assert sync.delay(7).id != first.id


def test_a_call_replaces_one_that_does_not_run_yet(throttle: ThrottleTest) -> None:
    preview = SHOP["preview"]
    first = preview.apply_async((7, "a"), countdown=60)
    with throttle.gate():
        second = preview.delay(7, "b")
        throttle.assert_dropped(first)
        throttle.assert_started(second)
        assert preview.delay(7, "c").id == second.id
    throttle.drain()
    throttle.assert_ran(preview, times=1)


def test_of_the_calls_during_a_run_the_newest_runs(throttle: ThrottleTest) -> None:
    reindex = SHOP["reindex"]
    with throttle.gate():
        first = reindex.delay(7, "a")
        throttle.assert_started(first)
        between, last = reindex.delay(7, "b"), reindex.delay(7, "c")
        throttle.assert_not_started(last)
        throttle.assert_dropped(between)
    throttle.drain()
    assert states(first, between, last) == ["SUCCESS", "REVOKED", "SUCCESS"]


def test_a_debounced_call_runs_once_and_not_beside_a_run(throttle: ThrottleTest) -> None:
    reindex = SHOP["reindex"]
    results = [SHOP["edited"](7, text) for text in ("a", "ab", "abc")]
    with throttle.gate() as gate:
        gate.wait_for(1)
        throttle.assert_ran(reindex.s(7, "abc"), times=1)
        late = [reindex.apply_async((7, text), countdown=0.1) for text in ("abcd", "abcde")]
        throttle.assert_not_started(late[1])
    late[1].get(timeout=10)
    assert states(*results, *late) == ["REVOKED", "REVOKED", "SUCCESS", "REVOKED", "SUCCESS"]
    throttle.assert_ran(reindex, times=2)


def test_a_call_that_waits_too_long_is_revoked_while_it_is_parked(throttle: ThrottleTest) -> None:
    quote = SHOP["quote"]
    with throttle.gate():
        throttle.assert_started(quote.delay("A"))
        late = quote.delay("B")
        throttle.assert_parked(late)
        throttle.advance(61)
        throttle.assert_dropped(late, "expired")


def test_a_success_is_remembered_for_its_time(throttle: ThrottleTest) -> None:
    charge = SHOP["charge"]
    first = charge.delay(17, 5)
    throttle.drain()
    assert charge.delay(17, 6).id == first.id
    throttle.advance(3601)
    assert charge.delay(17, 6).id != first.id


def test_a_periodic_task_is_skipped_where_it_is_sent(throttle: ThrottleTest, caplog: pytest.LogCaptureFixture) -> None:
    poll = SHOP["poll"]
    with throttle.gate(), caplog.at_level(logging.INFO):
        first = poll.delay()
        throttle.assert_started(first)
        throttle.assert_duplicate(poll.delay(), of=first)
        assert f"is a duplicate of {first.id}: skip" in caplog.text
    throttle.drain()
    assert states(poll.delay()) == ["REVOKED"]  # of a second beat, late
    throttle.advance(121)
    again = poll.delay()
    throttle.drain()
    assert states(again) == ["SUCCESS"]


def test_a_task_sent_by_name_is_skipped_by_its_worker(throttle: ThrottleTest, caplog: pytest.LogCaptureFixture) -> None:
    with throttle.gate(), caplog.at_level(logging.INFO):
        first = SHOP["poll"].delay()
        throttle.assert_started(first)
        by_name = APP.send_task("shop.poll")
        until(lambda: by_name.state == "REVOKED")
        assert f"shop.poll[{by_name.id}] does not run (skip): {first.id} has its lock" in caplog.text


def test_tasks_of_one_queue_share_a_limit(throttle: ThrottleTest) -> None:
    with throttle.gate():
        results = [SHOP[name].delay("/") for name in ("cut", "encode") * 3]
        throttle.assert_held(SHOP["video"], 4)
        throttle.assert_line(SHOP["video"], results[4:])


def test_a_rate_of_each_user_begins_with_its_burst(throttle: ThrottleTest) -> None:
    export = SHOP["export"]
    results = [export.delay("ana", report) for report in range(22)]
    throttle.assert_ran(export, times=20)
    throttle.assert_line(export, results[20:], key="ana")
    throttle.advance(120)
    throttle.assert_ran(export, times=21)
    throttle.assert_started(export.delay("bob", 1))


@pytest.mark.parametrize(("tenant", "at_once"), [("acme", 12), ("other", 2)])
def test_a_cost_gives_each_plan_its_number(tenant: str, at_once: int, throttle: ThrottleTest) -> None:
    with throttle.gate() as gate:
        for number in range(14):
            SHOP["call_api"].delay(tenant, number)
        gate.wait_for(at_once)
        throttle.settle()
        throttle.assert_ran(SHOP["call_api"], times=at_once)


def test_an_override_of_a_key_gives_a_plan_its_number(throttle: ThrottleTest) -> None:
    fetch, plan = SHOP["fetch"], SHOP["plan"]
    with throttle.gate():
        for number in range(14):
            fetch.delay("acme", number)
            fetch.delay("other", number)
        throttle.assert_held(plan, 2, key="acme")
        SHOP["buys_gold"]("acme")
        throttle.assert_held(plan, 12, key="acme")
        throttle.assert_held(plan, 2, key="other")


def test_urgent_tasks_find_permits_that_the_others_may_not_take(throttle: ThrottleTest) -> None:
    nightly, now = SHOP["nightly"], SHOP["now"]
    with throttle.gate():
        results = [nightly.delay(number) for number in range(9)]
        throttle.assert_line(SHOP["bulk"], results[6:])
        throttle.assert_started(now.delay(1))
        throttle.assert_started(now.delay(2))
        waits = now.delay(3)
        throttle.assert_parked(waits, behind=SHOP["gpu"], place=1)


def test_urgent_tasks_take_more_turns(throttle: ThrottleTest) -> None:
    work, turns = SHOP["work"], "turns"
    with throttle.hold(turns):
        others = [work.delay("other", number) for number in range(3)]
        urgent = [work.delay("urgent", number) for number in range(6)]
        order = [others[0], *urgent[:5], others[1], urgent[5], others[2]]
        throttle.assert_line(turns, order)


@pytest.mark.parametrize("priorities", [(0, 9), (9, 0)])
def test_a_parked_task_ignores_its_priority(priorities: tuple[int, int], throttle: ThrottleTest) -> None:
    render = SHOP["render"]
    with throttle.hold(render):
        line = []
        for priority in priorities:
            line.append(render.apply_async((priority,), priority=priority))
            throttle.assert_parked(line[-1], place=len(line))
        throttle.assert_line(render, line)
