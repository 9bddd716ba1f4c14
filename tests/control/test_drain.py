"""``celery throttle drain``: parked messages go back to their queues, in order, as they were."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from types import ModuleType
from typing import Any

import pytest
from kombu import compression
from kombu.exceptions import OperationalError
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.control.reader import readers
from celery_throttle.core.policy import Needs
from celery_throttle.store.draining import Drained
from celery_throttle.store.parcel import pack
from tests.control.conftest import Run, make_app, run_in
from tests.control.test_looking import API, ONE, of
from tests.store.caller import message_of
from tests.store.lock_caller import PLAN, LockCaller, plan_of
from tests.store.peek import peek
from tests.store.terms_caller import TermsCaller
from tests.store.test_pages import MOST_COMMANDS, Longest
from tests.support.waiting import until

ARGS, KWARGS = ("é", 1), {"text": "x" * 2000}


def take(app: Any, queue: str = "celery") -> Any:
    """Take a message from a queue, as a worker would; None if there is none."""
    with app.connection_for_read() as connection:
        return app.amqp.queues[queue](connection.default_channel).get(no_ack=True, accept=["json", "pickle"])


def take_all(app: Any, queue: str = "celery") -> list[str]:
    """The ids of all tasks in a queue, first come first."""
    found = []
    while (message := take(app, queue)) is not None:
        found.append(message.headers["id"])
    return found


def park(app: Any, worker: TermsCaller, task_id: str, needs: Needs, *, queue: str = "q", **options: Any) -> Any:
    """Publish a task, and park it; its message as it was."""
    app.send_task("call", ARGS, KWARGS, task_id=task_id, queue=queue, **options)
    message = take(app, queue)
    worker.put(task_id, needs, queue=queue, message=pack(message))
    return message


@pytest.fixture
def full(worker: TermsCaller) -> TermsCaller:
    """A worker of two queues; all permits are held."""
    for number in range(2):
        assert worker.arrive(f"held{number}", ONE)
    assert worker.arrive("held", of("acme"))
    return worker


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "gzip", "serializer": "pickle"},
        {"priority": 3, "headers": {"stamp": "x", "throttle": {"keys": {}}}, "retries": 2},
        {"eta": datetime(2100, 1, 1, tzinfo=timezone.utc), "reply_to": "someone", "expires": 10**9},
        {"expiration": 3600, "delivery_mode": 1},
    ],
)
def test_drained_message_is_unchanged(app: Any, full: TermsCaller, options: dict[str, Any]) -> None:
    app.conf.accept_content = ["json", "pickle"]
    before = park(app, full, "t1", ONE, **options)
    assert ThrottleControl(app).drain() == (Drained("q", 1, 0),)
    after = take(app, "q")
    assert (after.body, after.headers) == (before.body, before.headers)
    assert (after.content_type, after.content_encoding) == (before.content_type, before.content_encoding)
    assert after.decode() == before.decode()
    per_delivery = {"delivery_tag", "delivery_info"}
    assert {name: each for name, each in after.properties.items() if name not in per_delivery} == {
        name: each for name, each in before.properties.items() if name not in per_delivery
    }
    route = ("exchange", "routing_key")
    assert [after.delivery_info[name] for name in route] == [before.delivery_info[name] for name in route]
    assert take(app, "q") is None


def test_all_of_them_in_order(app: Any, full: TermsCaller, redis: Redis) -> None:
    """All reasons to wait, oldest first in each queue; more than one call takes."""
    other = TermsCaller(redis, "cccccccc", "q2")
    for number in range(130):
        needs = (ONE, of("acme"), of(f"key{number}"))[number % 3]
        if number % 3 == 2:
            other.arrive(f"held{number}", needs)
        park(app, (full, other)[number % 2], f"t{number:03}", needs, queue=("q", "q2")[number % 2])
    parked = [f"t{number:03}" for number in range(130)]
    assert set(peek(redis).parked) == set(parked)
    throttle = ThrottleControl(app)
    assert throttle.drain(dry_run=True) == throttle.drain(by="ana", why="bye") == (
        Drained("q", 65, 0), Drained("q2", 65, 0),
    )  # fmt: skip
    assert not peek(redis).parked
    assert not peek(redis).messages
    assert (take_all(app, "q"), take_all(app, "q2")) == (parked[::2], parked[1::2])
    (change,) = throttle.audit()
    assert (change.action, change.tasks, change.by, change.why) == ("drain", 130, "ana", "bye")
    assert throttle.drain() == ()


def test_drain_leaves_tasks_that_have_to_stay(app: Any, full: TermsCaller, redis: Redis) -> None:
    """A duplicate that waits for its first, a task that only gets an outcome, an unreadable record."""
    once = LockCaller(redis, "dddddddd", "q")
    app.send_task("call", ARGS, KWARGS, task_id="first", queue="q")
    once.put("first", API, lock=plan_of().spec, message=pack(take(app, "q")))
    once.put_once("duplicate", plan_of(), API)
    park(app, full, "dropped", of("acme"))
    ThrottleControl(app).drop("dropped")
    full.put("unreadable", ONE, message=b"7")
    assert ThrottleControl(app).drain(dry_run=True) == (Drained("q", 2, 2),)
    assert ThrottleControl(app).drain() == (Drained("q", 1, 3),)
    assert take_all(app, "q") == ["first"]
    assert set(peek(redis).parked) == {"duplicate", "dropped", "unreadable"}
    found = once.locked()
    assert found
    assert (found.task_id, found.state) == ("first", "queued")


def test_ids_of_many_parked_duplicates_take_short_scripts(app: Any, redis: Redis) -> None:
    """The record of each shows whether it waits for an outcome."""
    worker = LockCaller(redis, "aaaaaaaa", "q")
    worker.start("first", PLAN)
    for number in range(600):
        worker.put_once(f"duplicate {number}", PLAN)
    (reader,) = readers(app)
    reader.ask = longest = Longest(redis)
    assert len({each.task for each in reader.parked_ids(None)}) == 600
    assert longest.commands < MOST_COMMANDS


def test_drain_prints_the_count_and_publishes_with_yes(
    app: Any, control: ThrottleControl, run: Run, full: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("drain").out == run("drain", "--yes").out == "Nothing is parked.\n"
    for number in range(3):
        park(app, full, f"t{number}", ONE)
    ended = run("drain")
    assert (ended.code, ended.err) == (0, "")
    would = ["They would be published again; --yes does it."]
    assert ended.rows == [["QUEUE", "TASKS", "LEFT"], ["q", "3", "0"], would]
    queue = {"queue": "q", "tasks": 3, "left": 0, "elsewhere": 0}
    assert run("drain", "--json").json == {"done": False, "queues": [queue]}
    assert take_all(app, "q") == []
    assert control.limit("api").status().parked == 3
    full.put("unreadable", ONE, message=message_of("x"))
    monkeypatch.setitem(sys.modules, "django_celery_beat", ModuleType("django_celery_beat"))
    assert run("drain").rows[-1] == would
    ended = run("drain", "--yes", "--by", "ana", "--why", "bye")
    assert ended.rows[:2] == [["QUEUE", "TASKS", "LEFT"], ["q", "3", "1"]]
    assert ended.lines[2].startswith("django-celery-beat keeps its row celery_throttle.reap when the")
    assert ended.lines[3].startswith("The tasks that are left are duplicates")
    assert take_all(app, "q") == ["t0", "t1", "t2"]
    assert run("audit").rows[1][1:] == ["ana", "drain, 3 tasks", "bye"]
    queue = {"queue": "q", "tasks": 0, "left": 1, "elsewhere": 0}
    assert run("drain", "--yes", "--json").json == {"done": True, "queues": [queue]}


@pytest.mark.timeout(30)
def test_drain_leaves_all_in_the_store_if_its_broker(app: Any, full: TermsCaller, redis: Redis, no_broker: str) -> None:
    park(app, full, "t1", ONE)
    before = peek(redis)
    conf = {"throttle_url": app.conf.broker_url, "broker_connection_timeout": 0.2}
    ended = run_in(make_app(f"redis://{no_broker}/0", **conf), "drain", "--yes")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("Error: The broker does not answer, the other tasks stay parked: ")
    after = peek(redis)
    assert (after.hashes["records"], after.sets["lines"]) == (before.hashes["records"], before.sets["lines"])


def tripwire(what: Callable[[], None]) -> None:
    """Runs an action at the moment when a client publishes with the compression ``wire``."""

    def compress(body: bytes) -> bytes:
        what()
        return body

    compression.register(compress, bytes, "wire")


def nothing() -> None:
    """Published without a word."""


def fails() -> None:
    raise OperationalError("the broker is gone")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def _five(app: Any, full: TermsCaller) -> None:
    """Five tasks are parked; a tripwire is at the fourth."""
    tripwire(nothing)
    for number in range(5):
        park(app, full, f"t{number}", ONE, **({"compression": "wire"} if number == 3 else {}))


@pytest.mark.usefixtures("_five")
def test_a_broker_that_goes_in_the_middle(app: Any, redis: Redis) -> None:
    """The published ones have left the store; the others are in their places."""
    tripwire(fails)
    with pytest.raises(OperationalError):
        ThrottleControl(app).drain()
    store = peek(redis)
    assert store.waiting("api") == ["t3", "t4"]
    assert take_all(app, "q") == ["t0", "t1", "t2"]
    assert [each.tasks for each in ThrottleControl(app).audit()] == [3]
    tripwire(nothing)
    ThrottleControl(app).drain()
    assert take_all(app, "q") == ["t3", "t4"]


@pytest.mark.usefixtures("_five")
def test_drain_killed_in_the_middle_loses_nothing(app: Any, redis: Redis) -> None:
    """Its published messages are in their queue and, after the lease, in the line too: twice, but never lost."""
    app.conf.throttle_lease = 1.0
    tripwire(dies)
    child = os.fork()
    if not child:
        try:
            ThrottleControl(app).drain()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert sorted(peek(redis).messages) == [f"t{number}" for number in range(5)]
    assert ThrottleControl(app).limit("api").status().parked == 0
    ids = [f"t{number}" for number in range(5)]
    until(lambda: ThrottleControl(app).reap() and peek(redis).waiting("api") == ids)
    tripwire(nothing)
    assert ThrottleControl(app).drain() == (Drained("q", 5, 0),)
    assert take_all(app, "q") == ["t0", "t1", "t2", *ids]
