"""Make the workers of an app throttle, and beat clear expired holders."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery_throttle.core.settings import Settings
from celery_throttle.tasks.ours import REAP_TASK

__all__ = ["free_locks", "install"]

#: The steps that make a worker throttle. By name, so that a producer does not import the worker's code.
_STEP, _CONSUMER_STEP = (f"celery_throttle.worker.bootsteps:{name}" for name in ("WorkerStep", "ConsumerStep"))


def free_locks(app: Any) -> None:
    """Have workers of an app without any option free the locks in their messages, which another release published."""
    app.steps["worker"].add(_STEP)


def install(app: Any) -> None:
    """Add the steps to the workers of an app, and the task that clears expired holders to its schedule."""
    if _CONSUMER_STEP in app.steps["consumer"]:  # another task did so
        return
    app.steps["worker"].add(_STEP)
    app.steps["consumer"].add(_CONSUMER_STEP)
    app.steps["worker"].add("celery_throttle.control.remote_step:RemoteStep")
    # A second configuration, or another schedule that is set before the app is used, drops the entry.
    for signal in (app.on_after_configure, app.on_after_finalize):
        signal.connect(_schedule_reaper, weak=False, dispatch_uid="celery_throttle.reap")
    if app.configured:
        _schedule_reaper(app)


def _schedule_reaper(sender: Any, **_: Any) -> None:
    if sender.conf.get("throttle_enabled") is False:
        return
    every = sender.conf.get("throttle_reap_every", Settings.reap_every)
    if every is None:
        return
    every = every.total_seconds() if isinstance(every, timedelta) else every
    queue = sender.conf.get("throttle_reap_queue")
    options = {"expires": every, "ignore_result": True} | ({"queue": queue} if queue else {})
    entry = {"task": REAP_TASK, "schedule": every, "options": options}
    sender.conf.beat_schedule.setdefault(REAP_TASK, entry)
