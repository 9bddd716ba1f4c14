"""``celery throttle runnable``, ``ThrottleControl.runnable()``, ``celery_throttle_runnable_tasks``."""

from __future__ import annotations

import random
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import MagicMock

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport import virtual
from kombu.transport.redis import Channel
from redis import Redis

from celery_throttle import ConfigurationError, Limit, StoreUnavailable, ThrottleControl
from celery_throttle.control import queues, runnable
from celery_throttle.control.queues import Depth, Slots, consumed, depths, free_slots
from celery_throttle.control.runnable import Runnable
from celery_throttle.core.naming import outside_queue
from celery_throttle.embedded import EmbeddedServer
from tests.control.conftest import Run, make_app, run_in
from tests.control.desk_story import DeskStory, all_started
from tests.control.test_looking import API, ONE, TENANT, fill, names, of
from tests.control.test_metrics import of_group, read
from tests.store.cost import commands
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY
from tests.store.stories import stories
from tests.store.terms_caller import TermsCaller, terms
from tests.support.remote import wait_heard
from tests.support.waiting import until
from tests.support.workers import Workers

BOTH = terms(API, TENANT)
NO_QUEUE = r"^No queue 'vidoe', did you mean 'video'\? Known queues: .*mail and"


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
    assert counts(app) == (3, 1, 1, 5), "of the five that wait, one may start"
    assert str(work(app)) == "q: 5 runnable, 3 in the broker, 1 running, 1 ready"
    ended = run("runnable", "q")
    assert (ended.code, ended.err) == (0, "")
    assert ended.rows == [["QUEUE", "RUNNABLE", "IN BROKER", "RUNNING", "READY"], ["q", "5", "3", "1", "1"]]
    (row,) = run("runnable", "q", "--json").json
    assert row.keys() == names(Runnable)
    assert row == {"queue": "q", "messages": 3, "running": 1, "ready": 1, "runnable": 5, "at_least": False}
    found = read(ThrottleControl(app).metrics())
    assert found["celery_throttle_runnable_tasks"] == {("celery",): 0, ("q",): 5}
    assert found["celery_throttle_queue_messages"] == {("celery",): 0, ("q",): 3}


#: ``runnable`` has two numbers: the tasks of a queue that run, and those that could start.
COUNTED = """
throttled tasks keep no machine up:
    take a b on=gpu:2; park c d e f on=gpu:2; runnable = 2 0; end a b; runnable = 0 2; change gpu pause
    runnable = 0 0; change gpu disable; runnable = 0 0; change gpu resume; runnable = 0 4
a rate allows its burst:
    park a b c d e on=mail@1/h^3; runnable = 0 3; look slots=9 = a, b, c; runnable = 3 0
lines of two queues that share a limit go on in order of arrival:
    park w0 on=gpu:2+wide[a]:5 queue=a; park w1 on=gpu:2+wide[b]:5 queue=b; park w2 on=gpu:2+wide[a]:5 queue=a
    park w3 on=gpu:2+wide[b]:5 queue=b; runnable a = 0 1; runnable b = 0 1
a lost worker counts until its permit is reclaimed, since without a machine no other event would do that:
    arrive t1 t2 w on=gpu:2; expire t1 t2; runnable = 2 0; reap; runnable = 0 1
a dropped task needs a slot alone to get its outcome, since its caller waits for that:
    arrive a b c d e f g h on=gpu:2; drop gpu; runnable = 2 6; look slots=9; runnable = 8 0
a queue of parked tasks alone is known:
    take a b on=gpu:2; park c on=gpu:2; park d on=gpu:2 queue=video; runnable video = 0 0
"""


@pytest.mark.parametrize("steps", stories(COUNTED))
def test_a_story_of_runnable_tasks(desk: DeskStory, steps: str) -> None:
    desk.tell(steps)


def test_permits_outside_of_tasks_are_of_no_queue(app: Any, control: ThrottleControl, worker: TermsCaller) -> None:
    outside = TermsCaller(worker.client, "cccccccc", outside_queue("cccccccc"))
    outside.arrive("o1", ONE)
    outside.put("o2", ONE, outside=True)
    worker.put("w", ONE)
    assert {each.queue: (each.running, each.ready) for each in control.runnable()} == {"celery": (0, 0)}
    outside.withdraw("o2")
    assert counts(app) == (0, 0, 1, 1)


def test_task_that_did_not_start_in_time_is_ready(app: Any, worker: TermsCaller) -> None:
    """The permits that it needed do not matter."""
    fill(worker, 2)
    worker.put("late", ONE, wait_ms=1)

    def told() -> bool:
        worker.look(0)  # the next caller sees that its time has passed
        return work(app).ready == 1

    until(told)
    assert worker.look(1).grants[0].expired


def test_task_that_waits_for_the_outcome_of_another_is_not_ready(app: Any, redis: Redis) -> None:
    once = LockCaller(redis, "dddddddd", "q")
    once.start("first", plan_of())
    once.put_once("second", plan_of())
    assert [each.task_id for each in ThrottleControl(app).parked()] == ["second"]
    assert counts(app) == (0, 1, 0, 1)


@pytest.mark.parametrize("seed", range(25))
def test_as_many_as_start(
    app: Any, control: ThrottleControl, worker: TermsCaller, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runnable, "_FEW", (100, -1)[seed % 2])  # all in one call, or line by line
    dice = random.Random(seed)
    running = []
    for number in range(dice.randint(0, 25)):
        what = dice.choice([ONE, of(dice.choice("abc")), BOTH.needs({"keys": {"tenant": dice.choice("abc")}})])
        running.append(worker.arrive(f"t{number}", what))
    for each in filter(None, running):
        if dice.random() < 0.6:
            worker.end(each)
    if dice.random() < 0.5:
        control.limit("api").override(dice.randint(1, 9))
    before = work(app)
    assert before.running == worker.client.zcard(KEY["leases"])
    assert before.ready == all_started(worker)
    assert work(app).ready == 0


# -- bounded -----------------------------------------------------------------------------------------------------------


def test_more_than_is_read(
    app: Any, control: ThrottleControl, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, narrow = terms(Limit("wide", 50)).same, terms(Limit("narrow", 2)).same
    fill(worker, 8)
    control.limit("api").drop()
    assert (work(app).ready, of_group(app)["cut"]) == (6, 0)
    monkeypatch.setattr(runnable, "_FEW", 2)
    assert (work(app).ready, of_group(app)["cut"]) == (4, 1), "of dropped tasks"
    assert len(worker.look(9).grants) == 6
    for name, value in (("MOST", 30), ("_LEAST", 3), ("_FEW", 5)):
        monkeypatch.setattr(runnable, name, value)
    for number in range(40):
        worker.put(f"w{number}", wide)
        worker.put(f"n{number}", narrow)
    assert (work(app).ready, of_group(app)["cut"]) == (15 + 2, 1)
    control.limit("wide").pause()
    assert (work(app).ready, of_group(app)["cut"]) == (2, 0), "the unread part of `narrow` could not start"
    monkeypatch.setattr(runnable, "_MOST_LINES", 0)
    assert (work(app).ready, of_group(app)["cut"]) == (0, 1)


def test_many_keys_are_one_call(app: Any, worker: TermsCaller, redis: Redis) -> None:
    for number in range(180):
        worker.put(f"w{number}", of(f"k{number % 90}"))
    with commands(redis) as calls:
        assert work(app).ready == 90
    assert calls["evalsha"] < 15
    assert of_group(app)["cut"] == 0


def test_lines_that_cannot_go_on_are_not_read(
    app: Any, control: ThrottleControl, worker: TermsCaller, redis: Redis
) -> None:
    """Full, paused, or not due: each would be one call more."""
    for number in range(200):
        worker.arrive(f"t{number}", of(f"k{number % 100}"))
    mail = terms(Limit("mail", rate="1/h")).same
    for number in range(3):
        worker.arrive(f"m{number}", mail)
    worker.put("w", terms(Limit("idle", 1)).same)
    with commands(redis) as before:
        assert (work(app).running, work(app).ready) == (101, 1)
    control.limit("idle").pause()
    with commands(redis) as calls:
        assert (work(app).running, work(app).ready) == (101, 0)
    assert before["evalsha"] < 25
    assert calls["evalsha"] == before["evalsha"] - 2
    control.limit("mail").disable()
    assert work(app).ready == 2


def test_limits_that_are_not_among_those_looked_at(
    app: Any, control: ThrottleControl, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in "abcdef":
        worker.arrive(key, BOTH.needs({"keys": {"tenant": key}}))
    control.limit("api").override(5)
    monkeypatch.setattr(runnable, "MOST", 4)
    assert work(app).ready == 3


# -- the broker --------------------------------------------------------------------------------------------------------


def test_all_priorities_of_a_queue_in_redis(app: Any) -> None:
    app.conf.broker_transport_options = {"priority_steps": [0, 5, 9]}
    publish(app, "q", 2)
    publish(app, "q", 3, priority=9)
    assert counts(app) == (5, 0, 0, 5)


class Refused(Exception):
    def __init__(self, reply_code: int) -> None:
        self.reply_code = reply_code


@pytest.mark.parametrize(
    ("code", "depth"), [(404, Depth(0, exists=False)), (405, Depth()), (403, Depth()), (None, Depth(3, exists=True))]
)
def test_amqp_answers_are_read(code: int | None, depth: Depth) -> None:
    """405: it is another connection's own; 403: we may not ask."""
    connection = MagicMock(channel_errors=(Refused,))
    declare = connection.channel().__enter__().queue_declare
    declare.return_value.message_count = 3
    declare.side_effect = code and Refused(code)
    assert queues._depth(connection, "q", {"q"}) == depth


def test_workers_are_asked_for_their_queues_and_free_slots(workers: Workers) -> None:
    app = workers.app().app
    assert (consumed(app), free_slots(app)) == (None, None)
    wait_heard(app, workers.start(queues="one,video", concurrency=3))
    assert (consumed(app), free_slots(app)) == ({"one", "video"}, [Slots(frozenset({"one", "video"}), 3)])
    with Redis.from_url(app.conf.broker_url) as broker:
        broker.delete("_kombu.binding.video")  # as if the broker had lost its data
    assert counts(app, "video") == (0, 0, 0, 0)
    with pytest.raises(ConfigurationError, match="did you mean 'video'"):
        ThrottleControl(app).runnable("vidoe")


def test_the_queues_that_are_known(server: EmbeddedServer, worker: TermsCaller) -> None:
    """Those of the configuration, of tasks that run or could start, and those that are named."""
    app = make_app(server.url, task_queues=[Queue("video"), Queue("mail"), Broadcast("all")])
    worker.arrive("t", ONE)
    worker.put("ready", ONE, queue="other")
    control = ThrottleControl(app)
    assert {each.queue: each.ready for each in control.runnable()} == {"video": 0, "mail": 0, "q": 0, "other": 1}
    publish(app, "elsewhere", 1)
    text = control.metrics(queues=["elsewhere"])
    found = {queue for (queue,) in read(text)["celery_throttle_runnable_tasks"]}
    assert found == {"video", "mail", "q", "other", "elsewhere"}
    assert {each.queue for each in control.runnable("mail", "elsewhere")} == {"mail", "elsewhere"}
    assert run_in(app, "metrics", "--queue", "elsewhere").out.count('queue="elsewhere"') == 2


def test_a_store_without_an_app_has_no_broker(server: EmbeddedServer, worker: TermsCaller, app: Any) -> None:
    worker.arrive("t", ONE)
    ended = run_in(app, "runnable", "--url", server.url, "--prefix", "test")
    assert ended.rows[1:] == [["q", "?", "?", "1", "0"]]
    text = str(Runnable("q", None, 1, 0, None))
    assert text == "q: not known, the broker does not report its messages; 1 running, 0 ready"
    ended = run_in(app, "metrics", "--url", server.url, "--prefix", "test")
    assert read(ended.out)["celery_throttle_runnable_tasks"] == {}


@pytest.mark.parametrize("broker", ["redis://{}/0", "amqp://{}//"])
def test_messages_are_not_known_of_a_broker_that(
    server: EmbeddedServer, worker: TermsCaller, no_broker: str, broker: str
) -> None:
    """Nor is anything else; a reader does not wait for it."""
    worker.arrive("t", ONE)
    app = make_app(server.url, throttle_url=server.url, broker_url=broker.format(no_broker))
    before = monotonic()
    assert counts(app) == (None, 1, 0, None)
    assert monotonic() - before < 8
    text = ThrottleControl(app).metrics()
    assert read(text)["celery_throttle_runnable_tasks"] == {}
    assert read(text)["celery_throttle_holders"] == {("",): 1}
    alone = Celery(broker=broker.format(no_broker))
    assert (consumed(alone), depths(alone, ["q"])) == (None, {"q": Depth()})


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


def test_answers_of_kombu_that_are_no_numbers(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns 0 for all those that it asks for no number, and some of its transports take any name."""
    monkeypatch.setattr(Channel, "_has_queue", virtual.Channel._has_queue)
    assert counts(app, "vidoe") == (None, 0, 0, None)
    assert not work(app, "vidoe").known
    assert counts(app, "celery") == (0, 0, 0, 0)
    publish(app, "video", 2)
    assert counts(app, "video") == (2, 0, 0, 2)
    monkeypatch.setattr(Channel, "_size", virtual.Channel._size)
    worker.arrive("t", ONE)
    assert counts(app) == (None, 1, 0, None)


# -- names that are mistaken -------------------------------------------------------------------------------------------


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
    with commands(redis) as calls:
        assert counts(app, "bound") == (0, 0, 0, 0)
    assert calls["smembers"] == 1, "its own exchange is looked at first"
    with app.connection_for_write() as connection:
        Queue("topical", Exchange("celery", type="direct"), routing_key="t")(connection.default_channel).declare()
    assert counts(app, "topical") == (0, 0, 0, 0)


def test_bindings_are_only_read_for_unknown_names(app: Any, control: ThrottleControl, redis: Redis) -> None:
    """Each queue of the configuration may have an exchange of its own."""
    app.conf.task_queues = [Queue(f"q{number}", Exchange(f"q{number}")) for number in range(20)]
    with commands(redis) as calls:
        assert len(control.runnable()) == 20
        assert len(control.runnable("q1", "q2")) == 2
    assert "smembers" not in calls


def test_a_queue_that_does_not_exist_is_an_error(
    app: Any, control: ThrottleControl, run: Run, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Not 0, by which an autoscaler would stop all workers; alerts still need the metrics of the other queues."""
    app.conf.task_queues = [Queue("video"), Queue("mail")]
    with pytest.raises(ConfigurationError, match=NO_QUEUE):
        control.runnable("video", "vidoe")
    ended = run("runnable", "vidoe", "--json")
    assert (ended.code, ended.out) == (1, "")
    assert "did you mean 'video'?" in ended.err
    assert "name it in task_queues or task_routes" in ended.err
    others = {("video",): 0, ("mail",): 0}
    assert read(control.metrics(queues=["vidoe"]))["celery_throttle_runnable_tasks"] == others
    assert "No metrics of a queue: No queue 'vidoe', did you mean 'video'?" in caplog.text
    ended = run("metrics", "--queue", "vidoe", "--to", str(tmp_path / "throttle.prom"))
    assert (ended.code, ended.out) == (1, "")
    assert "did you mean 'video'?" in ended.err
    assert read((tmp_path / "throttle.prom").read_text())["celery_throttle_runnable_tasks"] == others


@pytest.mark.parametrize("queue", [5, "", None])
def test_invalid_queue_is_refused(control: ThrottleControl, queue: Any) -> None:
    with pytest.raises(ConfigurationError, match="runnable: a queue is named by text, got"):
        control.runnable(queue)
    with pytest.raises(ConfigurationError, match="metrics: a queue is named by text, got"):
        control.metrics(queues=[queue])


def test_runnable_without_the_store_is_an_error(own_server: EmbeddedServer) -> None:
    app = make_app(own_server.url)
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        ThrottleControl(app).runnable("q")
    assert run_in(app, "runnable").code == 3
