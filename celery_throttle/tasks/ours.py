"""The tasks of ours that an app has to know, by name: the reaper, and what a duplicate runs as.

Imported with the package, so it loads next to nothing: what the tasks do is loaded when they run.
"""

from __future__ import annotations

from typing import Any

from celery import _state

__all__ = ["CONCLUDE", "REAP_TASK", "register"]

#: The beat task, and its entry in ``beat_schedule``.
REAP_TASK = "celery_throttle.reap"
CONCLUDE = "celery_throttle.tasks.conclude"


def register() -> None:
    """Have every app of this process know the tasks, whenever it is finalized; as Celery does with its own."""
    _state.connect_on_app_finalize(_add_to)
    for app in _state._get_active_apps():  # type: ignore[attr-defined] # noqa: SLF001
        if app.finalized:
            with app._finalize_mutex:  # noqa: SLF001
                _add_to(app)


def _add_to(app: Any) -> None:
    # No import in here: a thread that is importing what we want may be waiting for the lock of this app.
    app.steps["worker"].add("celery_throttle.worker.reported.remarks:RemarksStep")

    @app.task(name=REAP_TASK, bind=True, ignore_result=True, shared=False, lazy=False)  # type: ignore[untyped-decorator]
    def reap(self: Any) -> int:
        """Clear the holders whose lease has ended and wake the workers that can use their permits; return how many."""
        from celery_throttle.tasks.reap import reap_all  # noqa: PLC0415

        return reap_all(self.app)

    # Late acknowledgement: the store keeps the duplicate's message until its canvas has gone on. An error is the first
    # one's, and was logged there.
    @app.task(name=CONCLUDE, bind=True, acks_late=True, throws=(Exception,), shared=False, lazy=False)  # type: ignore[untyped-decorator]
    def conclude(self: Any, first: str, name: str, lost: bool = False) -> Any:
        """Return what the first task of this name returned, or raise what it raised; None if its result is not kept."""
        from celery_throttle.tasks.conclude import conclude_as  # noqa: PLC0415

        return conclude_as(self, first, name, lost=lost)
