"""A client of an app's store, for publishers and operators."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from celery_throttle.settings import settings_of
from celery_throttle.store.caller import Caller
from celery_throttle.store.calls import Store

__all__ = ["StoreClient", "store_client"]

_clients: WeakKeyDictionary[Any, dict[str | None, StoreClient]] = WeakKeyDictionary()


class StoreClient:
    """Asks the store of one app.

    Args:
        app: a Celery app.
        group: of limits; None for that of those that name none.

    Attributes:
        enabled: whether anything is throttled.
        store: builds the calls.
        ask: carries them out.
    """

    def __init__(self, app: Any, group: str | None) -> None:
        settings = settings_of(app)
        self.enabled = settings.enabled
        keys = settings.keys(group)
        self.ask = Caller(settings.url, keys).call
        self.store = Store(keys, settings.lease)


def store_client(app: Any, group: str | None = None) -> StoreClient:
    """Return the client of an app and group; made once, safe to use in threads and after a fork."""
    clients = _clients.setdefault(app, {})
    if group not in clients:
        clients[group] = StoreClient(app, group)
    return clients[group]
