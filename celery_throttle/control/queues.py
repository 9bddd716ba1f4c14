"""Query the broker and its workers: the queues, their messages, and the queues that workers consume.

Find the queues of an app too, so that a misspelt name is an error and not an empty queue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.exceptions import InconsistencyError
from kombu.transport import virtual

from celery_throttle.core.checks import closest
from celery_throttle.core.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

__all__ = [
    "NO_ANSWER",
    "Depth",
    "Slots",
    "configured",
    "consumed",
    "depths",
    "free_slots",
    "named",
    "no_such_queue",
    "reached",
]

logger = logging.getLogger(__name__)

_MOST_NAMED = 20
#: The keys of a route; a mapping without them has patterns.
_ROUTE = {"queue", "exchange", "routing_key"}
#: Seconds that workers have to answer.
_PATIENCE = 1.0
#: The reply code of AMQP.
_NO_SUCH_QUEUE = "404"
#: The entry of `unchecked` if `consumed` returns None.
NO_ANSWER = "Which queues the workers consume: none answered a remote control command within a second."
#: The timeout options by kind of broker; kombu's own is for connecting only, and not for Redis.
_TIMEOUTS = {"redis": ("socket_connect_timeout", "socket_timeout"), "amqp": ("read_timeout", "write_timeout")}


@contextmanager
def reached(connect: Callable[..., Any], patience: float, **options: Any) -> Iterator[Any]:
    """Connect to the broker, with ``patience`` seconds as the timeout of each operation.

    Raises:
        kombu.exceptions.OperationalError: the broker cannot be reached, or does not answer.
    """
    with connect(connect_timeout=patience, transport_options=options) as connection:
        for option in _TIMEOUTS.get(connection.transport.driver_type, ()):
            connection.transport_options.setdefault(option, patience)
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=patience)
        yield connection


def consumed(app: Any) -> set[str] | None:
    """Return the queues of the workers that answer; None if no worker answers or the broker has no remote control."""
    if not app.conf.broker_write_url:  # Celery would use its default broker
        return None
    try:
        with reached(app.connection_for_write, _PATIENCE) as connection:
            asks = app.control.inspect(timeout=_PATIENCE, connection=connection)
            answers: dict[str, list[dict[str, Any]]] | None = asks.active_queues()
    except Exception:  # noqa: BLE001 - each broker has its own, and many have no remote control
        return None
    return {queue["name"] for queues in answers.values() for queue in queues} if answers else None


class Slots(NamedTuple):
    """A worker that takes parked tasks: its queues, and the number of free slots of its pool."""

    queues: frozenset[str]
    free: int


def free_slots(app: Any) -> list[Slots] | None:
    """Return the slots of the workers that answer ``inspect throttle``; None as for `consumed`."""
    if not app.conf.broker_write_url:
        return None
    try:
        with reached(app.connection_for_write, _PATIENCE) as connection:
            answers = app.control.broadcast("throttle", reply=True, timeout=_PATIENCE, connection=connection) or []
        workers = [each for answer in answers for each in answer.values() if each.get("groups")]
        return [_slots_of(each) for each in workers] or None
    except Exception:  # noqa: BLE001 - each broker has its own, and many have no remote control
        return None


def _slots_of(worker: dict[str, Any]) -> Slots:
    queues = (queue for group in worker["groups"] for queue in group["queues"])
    return Slots(frozenset(queues), int(worker["slots"]["free"]))


def named(app: Any) -> set[str]:
    """Return the queues in the app's configuration, without broadcast queues, because each worker has its own."""
    if not app.conf.broker_read_url:
        return set()
    queues = app.amqp.queues.values()
    return {each.name for each in queues if each.exchange is None or each.exchange.type != "fanout"}


class Depth(NamedTuple):
    """The depth of a queue in the broker, without the unacknowledged messages of workers.

    None: the broker does not report the messages, or whether the queue exists.
    """

    messages: int | None = None
    exists: bool | None = None


def depths(app: Any, names: Iterable[str], known: Container[str] = ()) -> dict[str, Depth]:
    """Return the depth of these queues of the broker; for queues that are not ``known``, with their existence."""
    found = dict.fromkeys(names, Depth())
    if not found or not app.conf.broker_read_url:
        return found
    try:
        exchanges = [each.exchange.name for each in app.amqp.queues.values() if each.exchange is not None]
        with reached(app.connection_for_read, _PATIENCE) as connection:
            for name in found:
                # A known queue needs no proof of its existence, which takes a request for each exchange.
                found[name] = _depth(connection, name, () if name in known else dict.fromkeys([name, *exchanges]))
    except Exception:
        logger.debug("The broker does not report the messages in its queues", exc_info=True)
    return found


def _depth(connection: Any, name: str, exchanges: Iterable[str]) -> Depth:
    with connection.channel() as channel:  # an error of AMQP closes it
        if isinstance(channel, virtual.Channel) and type(channel)._size is virtual.Channel._size:  # noqa: SLF001
            return Depth()  # the default of kombu, which is always 0
        try:
            count = int(channel.queue_declare(queue=name, passive=True).message_count)
        except connection.channel_errors as error:
            if str(getattr(error, "reply_code", "")) != _NO_SUCH_QUEUE:
                return Depth()
            return Depth(0, _is_bound(channel, name, exchanges))
        return Depth(count, True if count or _knows_its_queues(channel) else None)


def _knows_its_queues(channel: Any) -> bool:
    """Return whether the transport refuses undeclared queues; by kombu's default any queue exists."""
    return not isinstance(channel, virtual.Channel) or type(channel)._has_queue is not virtual.Channel._has_queue  # noqa: SLF001


def _is_bound(channel: Any, queue: str, exchanges: Iterable[str]) -> bool:
    """Return whether an empty queue was declared: Redis has no empty lists, but the binding of the queue stays."""
    if not isinstance(channel, virtual.Channel):
        return False
    for exchange in exchanges:
        try:
            table = channel.get_table(exchange)
        except (KeyError, InconsistencyError):  # nothing is bound to it
            continue
        if any(bound[-1] == queue for bound in table):
            return True
    return False


# -- the queues of an app ---------------------------------------------------------------------------------------------


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


def no_such_queue(name: str, known: Iterable[str], *, workers_answered: bool) -> str:
    """Return the error for an unknown queue, with the likeliest name."""
    names = sorted(known)
    close = closest(name, names)
    meant = f", did you mean {close!r}?" if close else "."
    listed = shortened(names, _MOST_NAMED) if names else "none"
    workers = "any worker that answers" if workers_answered else "parked tasks (no worker answered)"
    return (
        f"No queue {name!r}{meant} Known queues: {listed}. Neither the app's configuration nor the broker nor "
        f"{workers} has it: if it is new, name it in task_queues or task_routes"
    )
