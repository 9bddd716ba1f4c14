"""Find the app that declared a task: Celery gives every app the shared tasks of all other apps of the process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery import _state

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from types import FrameType

__all__ = ["are_several", "is_own"]

#: By app: a mark of the list of tasks that wait to be bound, and their names.
_waiting: WeakKeyDictionary[Any, tuple[tuple[int, int], AbstractSet[str | None]]] = WeakKeyDictionary()
_ANNOUNCE = _state._announce_app_finalized.__code__  # type: ignore[attr-defined] # noqa: SLF001


def is_own(app: Any, name: str) -> bool:
    """Return whether this app itself declared a task that is being bound for the first time.

    A shared task is bound when an app is finalized, or by ``shared_task``. Celery does not mark such a task, but the
    call stack shows it. The app's own shared tasks are bound the same way, and are in its list of pending tasks then.
    """
    return not _is_shared(app) or name in _waiting_names(app)


def are_several() -> bool:
    """Return whether there is more than one app in this process."""
    return len(list(_state._get_active_apps())) > 1  # type: ignore[attr-defined] # noqa: SLF001


def _is_shared(app: Any) -> bool:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        announced = frame.f_code is _ANNOUNCE and frame.f_locals.get("app") is app
        if announced or frame.f_globals.get("__name__") == "celery.app":  # the module of shared_task
            return True
        frame = frame.f_back
    return False


def _waiting_names(app: Any) -> AbstractSet[str | None]:
    """Return the names of the tasks that the app declared and has not bound, cached until that list changes."""
    waiting = list(app._pending)  # noqa: SLF001
    which = (len(waiting), id(waiting[-1]) if waiting else 0)
    known = _waiting.get(app)
    if known is None or known[0] != which:
        known = _waiting[app] = which, {_name(app, each) for each in waiting}
    return known[1]


def _name(app: Any, waiting: Any) -> str | None:
    """Return the name of a task whose decorator has not run yet, see `celery.local.PromiseProxy`; None if it has."""
    try:
        (function,) = object.__getattribute__(waiting, "_Proxy__args")
        options = object.__getattribute__(waiting, "_Proxy__kwargs")
    except AttributeError:
        return None  # the decorator has run, because code used the task
    return options.get("name") or app.gen_task_name(function.__name__, function.__module__)  # type: ignore[no-any-return]
