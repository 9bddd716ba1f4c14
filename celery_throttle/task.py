"""`Throttled`, the base class that users give their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from celery import Task

from celery_throttle.core.options import check_option_names, check_same, task_limit
from celery_throttle.core.settings import Settings

if TYPE_CHECKING:
    from celery_throttle.core.limits import Limit

__all__ = ["REAP_TASK", "Throttled", "limits_of"]

#: The beat task, and its entry in ``beat_schedule``.
REAP_TASK = "celery_throttle.reap"

#: By app and task name, never by class: Celery makes a class of its own for every app that a task is shared with.
_limits: WeakKeyDictionary[Any, dict[str, Limit]] = WeakKeyDictionary()


class Throttled(Task):  # type: ignore[type-arg]  # generic only since Celery 5.7
    """Base class of tasks that are throttled over all workers::

        @app.task(base=Throttled, limit=5)
        def render(video_id): ...

    Attributes:
        limit: how many runs at once: a number for this task alone, a `Limit` to share it, None for no limit.

    Raises:
        ConfigurationError: when the task is bound, for an option that cannot work.

    Warning:
        Only workers throttle. ``task()``, ``task.apply()`` and eager mode run at once.
    """

    abstract = True
    limit: ClassVar[int | Limit | None] = None

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options and make the app's workers throttle; Celery calls this at least twice a task."""
        name = str(cls.name)
        known = {attribute for base in (*Throttled.__mro__, *cls.__mro__[1:]) for attribute in vars(base)}
        check_option_names(name, vars(cls), known)
        limit = task_limit(name, cls.limit)
        if limit is not None:
            limits = _limits.setdefault(app, {})
            check_same(name, limit, limits)
            limits[name] = limit
            _install(app)


def limits_of(app: Any) -> dict[str, Limit]:
    """Return the limit of every throttled task of the app, by the task's name."""
    return _limits.get(app, {})


def _install(app: Any) -> None:
    # By name: a producer never needs what runs in a worker.
    app.steps["worker"].add("celery_throttle.worker.steps:WorkerStep")
    app.steps["consumer"].add("celery_throttle.worker.steps:ConsumerStep")
    # Whatever configures the app again later would drop the entry, so this comes after each time it is configured.
    app.on_after_configure.connect(_schedule_reaper, weak=False, dispatch_uid="celery_throttle.reap")
    if app.configured:
        _schedule_reaper(app)


def _schedule_reaper(sender: Any, **_: Any) -> None:
    if sender.conf.get("throttle_enabled") is False:
        return
    every = sender.conf.get("throttle_reap_every") or Settings.reap_every
    entry = {"task": REAP_TASK, "schedule": every, "options": {"expires": every, "ignore_result": True}}
    sender.conf.beat_schedule.setdefault(REAP_TASK, entry)
