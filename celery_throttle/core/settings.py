"""The ``throttle_*`` settings: names, defaults, checks."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from celery_throttle.core.checks import NOT_IN_KEYS, closest, flag, group_name, key_part, one_of, seconds, text, whole
from celery_throttle.core.durability import Durability, ParkDurability
from celery_throttle.core.keys import Keys
from celery_throttle.core.options import TASK_OPTIONS
from celery_throttle.core.queues import code_of_broker
from celery_throttle.core.sites import HOST, read_tags
from celery_throttle.core.store_url import StoreUrl, can_be_store, shown
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["UNSET", "Settings", "StoreErrorAction"]

#: The value of a setting that is not set; None can be a set value.
UNSET: Any = object()

StoreErrorAction = Literal["hold", "run", "fail"]

_PREFIX = "throttle_"
_PLACE = re.compile(r"[\w.-]+(:[0-9]+)?")
#: Names that are no settings, each with the fix. Without the opposites a similar name would turn every limit off.
_ELSEWHERE = {
    "throttle": "each has a name of its own, write throttle_url = 'redis://host:6379/0'",
    **dict.fromkeys(
        (f"{_PREFIX}{name}{plural}" for name in (*TASK_OPTIONS, "task") for plural in ("", "s")),
        "set limits on the tasks, @app.task(base=Throttled, limit=5), or in task_annotations = {'shop.render': "
        "{'limit': 5}}",
    ),
    **dict.fromkeys(
        ("throttle_disabled", "throttle_disable"),
        "throttle_enabled is the opposite: True enforces limits, and is the default, write throttle_enabled = False to "
        "turn all off",
    ),
    "throttle_result_state": (  # a former setting
        "leave it out, and connect a receiver to celery_throttle.signals.task_parked that writes the state, as "
        "docs/reference/signals.md does in 'The state of a parked task'"
    ),
}
_DAY = 86400.0
#: The length of the name of an environment, which has to fit into the head of each page on a phone.
_LONGEST_ENVIRONMENT = 40


@dataclass(frozen=True)
class Settings:
    """Settings of one app; in Celery's configuration each name has ``throttle_`` in front.

    Attributes:
        url: the Redis to use, see `StoreUrl`. By default that of the broker, or else of the result backend, if it is
            Redis; "" if there is none, and ``enabled`` is False.
        prefix: the beginning of all keys; apps that share a prefix share their limits. By default ``throttle``, with
            Celery's ``global_keyprefix`` in front if that is set: it separates projects on one Redis.
        group: the group of all limits without a group of their own; all keys of a group share a hash slot in Redis.
        broker: the name of the broker; a parked task goes to workers of its own broker only. By default a description
            of the broker (kind, hosts, virtual host or database, ``global_keyprefix``); "" if no broker is known.
        lease: seconds a permit lasts when its worker no longer renews it.
        reap_every: seconds between two runs of the beat task that clears expired holders; None: beat has no such entry.
        reap_queue: the queue of that task; None: the queue to which Celery routes it.
        on_store_error: the action for a throttled task while the store is out of reach: the task waits (``hold``), runs
            without a permit (``run``) or fails (``fail``).
        park_durability: where a parked task is stored before its broker message is acknowledged: in the memory of the
            server (``memory``), also on the disk of the server (``disk``), or also in the memory of replicas
            (``replicas``).
        park_replicas: number of replicas.
        park_timeout: seconds after which a worker asks again whether a parked task is safe; until then the broker keeps
            the message.
        max_begins: how often a parked task may begin without an outcome before it is set aside; None: any number.
        enabled: False turns every limit off; workers and publishers then run as if the library were not installed.
        tags: values of ``per`` for the workers of this app or process, by name: ``{"gpu_box": "a7"}``. In the
            environment, ``THROTTLE_TAGS="gpu_box=a7"`` adds to them. A tag ``host`` replaces the name of the host.
        environment: the name of this deployment (``production``), which each page for operators shows; "" for none.
    """

    url: str
    prefix: str = "throttle"
    group: str = ""
    broker: str = ""
    lease: float = 60.0
    reap_every: float | None = 30.0
    reap_queue: str | None = None
    on_store_error: StoreErrorAction = "hold"
    park_durability: ParkDurability = "memory"
    park_replicas: int = 1
    park_timeout: float = 3.0
    max_begins: int | None = 5
    enabled: bool = True
    environment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def group_of(self, named: str | None) -> str:
        """Return the group of a limit, given the group in its declaration (None if it has none)."""
        return self.group if named is None else named

    @property
    def sites(self) -> dict[str, str]:
        """The names of the sites of this process, by kind: its host, and its tags."""
        return {HOST: socket.gethostname(), **self.tags}

    @property
    def broker_code(self) -> str:
        """The digits that stand for the broker in the names of queues in the store."""
        return code_of_broker(self.broker)

    def keys(self, named: str | None = None) -> Keys:
        """Return the keys for a limit, given the group in its declaration (None if it has none)."""
        return Keys(self.prefix, self.group_of(named))

    @property
    def durability(self) -> Durability | None:
        """The condition for acknowledging the message of a parked task; None if there is no wait."""
        if self.park_durability == "memory":
            return None
        return Durability(self.park_durability, self.park_replicas, self.park_timeout)

    def behind(self, keyprefix: str) -> Settings:
        """Return the settings with Celery's ``global_keyprefix`` in front of the prefix."""
        fit = "".join(f"%{ord(each):02x}" if each in NOT_IN_KEYS else each for each in keyprefix)
        return replace(self, prefix=fit + self.prefix)

    @classmethod
    def read(
        cls, get: Callable[[str, object], object], fallback_urls: Iterable[str | None], app: str | None = None
    ) -> Settings:
        """Read and check the settings.

        Args:
            get: returns the value of a setting by its full name, or else its second argument.
            fallback_urls: URLs that may be the store if ``throttle_url`` is not set, best first.
            app: the name of the app, for the message.

        Raises:
            ConfigurationError: a value cannot work, or there is no Redis to use.
        """
        given = {field.name: get(_PREFIX + field.name, UNSET) for field in fields(cls)}
        set_ = {name: value for name, value in given.items() if value is not UNSET}
        values = {name: _CHECKS[name](_PREFIX + name, value) for name, value in set_.items() if value is not None}
        for name in ("reap_every", "max_begins"):
            if name in set_ and set_[name] is None:
                values[name] = None  # a value with a meaning: no beat entry, no bound
        _refuse_without_effect(values)
        if "url" not in values:
            try:
                values["url"] = _first_redis(fallback_urls, app)
            except ConfigurationError:
                if values.get("enabled", True):
                    raise
                values["url"] = ""  # not used while throttling is off
        return cls(**values)  # type: ignore[arg-type]  # each value went through its check

    @classmethod
    def has(cls, name: str) -> bool:
        """Return whether there is a setting of this full name."""
        return name in {_PREFIX + field.name for field in fields(cls)}

    @classmethod
    def check_names(cls, names: Iterable[str], namespace: str = "") -> None:
        """Refuse a ``throttle_*`` setting that does not exist, or that Celery does not find as it is written.

        Args:
            names: as the user wrote them.
            namespace: the prefix that the names can have.

        Raises:
            ConfigurationError: names the wrong setting and the right one.
        """
        known = {_PREFIX + field.name for field in fields(cls)}
        for name in sorted(names):
            bare = name.lower().removeprefix(namespace.lower())
            if not namespace and name != bare and bare in known:
                raise ConfigurationError(f"Setting {name!r} has no effect in capitals: write {bare!r}")
            if bare in _ELSEWHERE:
                raise ConfigurationError(f"Unknown setting {name!r}: {_ELSEWHERE[bare]}")
            if bare.startswith(_PREFIX) and bare not in known:
                meant = closest(bare.removeprefix(_PREFIX), (each.removeprefix(_PREFIX) for each in known), 0.65)
                if not meant:
                    raise ConfigurationError(f"Unknown setting {name!r}: there are {', '.join(sorted(known))}")
                right = f"{_PREFIX}{meant}".upper() if namespace and name.isupper() else f"{_PREFIX}{meant}"
                raise ConfigurationError(f"Unknown setting {name!r}, did you mean {name[: -len(bare)] + right!r}?")
            if not namespace and (almost := _almost(bare, known)):
                raise ConfigurationError(f"Setting {name!r} has no effect: write {almost!r}")


def _almost(bare: str, known: Iterable[str]) -> str:
    """Return the setting that a name with a wrong prefix means: ``trottle_url``, ``celery_throttle_url``; else ""."""
    if bare in known:
        return ""
    if bare.removeprefix("celery_") in known:
        return bare.removeprefix("celery_")
    alike = [name for name in known if bare.endswith(name.removeprefix(_PREFIX))]  # most settings are Celery's own
    return closest(bare, alike, 0.9) if alike else ""


def _first_redis(urls: Iterable[str | None], app: str | None) -> str:
    for url in urls:
        if url and can_be_store(url):
            StoreUrl.parse(url)
            return url
    raise ConfigurationError(
        f"Neither the broker nor the result backend{f' of app {app!r}' if app else ''} is Redis: set throttle_url = "
        f"'redis://host:6379/0'"
    )


def _url(_: str, value: object) -> str:
    if not isinstance(value, str) or not can_be_store(value):
        given = repr(shown(f"://{value}").removeprefix("://")) if isinstance(value, str) else shown(repr(value))
        raise ConfigurationError(
            f"throttle_url must be a URL such as 'redis://host:6379/0', got {given}: write {_instead_of(value)!r}"
        )
    if ";" in value and value.startswith(("redis://", "rediss://")):
        raise ConfigurationError(
            f"throttle_url is one server, got {shown(value)!r}: write the one that has the limits, or "
            f"'sentinel://host1,host2/0?master_name=mymaster', 'redis+cluster://host1,host2'"
        )
    StoreUrl.parse(value)
    return value


def _instead_of(url: object) -> str:
    """Return the URL that a wrong value probably means."""
    if isinstance(url, bytes):
        url = url.decode(errors="replace")
    if not isinstance(url, str) or not url.strip():
        return "redis://host:6379/0"
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        return f"redis://{scheme}/0" if _PLACE.fullmatch(scheme) else "redis://host:6379/0"
    named = {"valkey": "redis", "valkeys": "rediss", "redis-cluster": "redis+cluster", "redis-sentinel": "sentinel"}
    meant = named.get(scheme.lower(), scheme.lower())
    return shown(f"{meant}://{rest}") if can_be_store(f"{meant}://{rest}") else "redis://host:6379/0"


def _environment(name: str, value: object) -> str:
    return text(name, value, _LONGEST_ENVIRONMENT, "production").strip() if value != "" else ""


def _refuse_without_effect(values: Mapping[str, object]) -> None:
    durability, never_reaps = values.get("park_durability", "memory"), values.get("reap_every", UNSET) is None
    why, other = f"park_durability is {durability!r}", "park_durability = 'disk' or 'replicas',"
    for name, has_none, while_, fix in (
        ("reap_queue", never_reaps, "reap_every is None", "reap_every = 30"),
        ("park_replicas", durability != "replicas", why, "park_durability = 'replicas'"),
        ("park_timeout", durability == "memory", why, other),
    ):
        if name in values and has_none:
            raise ConfigurationError(
                f"throttle_{name} = {values[name]!r} has no effect while throttle_{while_}: "
                f"set throttle_{fix} or leave it out"
            )


_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "url": _url,
    "prefix": partial(key_part, usual="shop"),
    "group": group_name,
    "broker": partial(text, usual="orders"),
    "lease": partial(seconds, least=1.0, most=_DAY, usual=60),
    "reap_every": partial(seconds, least=1.0, most=_DAY),
    "reap_queue": partial(text, usual="housekeeping"),
    "on_store_error": partial(one_of, choices=get_args(StoreErrorAction)),
    "park_durability": partial(one_of, choices=get_args(ParkDurability)),
    "park_replicas": partial(whole, usual=1),
    "park_timeout": partial(seconds, least=0.1, most=_DAY, usual=3),
    "max_begins": partial(whole, usual=5),
    "enabled": flag,
    "environment": _environment,
    "tags": read_tags,
}
