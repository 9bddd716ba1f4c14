"""Usual projects with Django, Flask or a task class of their own, and programs that have no part of ours but one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import chord

from celery_throttle import ThrottleControl
from tests.support.journal import Journal
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import ROOT, Workers

DJANGO = "tests.support.projects.django_shop"
FLASK = "tests.support.projects.flask_shop"
OWN_CLASS = "tests.support.apps.own_class"
EVERY = "tests.support.apps.every"

#: Publishes as a view would, in a process of its own, because Django and Flask configure a whole process.
PUBLISH = f"""
import django
from django.core.management import call_command
from django.db import transaction

django.setup()
from {DJANGO}.orders.models import Order
from {DJANGO}.orders.tasks import annotated, invoice, render

call_command("migrate", run_syncdb=True, verbosity=0)
try:
    with transaction.atomic():
        render.delay_on_commit(Order.objects.create(pk=99).pk)
        raise ValueError
except ValueError:
    pass
with transaction.atomic():
    for number in range(1, 6):
        render.delay_on_commit(Order.objects.create(pk=number).pk)
        annotated.apply_async_on_commit((f"annotated {{number}}",))
        invoice.delay_on_commit(f"invoice {{number}}")
"""
RENDERED = f"""
import django

django.setup()
from {DJANGO}.orders.models import Order

print(Order.objects.filter(rendered=True).count())
"""
ASK = f"""
from {FLASK}.make_celery import flask_app
from {FLASK}.tasks import greet

results = [greet.delay(f"guest {{number}}") for number in range(5)]
print([result.get(timeout=20) for result in results])
"""


def run(program: str, environment: dict[str, str]) -> str:
    path = "import sys; sys.path.append(sys.argv.pop(1)); exec(sys.argv[1])"
    command = [sys.executable, "-c", path, str(ROOT), program]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=HANGS_AFTER, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_django_project(workers: Workers, journal: Journal, tmp_path: Path) -> None:
    workers.env |= {"DJANGO_SETTINGS_MODULE": f"{DJANGO}.settings", "SHOP_DATABASE": str(tmp_path / "shop.sqlite3")}
    run(PUBLISH, workers.environment())
    worker = workers.start(DJANGO, concurrency=4, options=["-B", "-s", str(tmp_path / "schedule")])
    journal.wait_finished(5, task="tasks.render")
    journal.wait_finished(5, task="annotated")
    journal.wait_finished(5, task="invoice")
    journal.wait_finished(2, task="sweep")
    assert journal.max_running(task="tasks.render") <= 2
    assert journal.max_running(task="annotated") == journal.max_running(task="invoice") == 1
    assert "order 99" not in journal.order(), "published by a transaction that was rolled back"
    until(lambda: run(RENDERED, workers.environment()) == "5")
    worker.wait_for_log(r"Task celery_throttle\.reap\[\S+\] succeeded")


def test_a_flask_factory(workers: Workers, journal: Journal) -> None:
    """With mingle and gossip, which the other tests leave out."""
    for worker in [workers.start(f"{FLASK}.make_celery", concurrency=2, quick=False, wait=False) for _ in range(2)]:
        worker.wait_ready()
    assert run(ASK, workers.environment()) == str([f"hello guest {number}" for number in range(5)])
    assert journal.max_running() <= 2


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_an_app_with_a_task_class_of_its_own(workers: Workers, journal: Journal, pool: str) -> None:
    app = workers.start_app(OWN_CLASS, concurrency=4, pool=pool)
    results = [app.work.delay(f"work {number}") for number in range(5)]
    results += [app.once.delay("once")]
    assert [result.get(timeout=HANGS_AFTER) for result in results] == ["acme"] * 6
    assert journal.max_running(task="work") <= 2

    def succeeded() -> set[str]:
        return {event["task_id"] for event in journal.events() if event["event"] == "on_success"}

    until(lambda: succeeded() == {result.id for result in results})  # called after the result was stored


#: Nothing else imports the package before Celery looks for the class.
EVERY_TASK = """
import sys
from celery import Celery

app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False, task_cls={task_cls!r})

@app.task(limit=5)
def render(): ...

@app.task
def plain(): ...

assert "celery_throttle.tasks.throttled" not in sys.modules
app.finalize()
from celery_throttle.tasks.registry import policies_of
limits = {{name: policy.limits[0].permits for name, policy in policies_of(app).items()}}
print(limits, "celery_throttle.reap" in app.tasks)
"""
PRODUCER = """
import sys
from celery import Celery
from celery_throttle import Throttled

app = Celery(broker="memory://")

@app.task(shared=False, base=Throttled, limit=1)
def work(): ...

work.delay()
print([name for name in sys.modules if name.startswith("celery_throttle.worker")])
"""
#: Without remote control, commands and the page.
ALONE = """
import os, sys
sys.modules["celery_throttle.control"] = None
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_throttle import Throttled

app = Celery("alone", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])

@app.task(base=Throttled, limit=1)
def double(number):
    return 2 * number

app.finalize()
app.steps["worker"].remove("celery_throttle.control.remote_step:RemoteStep")
with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
    results = [double.delay(number) for number in range(20)]
    print(*(each.get(timeout=20) for each in results))
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (EVERY_TASK.format(task_cls="celery_throttle:Throttled"), "{'shop.render': 5} True"),
        (EVERY_TASK.format(task_cls="celery_throttle.Throttled"), "{'shop.render': 5} True"),
        (PRODUCER, "[]"),
        (ALONE, " ".join(str(2 * number) for number in range(20))),
    ],
    ids=["class with a colon", "class with a point", "producer needs no store and no worker", "worker alone"],
)
def test_a_program(workers: Workers, program: str, said: str) -> None:
    assert run(program, workers.environment()) == said


def test_workers_of_a_project_in_which_every_task_can_be_throttled(workers: Workers, journal: Journal) -> None:
    workers.conf["task_annotations"] = {f"{EVERY}.annotated": {"limit": 3}}
    app = workers.start_app(EVERY, concurrency=6)
    results = [
        task.delay(f"{task.name} {number}") for number in range(7) for task in (app.work, app.annotated, app.plain)
    ]
    whole = chord([app.work.s("a"), app.work.s("b"), app.plain.s("c")])(app.collect.s())
    for result in results:
        result.get(timeout=HANGS_AFTER)
    assert whole.get(timeout=HANGS_AFTER) == ["a", "b", "c"]
    assert journal.max_running(task="work") <= 2
    assert journal.max_running(task="annotated") <= 3
    assert ThrottleControl(app.app).limit(app.annotated).status().permits == 3
