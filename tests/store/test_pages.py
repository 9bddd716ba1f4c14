"""Each script does a bounded amount of work; the following calls do the rest."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from celery_throttle.clients import _REAPED
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.calls import MOST_DECLARED
from celery_throttle.store.scripts import Call, execute
from celery_throttle.worker.runs import Content, Run
from celery_throttle.worker.store_side.declaring import declare_in_pages
from celery_throttle.worker.store_side.outbox import Outbox
from tests.store.caller import ended
from tests.store.cost import commands
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, check, expire, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms

#: The limit of commands in one script; a command takes the server some microseconds.
MOST_COMMANDS = 500


class Longest:
    """Makes calls one by one; how many commands the longest of them carried out."""

    def __init__(self, client: Redis) -> None:
        self.client, self.commands, self.calls = client, 0, 0

    def __call__(self, call: Call) -> Any:
        with commands(self.client) as made:
            reply = execute(self.client, call)
        self.calls += 1
        self.commands = max(self.commands, sum(made.values()))
        return reply

    # -- as a link of a worker, whose replies come at once
    def send(self, call: Call, callback: Callable[[Any], None]) -> None:
        callback(self(call))


# -- limits that are declared ------------------------------------------------------------------------------------------


def declared(link: Any, worker: TermsCaller, limits: dict[str, str], known: str = "") -> list[bytes]:
    """Declare as a worker does; the answer."""
    answers: list[Any] = []

    def declare() -> None:
        declare_in_pages(link, worker.store.declarations(known, limits.items()), declare, answers.append)

    declare()
    (answer,) = answers
    assert isinstance(answer, list)
    return answer


def test_many_limits_are_declared_in_pages(worker: TermsCaller, redis: Redis) -> None:
    many = {f"limit-{number:04}": "1" for number in range(1234)}
    link = Longest(redis)
    declared(link, worker, many)
    assert peek(redis).limits == dict.fromkeys(many, 1)
    assert (link.calls, link.commands < MOST_COMMANDS) == (1 + 1233 // MOST_DECLARED, True)
    _, *changed = declared(Longest(redis), worker, dict.fromkeys(many, "2"))
    assert dict(zip(changed[::2], changed[1::2], strict=True)) == {name.encode(): b"1" for name in many}


def test_limits_that_are_raised_at_once_start_all_parked_tasks(worker: TermsCaller, redis: Redis) -> None:
    """However many keys of them have a line."""
    limits = [Limit(f"limit-{number}", 1, key="tenant") for number in range(12)]
    for limit in limits:
        for tenant in range(30):
            needs = terms(limit).needs({"keys": {limit.name: str(tenant)}})
            worker.arrive(f"{limit.name} {tenant} runs", needs)
            worker.put(f"{limit.name} {tenant}", needs)
    link = Longest(redis)
    declared(link, worker, {limit.name: "2" for limit in limits})
    assert link.commands < MOST_COMMANDS
    started = {grant.task for _ in range(60) for grant in worker.look(100).grants}
    assert len(started) == 360
    check(peek(redis))


def test_store_emptied_between_two_pages_gets_all_of_them(worker: TermsCaller, redis: Redis) -> None:
    many = {f"limit-{number:04}": "1" for number in range(2 * MOST_DECLARED + 1)}

    class Emptied(Longest):
        def __call__(self, call: Call) -> Any:
            if self.calls == 2:
                redis.flushall()
            return super().__call__(call)

    link = Emptied(redis)
    birth, *_ = declared(link, worker, many)
    assert peek(redis).limits == dict.fromkeys(many, 1)
    assert birth == redis.hget(KEY["meta"], "birth")
    assert link.calls == 3 + 3


def test_an_error_ends_the_declaration(worker: TermsCaller) -> None:
    heard: list[Any] = []
    error = RuntimeError("BUSY")

    class Refusing:
        def send(self, _: Call, callback: Callable[[Any], None]) -> None:
            callback(error)

    pages = worker.store.declarations("", {f"limit-{number}": "1" for number in range(300)}.items())
    link: Any = Refusing()
    declare_in_pages(link, pages, pytest.fail, heard.append)
    assert heard == [error]


# -- rows and starts of a worker ---------------------------------------------------------------------------------------

KEYED = [Limit(f"keyed-{number}", 500, key="tenant") for number in range(4)]
EIGHT = [*KEYED, *(Limit(f"limit-{number}", 500) for number in range(4))]


def of_eight(tenant: int) -> Any:
    return terms(*EIGHT).needs({"keys": {limit.name: str(tenant) for limit in KEYED}})


def test_a_call_starts_fewer_of_the_tasks_that_need_more(worker: TermsCaller, steering: Steering, redis: Redis) -> None:
    """None is left out: the reply asks the caller to call again."""
    for limit in EIGHT:
        worker.know(limit)
        steering.say(limit, "pause")
    for number in range(60):
        worker.put(f"t{number}", of_eight(number % 20))
    for limit in EIGHT:
        steering.unsay(limit, "pause")
    started, most, looks = 0, 0, 0
    while started < 60:
        with commands(redis) as made:
            reply = worker.look(60 - started)
        started += len(reply.grants)
        most, looks = max(most, sum(made.values())), looks + 1
        assert reply.more or reply.wait < 0.1 or started == 60
    assert most < MOST_COMMANDS
    assert looks > 3
    check(peek(redis))


def test_outbox_sends_fewer_tasks_with_more_needs_at_once(worker: TermsCaller, redis: Redis) -> None:
    for limit in EIGHT:
        worker.know(limit)
    outbox, link = Outbox(), Longest(redis)

    def say_all() -> None:
        while outbox.urgent:
            batch = outbox.next_batch(0)
            link(worker.store.exchange("w", link.calls + 1, ("q",), batch.exchange))

    first, second = runs("first", 100), runs("second", 100)
    outbox.arrived += first
    say_all()
    assert len(peek(redis).leases) == 100
    for run in first:
        outbox.ended(run.delivery, Facts(True, Message.NOBODY, Result.SUCCESS), run.needs.text)
    for run in second:
        run.parcel = b"m"
    outbox.arrived += second
    say_all()
    store = peek(redis)
    assert not store.leases
    assert set(store.parked) == {run.request.id for run in second}
    assert link.commands < MOST_COMMANDS
    check(store)


def runs(kind: str, count: int) -> list[Run]:
    return [
        Run(
            SimpleNamespace(id=f"{kind} {number}", request_dict={}, delivery_info={}),
            Content(f"{kind} {number}", needs=of_eight(number % 20)), epoch=1, queue="q", nonce=f"w:{kind}{number}",
        )
        for number in range(count)
    ]  # fmt: skip


# -- reclaimed leases --------------------------------------------------------------------------------------------------


def test_a_page_of_lost_holders_is_bounded(worker: TermsCaller, redis: Redis) -> None:
    for limit in EIGHT:
        worker.know(limit)
    for number in range(200):
        worker.take(f"t{number}", of_eight(number % 20))
    for number in range(20):
        worker.put(f"w{number}", of_eight(number))
    expire(redis, *(f"t{number}" for number in range(200)))
    link = Longest(redis)
    while len(link(worker.store.reap(_REAPED))[1]) == _REAPED:
        pass
    assert link.commands < MOST_COMMANDS
    assert not peek(redis).used
    check(peek(redis))


# -- identity locks ----------------------------------------------------------------------------------------------------

MANY = 12


@pytest.mark.parametrize("outcome", ["done", "ignored"])
def test_many_locks_that_end_at_once_move_few_duplicates_a_call(outcome: str, redis: Redis) -> None:
    """The calls that follow move on the others."""
    once = LockCaller(redis, "dddddddd", "q")
    firsts = []
    for number in range(MANY):
        plan = plan_of(f"i{number}")
        firsts.append(once.start(f"f{number}", plan))
        once.exchange(parked=[once.parcel(f"d{number}.{other}", None, lock=plan.spec) for other in range(90)])
    with commands(redis) as made:
        once.exchange(ended=[ended(first.run, outcome) for first in firsts])
    longest, calls = sum(made.values()), 1
    while waits_for_first(redis):
        with commands(redis) as made:
            once.look(0)
        longest, calls = max(longest, sum(made.values())), calls + 1
        assert calls < 100
    assert longest < MOST_COMMANDS
    assert not peek(redis).awaited
    check(peek(redis))


def waits_for_first(redis: Redis) -> bool:
    """Return whether a duplicate still waits for the task that has ended."""
    return any(
        record.lock.get("first", "").startswith("f") and record.verdict == "follow"
        for record in peek(redis).parked.values()
    )
