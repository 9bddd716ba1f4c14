"""``celery throttle runnable``, ``ThrottleControl.runnable()``, ``celery_throttle_runnable_tasks``."""

from __future__ import annotations

import random
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport import virtual
from kombu.transport.redis import Channel
from redis import Redis

from celery_throttle import ConfigurationError, Limit, StoreUnavailable, ThrottleControl
from celery_throttle.control import runnable
from celery_throttle.control.runnable import Runnable
from celery_throttle.core.naming import outside_queue
from celery_throttle.embedded import EmbeddedServer
from tests.control.conftest import Run, make_app, run_in
from tests.control.test_looking import API, ONE, TENANT, fill, names, of
from tests.control.test_metrics import read
from tests.store.caller import started
from tests.store.cost import commands
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, expire
from tests.store.terms_caller import TermsCaller, terms
from tests.support.waiting import until
from tests.support.workers import Workers

BOTH = terms(API, TENANT)


def work(app: Any, queue: str = "q") -> Runnable:
    (found,) = ThrottleControl(app).runnable(queue)
    assert found.queue == queue
    return found


def counts(app: Any, queue: str = "q") -> tuple[int | None, int, int, int | None]:
    found = work(app, queue)
    return found.messages, found.running, found.ready, found.runnable


def publish(app: Any, queue: str, count: int, **options: Any) -> None:
    for _ in range(count):
        app.send_task("call", queue=queue, **options)


# -- counted tasks -----------------------------------------------------------------------------------------------------


def test_messages_running_and_ready(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.arrive("t0", ONE)
    for number in range(5):
        worker.put(f"w{number}", ONE)
    publish(app, "q", 3)
    assert counts(app) == (3, 1, 1, 5)  # of the five that wait, one may start
    assert str(work(app)) == "q: 5 runnable, 3 in the broker, 1 running, 1 ready"
    ended = run("runnable", "q")
    assert (ended.code, ended.err) == (0, "")
    assert ended.rows == [["QUEUE", "RUNNABLE", "IN BROKER", "RUNNING", "READY"], ["q", "5", "3", "1", "1"]]
    (row,) = run("runnable", "q", "--json").json
    assert row.keys() == names(Runnable)
    assert row == {"queue": "q", "messages": 3, "running": 1, "ready": 1, "runnable": 5, "at_least": False}


def test_throttled_tasks_keep_no_machine_up(app: Any, worker: TermsCaller) -> None:
    runs = [worker.arrive(f"t{number}", ONE) for number in range(2)]
    for number in range(40):
        worker.put(f"w{number}", ONE)
    assert counts(app) == (0, 2, 0, 2)
    for each in runs:
        assert each
        worker.end(each)
    assert counts(app) == (0, 0, 2, 2)
    ThrottleControl(app).limit("api").pause()
    assert counts(app) == (0, 0, 0, 0)
    ThrottleControl(app).limit("api").disable()
    assert counts(app) == (0, 0, 0, 0)  # it is paused
    ThrottleControl(app).limit("api").resume()
    assert counts(app) == (0, 0, 40, 40)


def test_a_rate_that_is_not_due(app: Any, worker: TermsCaller) -> None:
    mail = terms(Limit("mail", rate="1/h", burst=3)).same
    for number in range(9):
        worker.put(f"w{number}", mail)
    assert work(app).ready == 3
    assert len(started(worker.look(9))) == 3
    assert (work(app).running, work(app).ready) == (3, 0)


def test_by_queue(app: Any, worker: TermsCaller) -> None:
    worker.put("a", ONE, queue="q")
    worker.put("b", ONE, queue="other")
    worker.put("c", ONE, queue="other")
    found = {each.queue: each.ready for each in ThrottleControl(app).runnable()}
    assert found == {"celery": 0, "q": 1, "other": 1}  # in the order in which they came


def test_lines_that_share_a_limit_go_on_in_order_of_arrival(app: Any, worker: TermsCaller) -> None:
    both = terms(API, Limit("wide", 5, key="tenant"))
    for number, tenant in enumerate("abab"):
        worker.put(f"w{number}", both.needs({"keys": {"wide": tenant}}), queue=tenant)
    assert {each.queue: each.ready for each in ThrottleControl(app).runnable("a", "b")} == {"a": 1, "b": 1}


def test_a_lost_worker_counts_until_its_permit_is_reclaimed(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """Where idle machines are stopped, no other event would start one to reclaim it."""
    for task in ("t1", "t2", "w"):
        worker.arrive(task, ONE)
    expire(redis, "t1")
    expire(redis, "t2")
    assert counts(app) == (0, 2, 0, 2)
    ThrottleControl(app).reap()
    assert counts(app) == (0, 0, 1, 1)


def test_permits_outside_of_tasks_are_of_no_queue(app: Any, worker: TermsCaller) -> None:
    outside = TermsCaller(worker.client, "cccccccc", outside_queue("cccccccc"))
    outside.arrive("o1", ONE)
    outside.put("o2", ONE, outside=True)
    worker.put("w", ONE)
    assert {each.queue: (each.running, each.ready) for each in ThrottleControl(app).runnable()} == {"celery": (0, 0)}
    outside.withdraw("o2")
    assert counts(app) == (0, 0, 1, 1)


def test_task_that_waits_for_a_slot_alone(app: Any, worker: TermsCaller) -> None:
    """They are due the outcome that they do not run: their callers wait until a worker comes to report it."""
    fill(worker, 8)
    ThrottleControl(app).limit("api").drop()
    assert counts(app) == (0, 2, 6, 8)
    assert cut(app) == 0
    assert len(worker.look(9).grants) == 6
    assert work(app).ready == 0


def test_task_that_did_not_start_in_time(app: Any, worker: TermsCaller) -> None:
    """The permits that it needed do not matter."""
    fill(worker, 2)
    worker.put("late", ONE, wait_ms=1)

    def told() -> bool:
        worker.look(0)  # the next caller sees that its time has passed
        return work(app).ready == 1

    until(told, timeout=5)
    assert worker.look(1).grants[0].expired


def test_more_of_them_than_are_read(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runnable, "_FEW", 2)
    fill(worker, 8)
    ThrottleControl(app).limit("api").drop()
    assert work(app).ready == 4
    assert cut(app) == 1


def test_task_that_waits_for_the_outcome_of_another(app: Any, redis: Redis) -> None:
    once = LockCaller(redis, "dddddddd", "q")
    plan = plan_of()
    once.start("first", plan)
    once.put_once("second", plan)
    assert [each.task_id for each in ThrottleControl(app).parked()] == ["second"]
    assert counts(app) == (0, 1, 0, 1)


# -- compared with the starts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_as_many_as_start(app: Any, worker: TermsCaller, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runnable, "_FEW", (100, -1)[seed % 2])  # all in one call, or line by line
    dice = random.Random(seed)
    count = dice.randint(0, 25)
    running = []
    for number in range(count):
        what = dice.choice([ONE, of(dice.choice("abc")), BOTH.needs({"keys": {"tenant": dice.choice("abc")}})])
        running.append(worker.arrive(f"t{number}", what))
    for each in filter(None, running):
        if dice.random() < 0.6:
            worker.end(each)
    if dice.random() < 0.5:
        ThrottleControl(app).limit("api").override(dice.randint(1, 9))
    before = work(app)
    assert before.running == worker.client.zcard(KEY["leases"])
    begun = 0
    while found := started(worker.look(50)):
        begun += len(found)
    assert before.ready == begun
    assert work(app).ready == 0


# -- bounded -----------------------------------------------------------------------------------------------------------


def cut(app: Any) -> float:
    return read(ThrottleControl(app).metrics())["celery_throttle_cut"]["",]


def test_many_keys_are_one_call(app: Any, worker: TermsCaller, redis: Redis) -> None:
    for number in range(180):
        worker.put(f"w{number}", of(f"k{number % 90}"))
    with commands(redis) as calls:
        assert work(app).ready == 90
    assert calls["evalsha"] < 15
    assert cut(app) == 0


def test_more_than_is_read(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runnable, "MOST", 30)
    monkeypatch.setattr(runnable, "_LEAST", 3)
    monkeypatch.setattr(runnable, "_FEW", 5)
    wide, narrow = terms(Limit("wide", 50)).same, terms(Limit("narrow", 2)).same
    for number in range(40):
        worker.put(f"w{number}", wide)
        worker.put(f"n{number}", narrow)
    assert work(app).ready == 15 + 2
    assert cut(app) == 1
    ThrottleControl(app).limit("wide").pause()
    assert work(app).ready == 2
    assert cut(app) == 0  # the unread part of `narrow` could not start
    monkeypatch.setattr(runnable, "_MOST_LINES", 0)
    assert work(app).ready == 0
    assert cut(app) == 1


def test_lines_that_cannot_go_on_are_not_read(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """Full, paused, or not due: each would be one call more."""
    for number in range(200):
        worker.arrive(f"t{number}", of(f"k{number % 100}"))
    mail = terms(Limit("mail", rate="1/h")).same
    for number in range(3):
        worker.arrive(f"m{number}", mail)
    worker.put("w", terms(Limit("idle", 1)).same)
    with commands(redis) as before:
        assert work(app).running == 101
        assert work(app).ready == 1
    ThrottleControl(app).limit("idle").pause()
    with commands(redis) as calls:
        assert work(app).running == 101
        assert work(app).ready == 0
    assert before["evalsha"] < 25
    assert calls["evalsha"] == before["evalsha"] - 2
    ThrottleControl(app).limit("mail").disable()
    assert work(app).ready == 2


def test_limits_that_are_not_among_those_looked_at(
    app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in "abcdef":
        worker.arrive(key, BOTH.needs({"keys": {"tenant": key}}))
    ThrottleControl(app).limit("api").override(5)
    monkeypatch.setattr(runnable, "MOST", 4)
    assert work(app).ready == 3


# -- the broker --------------------------------------------------------------------------------------------------------


def test_all_priorities_of_a_queue_in_redis(app: Any) -> None:
    app.conf.broker_transport_options = {"priority_steps": [0, 5, 9]}
    publish(app, "q", 2)
    publish(app, "q", 3, priority=9)
    assert counts(app) == (5, 0, 0, 5)


def test_the_queues_that_are_known(server: EmbeddedServer, worker: TermsCaller) -> None:
    """Those of the configuration, of tasks that run or could start, and those that are named."""
    app = make_app(server.url, task_queues=[Queue("video"), Queue("mail"), Broadcast("all")])
    worker.arrive("t", ONE)
    publish(app, "elsewhere", 1)
    text = ThrottleControl(app).metrics(queues=["elsewhere"])
    assert set(read(text)["celery_throttle_runnable_tasks"]) == {("video",), ("mail",), ("q",), ("elsewhere",)}
    assert {each.queue for each in ThrottleControl(app).runnable("mail", "elsewhere")} == {"mail", "elsewhere"}
    assert run_in(app, "metrics", "--queue", "elsewhere").out.count('queue="elsewhere"') == 2


def test_as_metrics(app: Any, worker: TermsCaller) -> None:
    worker.arrive("t", ONE)
    publish(app, "q", 2)
    found = read(ThrottleControl(app).metrics())
    assert found["celery_throttle_runnable_tasks"] == {("celery",): 0, ("q",): 3}
    assert found["celery_throttle_queue_messages"] == {("celery",): 0, ("q",): 2}


def test_a_store_without_an_app_has_no_broker(server: EmbeddedServer, worker: TermsCaller, app: Any) -> None:
    worker.arrive("t", ONE)
    ended = run_in(app, "runnable", "--url", server.url, "--prefix", "test")
    assert ended.rows[1:] == [["q", "?", "?", "1", "0"]]
    assert (
        str(Runnable("q", None, 1, 0, None))
        == "q: not known, the broker does not report its messages; 1 running, 0 ready"
    )
    ended = run_in(app, "metrics", "--url", server.url, "--prefix", "test")
    assert read(ended.out)["celery_throttle_runnable_tasks"] == {}


@pytest.mark.parametrize("broker", ["redis://{}/0", "amqp://{}//"])
def test_messages_are_not_known_of_a_broker_that(
    server: EmbeddedServer, worker: TermsCaller, no_broker: str, broker: str
) -> None:
    worker.arrive("t", ONE)
    app = make_app(server.url, throttle_url=server.url, broker_url=broker.format(no_broker))
    before = monotonic()
    assert counts(app) == (None, 1, 0, None)
    assert monotonic() - before < 8
    text = ThrottleControl(app).metrics()
    assert read(text)["celery_throttle_runnable_tasks"] == {}
    assert read(text)["celery_throttle_holders"] == {("",): 1}


def test_broker_without_queue_lengths(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    """kombu itself returns 0 for all those that it asks for no number."""
    monkeypatch.setattr(Channel, "_size", virtual.Channel._size)
    worker.arrive("t", ONE)
    assert counts(app) == (None, 1, 0, None)


# -- names that are mistaken -------------------------------------------------------------------------------------------


def test_a_queue_that_does_not_exist_is_an_error(app: Any, run: Run) -> None:
    """Not 0, by which an autoscaler would stop all workers."""
    app.conf.task_queues = [Queue("video"), Queue("mail")]
    with pytest.raises(ConfigurationError, match=r"^No queue 'vidoe', did you mean 'video'\? Known queues: .*mail and"):
        ThrottleControl(app).runnable("video", "vidoe")
    ended = run("runnable", "vidoe", "--json")
    assert (ended.code, ended.out) == (1, "")
    assert "did you mean 'video'?" in ended.err
    assert "name it in task_queues or task_routes" in ended.err


def route(name: str, *_: Any, **__: Any) -> str | None:
    return {"call": "by-function"}.get(name)


def fails_to_route(_: str, args: tuple[Any, ...], *__: Any, **___: Any) -> str:
    return str(args[0])


@pytest.mark.parametrize(
    ("conf", "queue"),
    [
        ({}, "celery"),
        ({"task_default_queue": "main"}, "main"),
        ({"task_queues": [Queue("video", routing_key="v.#")]}, "video"),
        ({"task_routes": {"call": "short"}}, "short"),
        ({"task_routes": {"feeds.*": {"queue": "feeds", "priority": 3}}}, "feeds"),
        ({"task_routes": {"feeds.*": {"queue": Queue("feeds")}}}, "feeds"),
        ({"task_routes": ([("feeds.*", {"queue": "feeds"}), ("web.*", "web")],)}, "web"),
        ({"task_routes": [{"queue": "everything"}, {"a": {"queue": "b"}}]}, "b"),
        ({"task_routes": (fails_to_route, route)}, "by-function"),
        ({"task_routes": route}, "by-function"),
        ({"beat_schedule": {"x": {"task": "call", "schedule": 60, "options": {"queue": "nightly"}}}}, "nightly"),
        ({"task_annotations": {"call": {"queue": "annotated"}}}, "annotated"),
        ({"throttle_reap_queue": "housekeeping"}, "housekeeping"),
    ],
)
def test_a_queue_of_the_configuration_is_0_before_its_first_task(
    server: EmbeddedServer, redis: Redis, conf: dict[str, Any], queue: str
) -> None:
    assert not redis.keys()
    app = make_app(server.url, **conf)
    assert counts(app, queue) == (0, 0, 0, 0)
    with pytest.raises(ConfigurationError, match="No queue 'vidoe'"):
        ThrottleControl(app).runnable("vidoe")


def test_known_queue_is_0_when_it_is_empty(server: EmbeddedServer, app: Any, redis: Redis) -> None:
    """Redis has no empty lists; the binding of a queue stays, for any exchange.

    The name is this test's own: a process remembers its bindings, also when the server is emptied.
    """
    publish(make_app(server.url), "bound", 1)
    redis.delete("bound")
    assert counts(app, "bound") == (0, 0, 0, 0)
    with app.connection_for_write() as connection:
        Queue("topical", Exchange("celery", type="direct"), routing_key="t")(connection.default_channel).declare()
    assert counts(app, "topical") == (0, 0, 0, 0)


def test_bindings_are_only_read_for_unknown_names(server: EmbeddedServer, app: Any, redis: Redis) -> None:
    """Each queue of the configuration may have an exchange of its own."""
    app.conf.task_queues = [Queue(f"q{number}", Exchange(f"q{number}")) for number in range(20)]
    with commands(redis) as calls:
        assert len(ThrottleControl(app).runnable()) == 20
        assert len(ThrottleControl(app).runnable("q1", "q2")) == 2
    assert "smembers" not in calls
    publish(make_app(server.url), "bound once", 1)
    redis.delete("bound once")
    with commands(redis) as calls:
        assert counts(app, "bound once") == (0, 0, 0, 0)
    assert calls["smembers"] == 1  # its own exchange is looked at first


def test_a_queue_of_parked_tasks_alone(app: Any, worker: TermsCaller) -> None:
    fill(worker, 3)
    worker.put("other", ONE, queue="video")
    assert counts(app, "video") == (0, 0, 0, 0)


def test_a_queue_of_a_worker_alone(workers: Workers) -> None:
    workers.start(queues="video")
    app = workers.app().app
    with Redis.from_url(app.conf.broker_url) as broker:
        broker.delete("_kombu.binding.video")  # as if the broker had lost its data
    assert counts(app, "video") == (0, 0, 0, 0)
    with pytest.raises(ConfigurationError, match="did you mean 'video'"):
        ThrottleControl(app).runnable("vidoe")


def test_broker_that_is_away_leaves_queues_unknown(server: EmbeddedServer, worker: TermsCaller) -> None:
    worker.know(API)
    app = make_app(server.url, throttle_url=server.url, broker_url="redis://localhost:1/0")
    assert counts(app, "vidoe") == (None, 0, 0, None)
    ended = run_in(app, "runnable", "vidoe")
    assert (ended.code, ended.lines[1:]) == (
        0, ["vidoe         ?          ?        0      0",
            "vidoe: not known, and the broker does not report whether there is such a queue."],
    )  # fmt: skip
    assert work(app, "celery").known
    assert len(run_in(app, "runnable", "celery").lines) == 2


def test_a_broker_that_has_any_queue(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of kombu's transports take any name; their answer about it is no number."""
    monkeypatch.setattr(Channel, "_has_queue", virtual.Channel._has_queue)
    assert counts(app, "vidoe") == (None, 0, 0, None)
    assert not work(app, "vidoe").known
    assert counts(app, "celery") == (0, 0, 0, 0)
    publish(app, "video", 2)
    assert counts(app, "video") == (2, 0, 0, 2)


def test_metrics_have_no_sample_of_a_queue_that_does_not_exist(
    app: Any, run: Run, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The others are there all the same: alerts need them."""
    found = read(ThrottleControl(app).metrics(queues=["clery"]))
    assert found["celery_throttle_runnable_tasks"] == {("celery",): 0}
    assert "No metrics of a queue: No queue 'clery', did you mean 'celery'?" in caplog.text
    ended = run("metrics", "--queue", "clery", "--to", str(tmp_path / "throttle.prom"))
    assert (ended.code, ended.out) == (1, "")
    assert "did you mean 'celery'?" in ended.err
    assert read((tmp_path / "throttle.prom").read_text())["celery_throttle_runnable_tasks"] == {("celery",): 0}


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_store_that_is_away(own_server: EmbeddedServer) -> None:
    app = make_app(own_server.url)
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        ThrottleControl(app).runnable("q")
    assert run_in(app, "runnable").code == 3


@pytest.mark.parametrize("queue", [5, "", None])
def test_invalid_queue_is_refused(app: Any, queue: Any) -> None:
    with pytest.raises(ConfigurationError, match="runnable: a queue is named by text, got"):
        ThrottleControl(app).runnable(queue)
    with pytest.raises(ConfigurationError, match="metrics: a queue is named by text, got"):
        ThrottleControl(app).metrics(queues=[queue])
