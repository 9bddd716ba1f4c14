"""The two tasks that this library adds to every app: the reaper, and the task that a duplicate runs as.

The package imports this module, so it imports little itself; the code of the tasks is loaded when they run.
"""

from __future__ import annotations

from typing import Any

from celery import _state

__all__ = ["CONCLUDE", "REAP_TASK", "register"]

#: The beat task, and its entry in ``beat_schedule``.
REAP_TASK = "celery_throttle.reap"
CONCLUDE = "celery_throttle.tasks.conclude"


def register() -> None:
    """Add the tasks to every app of this process when the app is finalized, as Celery adds its own tasks."""
    _state.connect_on_app_finalize(_add_to)
    for app in _state._get_active_apps():  # type: ignore[attr-defined] # noqa: SLF001
        if app.finalized:
            with app._finalize_mutex:  # noqa: SLF001
                _add_to(app)


def _add_to(app: Any) -> None:
    # No import in here: a thread that is importing the same module may be waiting for the lock of this app.
    app.steps["worker"].add("celery_throttle.worker.reported.remarks:RemarksStep")

    @app.task(name=REAP_TASK, bind=True, ignore_result=True, shared=False, lazy=False)  # type: ignore[untyped-decorator]
    def reap(self: Any) -> int:
        """Clear the holders whose lease has ended and wake the workers that can use their permits; return how many."""
        from celery_throttle.tasks.reap import reap_all  # noqa: PLC0415

        return reap_all(self.app)

    # Late acknowledgement, so that the store keeps the duplicate's message until its canvas has gone on. No traceback
    # is logged, because an error here is that of the first task, and was logged there.
    @app.task(name=CONCLUDE, bind=True, acks_late=True, throws=(Exception,), shared=False, lazy=False)  # type: ignore[untyped-decorator]
    def conclude(self: Any, first: str, name: str, lost: bool = False) -> Any:
        """Return what the first task of this name returned, or raise what it raised; None if its result is not kept."""
        from celery_throttle.tasks.conclude import conclude_as  # noqa: PLC0415

        return conclude_as(self, first, name, lost=lost)
