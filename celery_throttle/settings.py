"""The settings of a Celery app, read once."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from celery_throttle.core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["settings_of"]

_settings: WeakKeyDictionary[Any, Settings] = WeakKeyDictionary()


def settings_of(app: Any) -> Settings:
    """Return the checked ``throttle_*`` settings of an app.

    Raises:
        ConfigurationError: a setting is unknown or cannot work, or no Redis is known.
    """
    if app not in _settings:
        conf = app.conf
        Settings.check_names(*_names(conf, getattr(app, "namespace", None)))
        _settings[app] = Settings.read(conf.get, _urls(conf))
    return _settings[app]


def _names(conf: Any, namespace: str | None) -> tuple[list[str], str]:
    """Return the names that are meant for Celery, and what stands in front of them."""
    if not namespace:
        return list(conf), ""
    # The rest of the configuration object is not Celery's: Django settings, say, with another package's THROTTLE_RATES.
    prefix = f"{namespace}_"
    return [name for name in conf if name.lower().startswith(prefix.lower())] + list(conf.maps[0]), prefix


def _urls(conf: Any) -> Iterator[str]:
    for url, tls in (
        (conf.broker_read_url, conf.broker_use_ssl),
        (conf.broker_url, conf.broker_use_ssl),
        (conf.result_backend, conf.get("redis_backend_use_ssl")),
    ):
        # Celery takes several brokers, as a list or with ; between them, and uses the first that works.
        first = url[0] if isinstance(url, (list, tuple)) and url else url
        if isinstance(first, str):
            yield _with_tls(first.split(";")[0], tls)


def _with_tls(url: str, tls: object) -> str:
    """Write Celery's TLS options into the URL, where redis-py reads them."""
    if not url.startswith(("redis://", "rediss://")) or not isinstance(tls, dict):
        return url
    options = {name: value.name if isinstance(value, ssl.VerifyMode) else value for name, value in tls.items()}
    secure = "rediss://" + url.partition("://")[2]
    return f"{secure}{'&' if '?' in secure else '?'}{urlencode(options)}"
