"""The beat task that clears expired holders: there without being asked for, the user's to change or remove.

That it clears them is in test_told.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
from tests.support.workers import _CELERY, ROOT, Workers
from tests.workers.conftest import FEATURES

REAP, NOWHERE = "celery_throttle.reap", "redis://127.0.0.1:1/0"


def work() -> None: ...


def make_app(**conf: Any) -> Any:
    app: Any = Celery("beat", broker=NOWHERE, set_as_current=False)
    app.task(work, shared=False, base=Throttled, limit=1, name="beat.work")
    app.conf.update(**conf)
    return app


def schedule_of(app: Any) -> Any:
    """Return the schedule that beat would run, as beat itself finds it."""
    app.finalize()
    return app.conf.beat_schedule


NO_NAMES: list[Any] = ["", 3, []]
MINE = {"task": REAP, "schedule": 5, "options": {"queue": "housekeeping"}}


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"throttle_reap_every": 12.0}, {"schedule": 12.0}),
        ({"throttle_reap_every": timedelta(seconds=12)}, {"schedule": 12.0}),
        ({"throttle_reap_queue": "housekeeping"}, {"schedule": 30.0, "queue": "housekeeping"}),
        ({"throttle_reap_every": None}, None),
        ({"throttle_enabled": False}, None),
    ],
    ids=str,
)
def test_the_entry(conf: dict[str, Any], expected: dict[str, Any] | None) -> None:
    schedule = schedule_of(make_app(**conf, beat_schedule={"own": {}}))
    if expected is None:
        assert schedule.keys() == {"own"}
    else:
        # A worker that was away finds one, not all of them; the result has no reader.
        options = {"expires": expected["schedule"], "ignore_result": True, "queue": expected.get("queue")}
        wanted = {"task": REAP, "schedule": expected["schedule"], "options": options}
        schedule[REAP]["options"].setdefault("queue", None)
        assert schedule == {REAP: wanted, "own": {}}


def test_the_schedule_of_the_user_comes_first() -> None:
    """Also one that is set after the tasks were made, or a namespace that leaves the entry out."""
    assert schedule_of(make_app(beat_schedule={REAP: MINE, "own": {}})) == {REAP: MINE, "own": {}}
    app = make_app()
    app.config_from_object({"broker_url": NOWHERE, "beat_schedule": {"own": {}}})
    assert set(schedule_of(app)) == {REAP, "own"}
    app = make_app()
    conf = {"CELERY_BROKER_URL": NOWHERE, "CELERY_THROTTLE_REAP_EVERY": None}
    app.config_from_object(SimpleNamespace(**conf), namespace="CELERY")
    assert REAP not in schedule_of(app)
    assert settings_of(app).reap_every is None


def test_an_app_without_throttled_tasks_has_no_entry() -> None:
    assert REAP not in schedule_of(Celery("plain", broker=NOWHERE, set_as_current=False))


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"throttle_reap_queue": "a", "throttle_reap_every": None}, "throttle_reap_queue = 'a' has no effect while"),
        *(({"throttle_reap_queue": name}, "throttle_reap_queue must be .*: write throttle_re") for name in NO_NAMES),
    ],
    ids=str,
)
def test_a_queue_that_cannot_work_is_refused(conf: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{said}"):
        settings_of(make_app(**conf))


def test_beat_task_logs_an_outage_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app()  # no server listens at its URL
    app.task(work, shared=False, base=Throttled, limit=Limit("other", 1, group="other"), name="beat.of_another_group")

    assert app.tasks[REAP].apply().get() == 0

    said = [record for record in caplog.records if record.name == "celery_throttle.tasks.reap"]
    assert [record.levelname for record in said] == ["WARNING"] * 2  # one for each group
    assert not [record for record in caplog.records if record.exc_info]


def test_beat_sends_it_to_the_queue_of_the_setting(workers: Workers, tmp_path: Path, redis: Redis) -> None:
    """Where no worker consumes the default one, the messages would pile up."""
    workers.conf |= {"throttle_reap_every": 1.0, "throttle_reap_queue": "housekeeping"}
    worker = workers.start(FEATURES, queues="housekeeping")
    command = [sys.executable, "-c", _CELERY, str(ROOT), "-A", FEATURES, "beat", "-s", str(tmp_path / "schedule")]
    command += ["--max-interval", "1", "--pidfile="]
    log = (tmp_path / "beat.log").open("wb")
    with (
        log,
        subprocess.Popen(
            bound_to_parent(command), cwd=tmp_path, env=os.environ | workers.environment(), stdout=log, stderr=log
        ) as beat,
    ):
        try:
            worker.wait_for_log(rf"Task {REAP}\[\S+\] succeeded", times=2)
        finally:
            beat.kill()
    assert redis.llen("celery") == 0
