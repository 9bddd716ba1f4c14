"""Find the queues of an app, so that a misspelt name is an error and not an empty queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_throttle.control.queues import named
from celery_throttle.core.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.reader import Reader

__all__ = ["configured", "no_such_queue", "parked_in"]

_MOST_NAMED = 20
#: The keys of a route; a mapping without them has patterns.
_ROUTE = {"queue", "exchange", "routing_key"}


class _AnyQueue(dict[str, Any]):
    """Queues for one router, not the app's, because a router adds the queues that it meets."""

    def __missing__(self, name: str) -> str:
        return name


def configured(app: Any) -> set[str]:
    """Return the queues in the configuration (with routes and beat's entries), and those of the app's tasks."""
    conf = app.conf
    found = {conf.task_default_queue, *named(app), *_of_routes(conf.task_routes), *_of_routers(app)}
    for entry in (conf.beat_schedule or {}).values():
        options = entry.get("options") if isinstance(entry, Mapping) else getattr(entry, "options", None)
        found.update(_names((options or {}).get("queue")))
    for task in app.tasks.values():
        found.update(_names(getattr(task, "queue", None)))
    return found


def _of_routers(app: Any) -> Iterator[str]:
    """Yield the queues that routers return for each task; each router runs alone, so that a failing one hides none."""
    router = app.amqp.router
    each_alone = [type(router)([each], _AnyQueue(), app=app) for each in router.routes]
    for name, task in app.tasks.items():
        for alone in each_alone:
            with suppress(Exception):  # a function of the user may fail, because there is no call here
                yield from _names(alone.route({}, name, task_type=task).get("queue"))


def _of_routes(routes: Any) -> Iterator[str]:
    """Yield the queues of ``task_routes``: a dict, pairs, or lists of both; `_of_routers` calls the functions."""
    if isinstance(routes, Mapping) and _ROUTE & routes.keys():
        yield from _names(routes.get("queue"))
    elif isinstance(routes, Mapping):
        yield from _of_routes(list(routes.items()))
    elif isinstance(routes, (list, tuple)):
        for each in routes:
            is_pair = isinstance(each, (list, tuple)) and len(each) == 2  # noqa: PLR2004 - pattern and route
            yield from _names(each[1]) if is_pair and isinstance(each[1], str) else _of_routes(each)


def _names(queue: Any) -> Iterable[str]:
    """Return the name of a queue that is given as text or as a kombu queue; empty if there is none."""
    name = getattr(queue, "name", queue)
    return (name,) if isinstance(name, str) and name else ()


def parked_in(readers: Iterable[Reader]) -> set[str]:
    """Return the queues of parked tasks of the app's own broker."""
    return {queue for reader in readers for queue in reader.parked_by_queue()[0]}


def no_such_queue(name: str, known: Iterable[str], *, workers_answered: bool) -> str:
    """Return the error for an unknown queue, with the likeliest names."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3)
    meant = f", did you mean {' or '.join(map(repr, close))}?" if close else "."
    listed = shortened(names, _MOST_NAMED) if names else "none"
    workers = "any worker that answers" if workers_answered else "parked tasks (no worker answered)"
    return (
        f"No queue {name!r}{meant} Known queues: {listed}. Neither the app's configuration nor the broker nor "
        f"{workers} has it: if it is new, name it in task_queues or task_routes"
    )
