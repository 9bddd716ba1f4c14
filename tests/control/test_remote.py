"""``celery inspect throttle`` and ``celery control throttle_pause``: the state in a worker, and changes by it."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import celery
import pytest
from redis import Redis

import celery_throttle
from celery_throttle import ThrottleControl
from celery_throttle.control.panel import STEERS, signature
from tests.support.journal import Journal
from tests.support.remote import name_of, steer, throttle_in, wait_heard
from tests.support.shell import Shell
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import BASIC, ROOT, Worker, Workers

STEERED = "tests.support.apps.steered"
LIMITED = "tests.support.apps.limited"
DOORS = "tests.support.apps.doors"
NOBODY: dict[str, Any] = {"count": 0, "tasks": [], "more": 0}
API = {"limit": "api", "key": None, "permits": 1}
ACME = {"limit": "tenant", "key": "acme", "permits": 1}


def ids(tasks: Any) -> list[str]:
    return [each["task_id"] for each in tasks["tasks"]]


def since(told: str) -> timedelta:
    """How long ago that is."""
    return datetime.now(timezone.utc) - datetime.fromisoformat(told)


def start(
    workers: Workers, pool: str = "prefork", *, count: int = 1, concurrency: int = 1
) -> tuple[Any, ThrottleControl, list[Worker]]:
    """Start workers of `STEERED`; return the app when they have declared its limits."""
    several = workers.start_many(count, STEERED, pool=pool, concurrency=concurrency)
    module = workers.app(STEERED)
    control = ThrottleControl(module.app)
    until(lambda: control.limit("api").status().declared)
    return module, control, several


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_inspect_shows_held_and_parked_tasks(workers: Workers, journal: Journal, pool: str) -> None:
    app, throttle, (worker,) = start(workers, pool, concurrency=3)
    first = app.both.delay("first", "acme")
    others = [app.work.delay(label) for label in "ab"]
    journal.wait_running(3)
    app.work.delay("parked")
    until(lambda: throttle.limit("pair").status().parked == 1)
    waiting = app.serve.delay("waiting", "zeta")

    def settled() -> Any:
        said = throttle_in(app.app, worker)
        return said if said["waiting"]["count"] and not said["asking"]["count"] else None

    said = until(settled)
    assert said["slots"] == {"size": 3, "free": 0}
    assert {each["task_id"] for each in said["held"]["tasks"]} == {first.id, *(each.id for each in others)}
    (held,) = [each for each in said["held"]["tasks"] if each["task_id"] == first.id]
    assert sorted(held.pop("needs"), key=str) == sorted([API, ACME], key=str)
    assert timedelta() < since(held.pop("since")) < timedelta(minutes=2)
    pid = held.pop("worker_pid")
    assert pool == "gevent" or pid in {worker.pid, *worker.children()}, "greenlets are numbered by Celery"
    names = {"task_id": first.id, "task_name": app.both.name, "queue": "celery"}
    assert held == names | {"lease_lost": False, "runs": True}
    (waits,) = said["waiting"]["tasks"]
    assert (waits["task_id"], waits["needs"][0]["key"]) == (waiting.id, "zeta")
    assert said["unthrottled"] == NOBODY
    assert said["held_back"] == {**NOBODY, "counts": {}}
    journal.let_go("first", "a", "b", "parked", "waiting")
    journal.wait_finished(5)
    until(lambda: throttle_in(app.app, worker)["held"] == NOBODY)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_how_the_store_is_reached(workers: Workers, ana: str, pool: str) -> None:
    workers.conf["throttle_url"] = ana
    app, throttle, (worker,) = start(workers, pool)
    app.plain.delay("x").get(timeout=HANGS_AFTER)

    def answered() -> Any:
        said = throttle_in(app.app, worker)
        last = said["groups"][0]["last_call"]
        return said if last and last["took"] is not None and said["slots"]["free"] else None

    said = until(answered)
    assert said["versions"]["celery_throttle"] == celery_throttle.__version__
    assert (said["versions"]["celery"], said["versions"]["python"]) == (celery.__version__, platform.python_version())
    assert said["store"] == ana.replace("secret", "**")
    (group,) = said["groups"]
    assert (group["group"], group["up"], group["refuses"], group["hints"]) == ("", True, False, True)
    assert group["queues"] == ["celery"]
    assert timedelta() < since(group["since"]) < timedelta(minutes=2)
    last = group["last_call"]
    assert last["number"] >= 1
    assert 0 <= last["took"] <= 20
    assert 0 <= last["age"] <= 120
    assert said["slots"] == {"size": 1, "free": 1}
    app.call.delay("held")
    if pool != "solo":  # which answers when the task has ended, as Celery's own commands
        (holder,) = until(lambda: throttle.limit("api").holders())
        assert holder.worker == group["worker"], "as `celery throttle show` has it"


@pytest.fixture
def ana(redis: Redis, workers: Workers) -> Iterator[str]:
    """The URL of the server for a user with a password."""
    redis.acl_setuser("ana", enabled=True, passwords=["+secret"], keys="*", channels="*", commands=["+@all"])
    yield workers.broker.replace("://", "://ana:secret@")
    redis.acl_deluser("ana")


def test_solo_answers_between_two_tasks(workers: Workers, journal: Journal) -> None:
    """Messages that came in between wait here for the only slot, or are parked."""
    app, throttle, (worker,) = start(workers, "solo")
    throttle.limit("api").pause()
    app.call.delay("parked")
    until(lambda: throttle.limit("api").status().parked == 1)
    said = until(lambda: (found := throttle_in(app.app, worker))["asking"] == NOBODY and found)
    assert said["held"] == said["waiting"] == NOBODY
    journal.let_go("parked")
    throttle.limit("api").resume()
    journal.wait_finished(1)
    until(lambda: throttle_in(app.app, worker)["held"] == NOBODY)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_inspect_shows_held_back_tasks(workers: Workers, journal: Journal, pool: str) -> None:
    worker = workers.start(LIMITED, pool=pool, concurrency=2)
    app = workers.app(LIMITED)
    tasks = [app.crowd.delay("first")]
    journal.wait_running(1)
    # Not by `delay`, which looks how many wait.
    tasks += [app.app.send_task(app.crowd.name, [f"{number}"]) for number in range(105)]

    def all_there() -> Any:
        said = throttle_in(app.app, worker)
        return said if said["held_back"]["count"] == 103 else None  # two may be parked

    said = until(all_there)
    assert ids(said["held"]) == [tasks[0].id]
    assert said["held_back"]["counts"] == {"max_parked": 103}
    assert (len(said["held_back"]["tasks"]), said["held_back"]["more"]) == (100, 3)
    assert {each["why"] for each in said["held_back"]["tasks"]} == {"max_parked"}
    assert set(ids(said["held_back"])) < {task.id for task in tasks}


def test_plain_tasks_run_unthrottled(workers: Workers, journal: Journal) -> None:
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    plain = journal.wait_begun(app.plain.delay("plain"))
    said = throttle_in(app.app, worker)
    (runs,) = said["unthrottled"]["tasks"]
    assert (runs["task_id"], runs["task_name"], runs["needs"]) == (plain.id, app.plain.name, [])
    assert (said["slots"], said["held"]) == ({"size": 2, "free": 1}, NOBODY)


def test_a_worker_that_throttles_nothing(workers: Workers) -> None:
    worker = workers.start(BASIC, conf={"throttle_enabled": False})
    app = workers.app(BASIC)
    said = throttle_in(app.app, worker)
    assert (said.keys(), said["groups"]) == ({"versions", "groups"}, [])
    assert said["versions"]["celery_throttle"] == celery_throttle.__version__
    assert steer(app.app, "throttle_pause", worker, limit="api") == [{"error": "no task of this worker is throttled"}]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_every_command(workers: Workers, pool: str) -> None:
    app, throttle, (worker,) = start(workers, pool)
    app.plain.delay("x").get(timeout=HANGS_AFTER)

    def say(command: str, limit: str = "api", **arguments: Any) -> Any:
        (answer,) = steer(app.app, command, worker, limit=limit, **arguments)
        return answer

    assert say("throttle_override", permits=3, by="ana", why="day") == {
        "ok": "api 0/1, override 3 instead of 1 by ana (day)"
    }
    rated = "api 0/1, override 3 instead of 1 by ana (day), rate override 50/m (burst 2) by ana"
    assert say("throttle_override", rate="50/m", burst="2", by="ana") == {"ok": rated}
    assert say("throttle_override", permits="rate=50/m", word1="burst=2", by="ana") == {"ok": rated}
    assert throttle.limit("api").status().in_force == 3
    assert say("throttle_reset") == {"ok": "api 0/1"}
    assert say("throttle_reset") == {"ok": "api was not overridden. api 0/1"}
    assert say("throttle_pause", "tenant", key="acme", **{"for": "10m"})["ok"].startswith("tenant[acme] 0/1, paused ")
    paused = throttle.limit("tenant", key="acme").status().paused
    assert paused
    assert paused.by == f"celery control at {name_of(worker)}"
    assert paused.until
    assert (paused.until - paused.since).total_seconds() == 600
    assert say("throttle_resume", "tenant[acme]") == {"ok": "tenant[acme] 0/1"}
    assert say("throttle_resume", "tenant[acme]") == {"ok": "tenant[acme] was not paused. tenant[acme] 0/1"}
    assert say("throttle_disable", by="ana") == {"ok": "api 0/1, disabled by ana"}
    assert say("throttle_enable") == {"ok": "api 0/1"}
    assert say("throttle_enable") == {"ok": "api was not disabled. api 0/1"}
    assert say("throttle_release_hold") == {"ok": "api was not held back. api 0/1"}
    actions = [each.action for each in throttle.audit()]
    assert actions == ["enable", "disable", "resume", "pause", "reset", "override", "override", "override"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("throttle_pause", {"limit": "apy"}, "No limit 'apy', did you mean 'api'? Known limits: api, pair, "),
    ("throttle_pause", {"limit": "api", "key": "acme"}, "Limit 'api' has no keys: leave key= out, "),
    ("throttle_pause", {}, "throttle_pause wants LIMIT [KEY] [for=2h] [why=...] [by=...], got nothing"),
    ("throttle_pause", {"limit": 7}, "throttle_pause wants LIMIT [KEY] [for=2h] [why=...] [by=...], got 7"),
    ("throttle_pause", {"limit": "api", "word1": "wyh=x"}, "throttle_pause wants LIMIT [KEY] [for=2h] "),
    ("throttle_pause", {"limit": "api", "for": "soon"}, "for='soon' is no duration: write 90s, 10m, "),
    ("throttle_pause", {"limit": "api", "for": -1}, "for must be seconds or a timedelta, from 0.001 "),
    ("throttle_pause", {"limit": "api", "why": "x" * 501}, "Limit api: why must be text of 500 characters "),
    ("throttle_resume", {"limit": "api", "for": 60}, "throttle_resume wants LIMIT [KEY] [why=...] [by=...], got "),
    ("throttle_override", {"limit": "api"}, "Limit api: override needs a number of permits or a rate: "),
    ("throttle_override", {"limit": "api", "permits": "0"}, "Limit api: permits must be a whole number from 1 "),
    ("throttle_override", {"limit": "api", "permits": "many"}, "Limit 'api' has no keys: leave key= out, "),
    ("throttle_override", {"limit": "api", "permits": "10/s"}, "Limit api: permits must be a whole number from 1 "),
    ("throttle_override", {"limit": "api", "permits": "rate=10"}, "Limit api: A rate is text such as '100/m', "),
]


def test_invalid_remote_changes_are_refused(workers: Workers) -> None:
    app, throttle, (worker,) = start(workers, "threads")
    for command, arguments, said in WRONG:
        (answer,) = steer(app.app, command, worker, **arguments)
        assert list(answer) == ["error"]
        assert answer["error"].startswith(said)
        assert "\n" not in answer["error"]
    assert "Traceback" not in worker.log()
    assert throttle.audit() == ()


def test_the_first_worker_does_it(workers: Workers) -> None:
    """And all answer as if they had; the audit has it once."""
    app, throttle, several = start(workers, count=3)
    for number, (command, more) in enumerate(
        [("throttle_override", {"permits": 4}), ("throttle_reset", {}), ("throttle_pause", {"for": 600}),
         ("throttle_resume", {}), ("throttle_disable", {}), ("throttle_enable", {})]
    ):  # fmt: skip
        signed = {"limit": "api", "by": "ana", "request": f"r{number}"}
        answers = steer(app.app, command, *several, limit=signed, **more)
        assert answers == [answers[0]] * 3
        assert list(answers[0]) == ["ok"]
        assert "There was" not in answers[0]["ok"]
        assert "was not" not in answers[0]["ok"]
        assert len(throttle.audit()) == number + 1
    assert {each.by for each in throttle.audit()} == {"ana"}


def test_a_worker_that_is_late_does_not_do_it_again(workers: Workers) -> None:
    """It was frozen, or a solo worker was busy: the change may be taken back by now."""
    app, throttle, (prompt, late) = start(workers, count=2)
    limit = throttle.limit("api")
    wait_heard(app.app, prompt, late)
    late.freeze()
    signed = {"limit": "api", "by": "ana", "request": "r"}
    app.app.control.broadcast("throttle_pause", arguments={"limit": signed})
    until(lambda: limit.status().paused)
    assert limit.resume()
    late.thaw()
    throttle_in(app.app, late)  # it takes commands in their order
    assert limit.status().paused is None
    assert [each.action for each in limit.audit()] == ["resume", "pause"]
    # The command itself is not the reason why nothing happened.
    assert steer(app.app, "throttle_pause", late, limit=signed | {"request": "s"})[0]["ok"].startswith(
        "api 0/1, paused"
    )
    assert prompt.running


def test_from_a_shell(workers: Workers, shell: Shell) -> None:
    _, throttle, several = start(workers, count=2)
    named = ("-A", STEERED)
    only = ("-t", "10", "-d", ",".join(map(name_of, several)))

    inspected = shell.run(*named, "inspect", *only, "--json", "throttle")
    assert (inspected.code, inspected.err) == (0, "")
    assert inspected.json.keys() == set(map(name_of, several))
    assert {each["groups"][0]["up"] for each in inspected.json.values()} == {True}

    paused = shell.run(*named, "control", *only, "throttle_pause", "tenant", "acme", "for=10m", "why=incident 42")
    assert (paused.code, paused.err) == (0, "")
    assert paused.out.count("OK") == 2
    (change,) = throttle.audit()
    assert (change.limit, change.key, change.why) == ("tenant", "acme", "incident 42")
    assert change.by.startswith(f"{getpass.getuser()}@")
    assert change.after
    assert change.after.until

    wrong = shell.run(*named, "control", *only, "--json", "throttle_override", "api", "none")
    assert {tuple(each) for reply in wrong.json for each in reply.values()} == {("error",)}
    too_many = shell.run(*named, "control", "throttle_resume", "api", *"abcde")
    assert too_many.code == 2
    assert "takes arguments: LIMIT [KEY] [why=...] [by=...]" in too_many.err
    assert len(throttle.audit()) == 1
    assert not any("Traceback" in worker.log() for worker in several)


def test_celery_lists_them_without_an_app(shell: Shell) -> None:
    described = (ROOT / "docs" / "reference" / "command-workers.md").read_text()
    assert "\n  throttle " in shell.run("inspect", "--list").out
    listed = shell.run("control", "--list").out
    for name, verb in STEERS.items():
        assert f"{name} {signature(verb)}" in " ".join(listed.split())
        assert f"`{name} {signature(verb).partition(' [')[0]}`" in described


def test_a_worker_that_no_command_has_started(shell: Shell) -> None:
    """Where the group of `celery throttle` was never loaded."""
    program = (
        "import json, sys; sys.path.append(sys.argv.pop(1)); from tests.support.apps.steered import app\n"
        "app.Worker(pool='solo', loglevel='ERROR'); from celery.worker.control import Panel\n"
        "assert 'celery.bin.celery' not in sys.modules; print(json.dumps(sorted(Panel.data)))"
    )
    assert {"throttle", *STEERS} <= set(shell.run(program=program).json)
