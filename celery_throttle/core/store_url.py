"""Parse the URL of the store: one server, sentinels or a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from celery_throttle.errors import ConfigurationError

__all__ = ["PERCENT_ENCODE", "Address", "StoreUrl", "can_be_store", "has_raw_password", "shown"]

Address = tuple[str, int]

_SERVER = ("redis", "rediss", "unix", "redis+socket")
_SENTINEL = ("sentinel", "redis+sentinel", "rediss+sentinel")
_CLUSTER = ("redis+cluster", "rediss+cluster")

_TRUE = frozenset({"1", "true", "yes", "on"})

#: The fix for a URL that `has_raw_password`.
PERCENT_ENCODE = "has a raw '/', '?' or '#' in its password: percent-encode it, urllib.parse.quote(password, safe='')"
#: Where one URL of a list ends and the next one begins.
_NEXT_URL = re.compile(r";(?=[\w+.-]+://)")
_HOST = r"(\[[^\]@]*\]|[^:/?#@,]+)(:\d+)?"
#: The rest of a well-formed URL behind its password; an option in it may have an @.
_BEHIND_PASSWORD = re.compile(rf"({_HOST}(,{_HOST})*)?(/[^?#@]*)?(\?\w+=[^&#]*(&\w+=[^&#]*)*)?")
_PASSWORD_OPTION = re.compile(r"([?&]\w*password=)[^&]*", re.DOTALL)


@dataclass(frozen=True)
class StoreUrl:
    """The parts of one URL.

    Attributes:
        kind: one server, a primary behind sentinels, or a cluster.
        url: the URL for redis-py, with the options for a connection to the server that has the keys. With sentinels and
            clusters its host is a placeholder, because only the sentinels or the nodes have the address.
        nodes: host and port of the sentinels, or of some nodes of the cluster.
        master_name: the name of the primary at the sentinels.
        sentinel_url: as ``url``, for connections to the sentinels.
    """

    kind: Literal["server", "sentinel", "cluster"]
    url: str
    nodes: tuple[Address, ...] = ()
    master_name: str = ""
    sentinel_url: str = ""

    @classmethod
    def parse(cls, url: str) -> StoreUrl:
        """Parse a URL, in the forms of redis-py, of kombu, and of other clients of sentinels and clusters::

            redis://  rediss://  unix://  redis+socket://
            sentinel://[[user]:password@]host[:26379][,host2|;sentinel://host2][/db]?master_name=mymaster
            redis+sentinel://[[user]:password@]host[:26379][,host2]/mymaster[/db]
            redis+cluster://[[user]:password@]host[:6379][,host2]

        Options after ``?`` are redis-py's; ``sentinel_...`` ones are for the connections to the sentinels, and
        ``ssl=true`` means TLS, as ``rediss+sentinel://`` (the sentinels too) and ``rediss+cluster://`` do.

        Raises:
            ConfigurationError: the URL cannot work; the message has no password in it.
        """
        scheme = url.partition("://")[0]
        if has_raw_password(url):
            raise ConfigurationError(f"throttle_url: {shown(url)!r} {PERCENT_ENCODE}")
        if scheme in _SENTINEL:
            return cls._of_sentinels(scheme, _Parts(url, 26379))
        if scheme in _CLUSTER:
            return cls._of_cluster(scheme, _Parts(url, 6379))
        if scheme in ("redis", "rediss"):
            _refuse_bad_host(url)
            parts = _Parts(url, 6379)
            parts.database(parts.path)  # a check, because redis-py uses database 0 where this is no number
        return cls("server", _for_redis_py(url))

    @classmethod
    def _of_sentinels(cls, scheme: str, parts: _Parts) -> StoreUrl:
        name, path = parts.options.pop("master_name", ""), parts.path
        if scheme != "sentinel":
            in_path, _, path = path.partition("/")
            name = name or unquote(in_path)
        if not name:
            raise ConfigurationError(
                "The store is behind sentinels, and the name of its primary is missing: add ?master_name=mymaster to "
                "throttle_url, or master_name to broker_transport_options (result_backend_transport_options)"
            )
        both = scheme.startswith("rediss")
        ours, theirs = _split(parts.options, "sentinel_")
        if both:
            theirs = {option: value for option, value in ours.items() if option.startswith("ssl_")} | theirs
        return cls(
            "sentinel",
            _url(parts.user, parts.database(path), ours, secure=both),
            parts.nodes,
            name,
            _url("", 0, theirs, secure=both),
        )

    @classmethod
    def _of_cluster(cls, scheme: str, parts: _Parts) -> StoreUrl:
        if database := parts.database(parts.path):
            raise ConfigurationError(f"A cluster has only database 0: take /{database} off throttle_url")
        secure = scheme.startswith("rediss")
        return cls("cluster", _url(parts.user, 0, parts.options, secure=secure), parts.nodes)


def can_be_store(url: str) -> bool:
    """Return whether a URL has the scheme of a Redis of any kind; the rest of the URL is not checked."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in (*_SERVER, *_SENTINEL, *_CLUSTER)


def shown(url: str) -> str:
    """Return a URL without its passwords, for logs; a password may reach up to the last ``@``."""
    return ";".join(_masked(each) for each in _NEXT_URL.split(url))


def _masked(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    before, _, place = rest.rpartition("@")
    user, has_password, _ = before.partition(":")
    if has_password and _PASSWORD_OPTION.search(before):
        return f"{scheme}{separator}{user}:**"
    if has_password:
        rest = f"{user}:**@{place}"
    return scheme + separator + _PASSWORD_OPTION.sub(r"\1**", rest)


def has_raw_password(url: str, *, any_path: bool = False) -> bool:
    """Return whether a password in a URL, or in one of a list of URLs, has a raw ``/``, ``?`` or ``#``.

    URL parsers end the host at these characters, and read a part of the password as the host, the port or the path.

    Args:
        url: a URL, or several that are separated by ``;``.
        any_path: whether the path may have an ``@``, as in the name of a virtual host.
    """
    return any(_is_raw(each.partition("://")[2], any_path) for each in _NEXT_URL.split(url))


def _is_raw(rest: str, any_path: bool) -> bool:
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if re.search(r"[?&]\w*password=[^&]*#", rest):
        return True
    if ":" not in authority or "@" not in rest[len(authority) :] or (any_path and "@" in authority):
        return False
    return not _BEHIND_PASSWORD.fullmatch(rest[authority.rfind("@") + 1 :])


class _Parts:
    """The parts of a URL that names several nodes; options and password are taken from the first piece with them."""

    def __init__(self, url: str, default_port: int) -> None:
        self.user = self.path = ""
        self.options: dict[str, str] = {}
        nodes: list[Address] = []
        for piece in url.split(";"):
            place, _, query = piece.partition("://")[2].partition("?")
            authority, _, path = place.partition("/")
            user, _, hosts = authority.rpartition("@")
            nodes += [_address(host, default_port) for host in hosts.split(",")]
            self.user, self.path = self.user or user, self.path or path.strip("/")
            self.options = dict(parse_qsl(query)) | self.options
        self.nodes = tuple(nodes)

    def database(self, path: str) -> int:
        given = self.options.pop("db", path or "0")
        if not given.isdecimal():
            raise ConfigurationError(
                f"throttle_url: the database must be a number, got {given!r}: write redis://host:6379/0"
            )
        return int(given)


def _refuse_bad_host(url: str) -> None:
    """Refuse a URL that redis-py and urllib would refuse, because their messages show parts of the URL."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ConfigurationError(
            f"throttle_url: {shown(url)!r} has no valid host:port: write redis://:password@host:6379/0"
        ) from None


def _address(host: str, default_port: int) -> Address:
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port or default_port
    except ValueError:
        raise ConfigurationError(f"throttle_url: {host!r} is not host:port") from None
    return parts.hostname or "localhost", port


def _split(options: dict[str, str], prefix: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options without the prefix in their names, and those with it, which is taken off."""
    mine = {name: value for name, value in options.items() if not name.startswith(prefix)}
    return mine, {name[len(prefix) :]: value for name, value in options.items() if name.startswith(prefix)}


def _url(user: str, database: int, options: dict[str, str], *, secure: bool) -> str:
    secure = options.pop("ssl", "").lower() in _TRUE or secure
    place = f"{user}@unknown" if user else "unknown"
    return _for_redis_py(f"redis{'s' if secure else ''}://{place}/{database}?{urlencode(options)}".rstrip("?"))


def _for_redis_py(url: str) -> str:
    """Return a URL for redis-py, without the forms that only Celery and kombu read."""
    if url.startswith("redis+socket://"):
        path, _, query = url.removeprefix("redis+socket://").partition("?")
        url = f"unix://{path}?{query.replace('virtual_host=', 'db=')}".rstrip("?")
    return re.sub(r"(ssl_cert_reqs=)CERT_(\w+)", lambda found: found[1] + found[2].lower(), url)
