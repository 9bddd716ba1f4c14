"""The beat task that clears expired holders: there without being asked for, the user's to change or remove."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_throttle import ConfigurationError, Limit, Throttled
from celery_throttle.embedded import bound_to_parent
from celery_throttle.settings import settings_of
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import _CELERY, ROOT, Workers
from tests.workers.conftest import FEATURES

REAP = "celery_throttle.reap"


class Beat:
    """One ``celery beat`` process."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                bound_to_parent(command), cwd=log.parent, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for_log(self, text: str) -> None:
        until(lambda: text in self.log(), timeout=30, describe=self.log)

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def beat(workers: Workers, tmp_path: Path) -> Iterator[Beat]:
    yield from _beat(workers, tmp_path)


@pytest.fixture
def beat_of_a_queue(workers: Workers, tmp_path: Path) -> Iterator[Beat]:
    workers.conf["throttle_reap_queue"] = "housekeeping"
    yield from _beat(workers, tmp_path)


def _beat(workers: Workers, tmp_path: Path) -> Iterator[Beat]:
    workers.conf |= {"throttle_reap_every": 1.0, "throttle_lease": 1.0}
    command = [sys.executable, "-c", _CELERY, str(ROOT), "-A", FEATURES, "beat", "-l", "INFO"]
    command += ["-s", str(tmp_path / "schedule"), "--max-interval", "1", "--pidfile="]
    running = Beat(command, tmp_path / "beat.log", os.environ | workers.environment())
    try:
        yield running
    finally:
        running.end()


def test_beat_brings_back_the_permits_of_a_lost_worker(
    beat: Beat, workers: Workers, journal: Journal, state: State
) -> None:
    lost = workers.start(FEATURES, queues="lost", wait=False)
    other = workers.start(FEATURES, wait=False)
    lost.wait_ready()
    other.wait_ready()
    app = workers.app(FEATURES)
    journal.wait_begun(app.one_hold.apply_async(("never ends",), queue="lost"))
    app.one.delay("next")
    state.wait_parked(1)
    lost.kill()
    journal.wait_finished(1, "next")
    state.wait_empty()

    beat.wait_for_log(f"Sending due task {REAP}")
    other.wait_for_log(rf"Task {REAP}\[\S+\] succeeded", times=2)


def test_beat_task_clears_entries_that_no_worker_meets(workers: Workers, journal: Journal, state: State) -> None:
    workers.conf["throttle_lease"] = 1.0
    lost = workers.start(FEATURES)
    app = workers.app(FEATURES)
    held = journal.wait_begun(app.one_hold.delay("never ends"))
    assert app.app.tasks[REAP]() == 0, "a live holder was cleared"
    lost.kill()
    assert state.used == {"single": 1}
    assert sorted(state.holders) == [held.id]
    until(lambda: app.app.tasks[REAP]() == 1, describe=lambda: str(sorted(state.holders)))
    assert state.is_empty()
    assert app.app.tasks[REAP]() == 0


def test_beat_task_logs_an_outage_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app()  # no server listens at its URL

    @app.task(shared=False, base=Throttled, limit=Limit("other", 1, group="other"))  # type: ignore[untyped-decorator]
    def of_another_group() -> None: ...

    assert app.tasks[REAP].apply().get() == 0

    said = [record for record in caplog.records if record.name == "celery_throttle.tasks.reap"]
    assert [record.levelname for record in said] == ["WARNING"] * 2  # one for each group
    assert not [record for record in caplog.records if record.exc_info]


def test_embedded_beat(workers: Workers, tmp_path: Path) -> None:
    workers.conf["throttle_reap_every"] = 1.0
    worker = workers.start(FEATURES, options=["-B", "-s", str(tmp_path / "schedule")])
    worker.wait_for_log(rf"Task {REAP}\[\S+\] succeeded", timeout=30)


def make_app(**conf: Any) -> Any:
    app = Celery("beat", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(**conf)

    @app.task(shared=False, base=Throttled, limit=1, name="beat.work")
    def work() -> None: ...

    return app


def schedule_of(app: Any) -> Any:
    """Return the schedule that beat would run, as beat itself finds it."""
    app.finalize()
    return app.conf.beat_schedule


@pytest.mark.parametrize("every", [12.0, timedelta(seconds=12)])
def test_the_entry(every: float | timedelta) -> None:
    entry = schedule_of(make_app(throttle_reap_every=every))[REAP]
    assert entry["task"] == REAP
    assert entry["schedule"] == 12.0
    # A worker that was away finds one, not all of them; the result has no reader.
    assert entry["options"] == {"expires": 12.0, "ignore_result": True}


def test_the_user_can_change_the_entry() -> None:
    mine = {"task": REAP, "schedule": 5, "options": {"queue": "housekeeping"}}
    assert schedule_of(make_app(beat_schedule={REAP: mine, "own": {"task": "x", "schedule": 3}})) == {
        REAP: mine,
        "own": {"task": "x", "schedule": 3},
    }


def test_reap_every_none_leaves_the_entry_out() -> None:
    assert REAP not in schedule_of(make_app(throttle_reap_every=None))
    app = Celery("beat", set_as_current=False)
    conf = {"CELERY_BROKER_URL": "redis://127.0.0.1:1/0", "CELERY_THROTTLE_REAP_EVERY": None}
    app.config_from_object(SimpleNamespace(**conf), namespace="CELERY")
    app.task(shared=False, base=Throttled, limit=1, name="beat.work")(print)
    assert REAP not in schedule_of(app)
    assert settings_of(app).reap_every is None


def test_reap_queue_is_where_the_entry_goes() -> None:
    entry = schedule_of(make_app(throttle_reap_queue="housekeeping"))[REAP]
    assert entry["options"] == {"expires": 30.0, "ignore_result": True, "queue": "housekeeping"}


def test_reap_queue_without_the_entry_is_refused() -> None:
    app = make_app(throttle_reap_queue="housekeeping", throttle_reap_every=None)
    with pytest.raises(ConfigurationError, match=r"throttle_reap_queue = 'housekeeping' has no effect while"):
        settings_of(app)


@pytest.mark.parametrize("queue", ["", 3, ["a"]])
def test_reap_queue_that_is_no_name_is_refused(queue: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^throttle_reap_queue must be .*: write throttle_reap_queue='"):
        settings_of(make_app(throttle_reap_queue=queue))


def test_reap_queue_keeps_the_entry_off_the_default_queue(
    beat_of_a_queue: Beat, workers: Workers, redis: Redis
) -> None:
    """Where no worker consumes that one, the messages would pile up."""
    worker = workers.start(FEATURES, queues="housekeeping")
    beat_of_a_queue.wait_for_log(f"Sending due task {REAP}")
    worker.wait_for_log(rf"Task {REAP}\[\S+\] succeeded")
    assert redis.llen("celery") == 0


def test_a_schedule_that_is_set_later_keeps_the_entry() -> None:
    app = Celery("beat", broker="redis://127.0.0.1:1/0", set_as_current=False)

    @app.task(shared=False, base=Throttled, limit=1, name="beat.work")
    def work() -> None: ...

    app.config_from_object({"broker_url": "redis://127.0.0.1:1/0", "beat_schedule": {"own": {}}})
    assert set(schedule_of(app)) == {REAP, "own"}


def test_an_app_without_throttled_tasks_has_no_entry() -> None:
    app = Celery("plain", broker="redis://127.0.0.1:1/0", set_as_current=False)
    assert REAP not in schedule_of(app)


def test_no_entry_where_throttling_is_turned_off() -> None:
    assert REAP not in schedule_of(make_app(throttle_enabled=False))
