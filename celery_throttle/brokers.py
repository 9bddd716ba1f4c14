"""Describe the broker of an app with a text that all workers of the broker share, and that has no secrets."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kombu.utils.url import url_to_parts

from celery_throttle.core.store_url import PERCENT_ENCODE, has_raw_password, shown
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["broker_of"]

_KINDS = {"rediss": "redis", "pyamqp": "amqp", "amqps": "amqp", "librabbitmq": "amqp"}
_PORTS = {"redis": 6379, "rediss": 6379, "sentinel": 26379, "amqps": 5671, "amqp": 5672}
_HOSTS = {"": "localhost", "127.0.0.1": "localhost", "::1": "localhost"}
#: The virtual host or database of a URL that has none.
_VHOSTS = {"redis": "0", "sentinel": "0", "amqp": "/"}
#: Options of the transport that separate two brokers at the same address.
_OPTIONS = ("master_name", "global_keyprefix", "queue_name_prefix", "region", "data_folder_in")


def broker_of(conf: Any, store: str) -> str:
    """Return the broker of an app: kind, hosts, virtual host or database, and the prefix of its keys or queues.

    The URLs of a failover list are one broker, in any order. Two names of one host count as two brokers; set
    ``throttle_broker`` in that case.

    Args:
        conf: the configuration of the app.
        store: the URL of the store. For a broker on this machine with a store elsewhere, the name of the machine is
            added, because other machines have brokers of the same name.

    Returns:
        The text, "" if no broker is configured.

    Raises:
        ConfigurationError: a password in a URL has a raw ``/``, ``?`` or ``#``.
    """
    given = conf.broker_read_url or conf.broker_url
    urls = ";".join(given) if isinstance(given, (list, tuple)) else given
    if not urls:
        return ""
    places = sorted({_place(url.strip()) for url in urls.split(";") if url.strip()})
    if any(_is_here(place) for place in places) and not _is_here(_place(store.partition(";")[0])):
        places.append(f"on {socket.gethostname()}")
    return " ".join([",".join(places), *_named(conf.broker_transport_options or {})])


def _place(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    if "," in hosts and scheme != "redis+socket":  # several nodes of one store
        user, at, several = hosts.rpartition("@")
        return ",".join(sorted(_place(f"{scheme}://{user}{at}{each}{slash}{path}") for each in several.split(",")))
    if not separator:
        return url.rpartition("@")[2]
    if scheme == "redis+socket":
        return f"{scheme}://{rest.rpartition('@')[2]}"
    if has_raw_password(url, any_path="redis" not in scheme and scheme != "sentinel"):
        if _KINDS.get(scheme, scheme) in _PORTS:
            raise ConfigurationError(f"broker_url: {shown(url)!r} {PERCENT_ENCODE}")
        return f"{scheme}://{rest.rpartition('@')[2]}"  # some transports of kombu accept it
    if "+" in scheme:  # for example a database of SQLAlchemy
        database = urlsplit(url)
        port = f":{database.port}" if database.port else ""
        return f"{scheme}://{database.hostname or ''}{port}{database.path}"
    parts, kind = url_to_parts(url), _KINDS.get(scheme, scheme)
    name, port_number = (parts.hostname or "").lower(), parts.port or _PORTS.get(scheme) or _PORTS.get(kind)
    host = f"{_HOSTS.get(name, name)}:{port_number}" if port_number else name
    return f"{kind}://{host}/{(parts.path or '').strip('/') or _VHOSTS.get(kind, '')}"


def _is_here(place: str) -> bool:
    kind, _, where = place.partition("://")
    return kind in ("redis+socket", "unix") or where.startswith("localhost")


def _named(options: Any) -> Iterator[str]:
    for name in _OPTIONS:
        if options.get(name):
            yield f"{name}={options[name]}"
