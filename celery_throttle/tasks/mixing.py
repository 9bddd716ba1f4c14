"""Add the app's own task class (Django's, Flask's, the user's) to the bases of a throttled task."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

from celery import Task

from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.one_line import in_one_line

__all__ = ["mix_in", "names_of", "remember_task"]

#: The objects of classes without a name.
_made: WeakKeyDictionary[type[Any], list[ref[Any]]] = WeakKeyDictionary()


@in_one_line()
def mix_in(cls: type[Any], app: Any, ours: type[Any]) -> None:
    """Make the app's task class the last base of a task's class.

    The user's attributes come first, then those of `Throttled`, then those of the app's task class. A class that names
    another task class beside ours (``class Own(Throttled, app.Task)``, ``class Own(Throttled, celery.Task)``) is not
    changed. ``ours`` is `Throttled`.

    Raises:
        ConfigurationError: no class can have both as bases.
    """
    theirs = app.Task
    if issubclass(cls, theirs) or _names_other_class(cls, ours):
        return
    # If the app's own class derives from a base, that base comes with the app's class.
    kept = tuple(base for base in cls.__bases__ if not issubclass(theirs, base))
    try:
        cls.__bases__ = (*kept, theirs)
    except TypeError as error:
        task, reason = vars(cls).get("name") or cls.__qualname__, " ".join(str(error).split())
        raise ConfigurationError(
            f"Task {task}: its class cannot also be the app's own task class, {theirs.__mro__[1].__qualname__} "
            f"({reason}): give it a base that is both, class Own(Throttled, app.Task)"
        ) from None


def names_of(cls: type[Any], app: Any) -> list[str]:
    """Return the names of the tasks of a class; an empty list if the class is only a base of others.

    ``app.register_task`` gives a name to an object whose class has none.
    """
    if cls.name:
        return [str(cls.name)]
    tasks = app._tasks  # noqa: SLF001
    if cls in _made:
        made = [task for each in _made[cls] if (task := each()) is not None and task.name]
        return [str(task.name) for task in made if tasks.get(task.name) is task]
    return [str(task.name) for task in list(tasks.values()) if type(task) is cls]


def remember_task(task: Any) -> None:
    """Store the object of a task whose class has no name, because a search among all tasks would be slow."""
    cls = type(task)
    if not cls.name:
        _made.setdefault(cls, []).append(ref(task))


def _names_other_class(cls: type[Any], ours: type[Any]) -> bool:
    written = (each for each in cls.__mro__ if issubclass(each, ours) and each is not ours)
    return any(issubclass(base, Task) and not issubclass(base, ours) for each in written for base in each.__bases__)
