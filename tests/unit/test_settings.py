"""The ``throttle_*`` settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_throttle.core.settings import Settings
from celery_throttle.errors import ConfigurationError

URL = "redis://host:6379/0"


def read(**given: Any) -> Settings:
    return Settings.read(given.get, [])


def nothing_set(_name: str, default: object) -> object:
    return default


def test_only_a_store_is_needed() -> None:
    assert read(throttle_url=URL) == Settings(URL)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([URL, "redis://other"], URL),
        ([None, "", "amqp://rabbit", "rediss://backend"], "rediss://backend"),
        (["memory://", "redis+socket:///run/redis.sock"], "redis+socket:///run/redis.sock"),
        (["amqp://rabbit", "sentinel://a?master_name=m"], "sentinel://a?master_name=m"),
    ],
)
def test_the_first_redis_is_the_store(given: list[str | None], expected: str) -> None:
    """The broker, or else the result backend."""
    assert Settings.read(nothing_set, given).url == expected


def test_a_url_of_its_own_comes_first() -> None:
    settings = Settings.read({"throttle_url": "unix:///run/redis.sock"}.get, [URL])
    assert settings.url == "unix:///run/redis.sock"


def test_a_timedelta_is_seconds() -> None:
    assert read(throttle_url=URL, throttle_lease=timedelta(minutes=2)).lease == 120.0


def test_everything_can_be_set() -> None:
    settings = read(
        throttle_url=URL,
        throttle_prefix="shop",
        throttle_group="eu",
        throttle_broker="orders",
        throttle_lease=5,
        throttle_reap_every=2.5,
        throttle_reap_queue="housekeeping",
        throttle_on_store_error="fail",
        throttle_park_durability="replicas",
        throttle_park_replicas=2,
        throttle_park_timeout=1,
        throttle_enabled=False,
        throttle_environment=" production ",
    )
    assert settings == Settings(
        URL,
        "shop",
        "eu",
        "orders",
        5.0,
        2.5,
        "housekeeping",
        "fail",
        "replicas",
        2,
        1.0,
        enabled=False,
        environment="production",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throttle_url", "http://host"),
        ("throttle_url", "amqp://host"),
        ("throttle_url", 6379),
        ("throttle_broker", ""),
        ("throttle_broker", "a\nb"),
        ("throttle_broker", 3),
        ("throttle_prefix", ""),
        ("throttle_prefix", "a{b}"),
        ("throttle_prefix", "a*"),
        ("throttle_prefix", 5),
        ("throttle_lease", 0.5),
        ("throttle_lease", -60),
        ("throttle_lease", float("nan")),
        ("throttle_lease", float("inf")),
        ("throttle_lease", True),
        ("throttle_reap_every", "often"),
        ("throttle_on_store_error", "wait"),
        ("throttle_on_store_error", ["hold"]),
        ("throttle_park_durability", "aof"),
        ("throttle_park_durability", 1),
        ("throttle_environment", 1),
        ("throttle_environment", "a\nb"),
        ("throttle_environment", "x" * 41),
        ("throttle_enabled", "no"),
        ("throttle_enabled", 0),
    ],
)
def test_a_value_that_cannot_work_is_refused(name: str, value: Any) -> None:
    """The message names the setting."""
    with pytest.raises(ConfigurationError, match=name):
        read(**{"throttle_url": URL, name: value})


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1"])
def test_a_number_of_replicas_that_cannot_work_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"throttle_park_replicas must be a whole number.*got {value!r}"):
        read(throttle_url=URL, throttle_park_durability="replicas", throttle_park_replicas=value)


@pytest.mark.parametrize("value", [0, 0.05, float("inf"), "1", True])
def test_a_time_to_wait_that_cannot_work_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"throttle_park_timeout must be seconds.*got {value!r}"):
        read(throttle_url=URL, throttle_park_durability="disk", throttle_park_timeout=value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"park_replicas": 2}, "throttle_park_replicas = 2 has no effect while throttle_park_durability is 'memory'"),
        ({"park_replicas": 1, "park_durability": "disk"}, "throttle_park_replicas = 1 .* is 'disk'"),
        ({"park_timeout": 5}, r"throttle_park_timeout = 5.0 has no effect .*: set throttle_park_durability = 'disk'"),
    ],
)
def test_useless_safety_settings_are_refused(given: dict[str, Any], said: str) -> None:
    """A user that sets a number of replicas relies on waiting for them."""
    with pytest.raises(ConfigurationError, match=said):
        read(throttle_url=URL, **{f"throttle_{name}": value for name, value in given.items()})


def test_how_safe_parked_tasks_are() -> None:
    assert read(throttle_url=URL).durability is None
    disk = read(throttle_url=URL, throttle_park_durability="disk", throttle_park_timeout=2.5).durability
    assert disk is not None
    assert disk.command == ("WAITAOF", 1, 0, 2500)
    assert (disk.reached([1, 0]), disk.reached([0, 3])) == (True, False)
    replicas = read(throttle_url=URL, throttle_park_durability="replicas", throttle_park_replicas=2).durability
    assert replicas is not None
    assert replicas.command == ("WAIT", 2, 3000)
    assert [replicas.reached(count) for count in (1, 2, 3)] == [False, True, True]


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'throttle_leese', did you mean 'throttle_lease'"):
        Settings.check_names(["broker_url", "throttle_leese"])


def test_a_misspelt_setting_is_corrected_as_it_was_written() -> None:
    """With the namespace that a Django project puts in front."""
    with pytest.raises(ConfigurationError, match="'CELERY_THROTTLE_LEESE', did you mean 'CELERY_THROTTLE_LEASE'"):
        Settings.check_names(["CELERY_THROTTLE_LEESE"], "celery_")


def test_settings_of_others_are_not_looked_at() -> None:
    Settings.check_names(["broker_url", "throttle_url", "my_throttle_leese", "task_throttle"])
    Settings.check_names(["THROTTLE_LEASE", "CELERY_THROTTLE_LEASE"], "CELERY_")


@pytest.mark.parametrize("name", ["THROTTLE_LEASE", "Throttle_Lease"])
def test_a_setting_in_capitals_that_has_no_effect_is_refused(name: str) -> None:
    """As Django writes it, without the namespace that makes it work."""
    with pytest.raises(ConfigurationError, match=f"Setting '{name}' has no effect in capitals: write 'throttle_lease'"):
        Settings.check_names([name])
    with pytest.raises(ConfigurationError, match="'THROTTLE_LEESE', did you mean 'throttle_lease'"):
        Settings.check_names(["THROTTLE_LEESE"])
