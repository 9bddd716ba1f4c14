"""What one script does is bounded, however much there is: the rest is done by the calls that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.store.calls import MOST_DECLARED
from celery_throttle.store.scripts import Call, execute
from celery_throttle.worker.declaring import declare_in_pages
from tests.store.cost import commands
from tests.store.peek import KEY, check, peek
from tests.store.terms_caller import TermsCaller, terms

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

#: What one script may carry out; a command takes the server some microseconds.
MOST_COMMANDS = 2000


@pytest.fixture
def worker(redis: Redis) -> TermsCaller:
    return TermsCaller(redis, "aaaaaaaa", "q")


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


def test_limits_that_are_raised_at_once_start_all_who_wait(worker: TermsCaller, redis: Redis) -> None:
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


def test_a_store_that_is_emptied_between_two_pages_hears_all_of_them(worker: TermsCaller, redis: Redis) -> None:
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
