"""The ``throttle_*`` settings of a Celery app, read once."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from celery_throttle.brokers import broker_of
from celery_throttle.core.settings import Settings
from celery_throttle.core.sites import read_tags
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["checked_app", "forget_settings", "settings_of", "throttles", "without_effect"]

_settings: WeakKeyDictionary[Any, Settings] = WeakKeyDictionary()


def checked_app(what: str, app: Any) -> Any:
    """Return ``app`` if it is a Celery app.

    Raises:
        ConfigurationError: it is another object; ``what`` is the called function, for the message.
    """
    if not hasattr(app, "conf") or not hasattr(app, "finalize"):
        raise ConfigurationError(
            f"{what}: app must be the Celery app, as in app = Celery(...), got {app!r}: write app=app"
        )
    return app


def settings_of(app: Any) -> Settings:
    """Return the checked ``throttle_*`` settings of an app.

    Raises:
        ConfigurationError: a setting is unknown or cannot work, or no Redis is known.
    """
    if app not in _settings:
        conf = app.conf
        Settings.check_names(*_names(conf, getattr(app, "namespace", None)))
        tried: list[str] = []  # the keyprefix of each place that was read
        settings = Settings.read(conf.get, _noting(_places(conf), tried), app.main)
        if conf.get("throttle_prefix") is None:
            # Where throttle_url is set, the broker's prefix, because queues belong to the broker and separate projects.
            settings = settings.behind(tried[-1] if tried else _keyprefix(conf.broker_transport_options))
        if not settings.broker:
            settings = replace(settings, broker=broker_of(conf, settings.url))
        tags = read_tags("THROTTLE_TAGS", os.environ.get("THROTTLE_TAGS", ""))
        _settings[app] = replace(settings, tags={**settings.tags, **tags})
    return _settings[app]


def forget_settings(app: Any) -> None:
    """Read the settings of an app again on their next use, because a test has changed them."""
    _settings.pop(app, None)


def throttles(app: Any) -> bool:
    """Return whether tasks need permits and locks: not if they run eagerly, nor if throttling is turned off.

    Raises:
        ConfigurationError: as `settings_of`, but for an eager app.
    """
    return not app.conf.task_always_eager and settings_of(app).enabled


def without_effect(app: Any) -> Iterator[tuple[str, str]]:
    """Yield settings that have our name without the namespace of the app, each with the right name."""
    prefix = f"{app.namespace}_" if getattr(app, "namespace", None) else ""
    for name in sorted(app.conf) if prefix else ():
        if name.isupper() and Settings.has(name.lower()):
            yield name, f"{prefix}{name}"


def _names(conf: Any, namespace: str | None) -> tuple[list[str], str]:
    """Return the names that are meant for Celery, and their prefix."""
    if not namespace:
        return list(conf), ""
    # Other names belong to other programs: Django settings may have THROTTLE_RATES of another package, for example.
    prefix = f"{namespace}_"
    return [name for name in conf if name.lower().startswith(prefix.lower())] + list(conf.maps[0]), prefix


def _noting(places: Iterator[tuple[str, str]], tried: list[str]) -> Iterator[str]:
    for url, keyprefix in places:
        tried.append(keyprefix)
        yield url


def _keyprefix(options: Any) -> str:
    return str((options or {}).get("global_keyprefix") or "")


def _places(conf: Any) -> Iterator[tuple[str, str]]:
    """Yield the URLs that may be the store, best first, each with the prefix of Celery's own keys there."""
    broker, backend = conf.broker_transport_options, conf.result_backend_transport_options
    for url, tls, options in (
        (conf.broker_read_url, conf.broker_use_ssl, broker),
        (conf.broker_url, conf.broker_use_ssl, broker),
        (conf.result_backend, conf.get("redis_backend_use_ssl"), backend),
    ):
        # Celery takes several brokers, as a list or with ; between them, and uses the first that works.
        urls = ";".join(url) if isinstance(url, (list, tuple)) else url
        if isinstance(urls, str):
            yield _whole(urls.split(";"), tls, options or {}), _keyprefix(options)


def _whole(urls: list[str], tls: object, options: dict[str, Any]) -> str:
    """Return the first of several URLs, completed from Celery's other settings."""
    first, *others = urls
    if first.startswith("sentinel://"):  # several sentinel URLs are one store
        sentinels = [first, *(other for other in others if other.startswith("sentinel://"))]
        return _with_options(";".join(sentinels), tls, options)
    return _with_tls(first, tls)


def _with_tls(url: str, tls: object) -> str:
    """Return the URL with Celery's TLS options in it, where redis-py reads them."""
    if not url.startswith(("redis://", "rediss://")) or not isinstance(tls, dict):
        return url
    return _with_query("rediss://" + url.partition("://")[2], _text(tls, "use_ssl"))


def _with_options(url: str, tls: object, options: dict[str, Any]) -> str:
    """Return a URL of sentinels with the options from Celery's other settings in it."""
    query: dict[str, Any] = {"master_name": options["master_name"]} if options.get("master_name") else {}
    if isinstance(tls, dict):
        query |= {"ssl": "true", **_text(tls, "use_ssl")}
    theirs = _text(options.get("sentinel_kwargs") or {}, "sentinel_kwargs")
    return _with_query(url, query | {f"sentinel_{name}": value for name, value in theirs.items()})


def _with_query(url: str, query: dict[str, Any]) -> str:
    separator = "&" if "?" in url.rpartition(";")[2] else "?"
    return f"{url}{separator}{urlencode(query)}" if query else url


def _text(options: dict[str, Any], setting: str) -> dict[str, Any]:
    """Return options of redis-py in the form for a URL."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name == "ssl_cert_reqs":
            given[name] = "none" if value is None else getattr(value, "name", value)
        elif isinstance(value, (str, int, float)):
            given[name] = value
        elif value is not None:
            raise ConfigurationError(
                f"{setting}: {name} cannot be written into the URL of the store, set throttle_url without it"
            )
    return given
