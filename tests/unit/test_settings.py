"""The ``throttle_*`` settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_throttle.core.settings import Settings
from celery_throttle.settings import settings_of
from tests.unit.refusals import make_app, message_of, rows

URL = "redis://host:6379/0"


def settings(**conf: Any) -> Settings:
    return settings_of(make_app(**conf))


def read(**given: Any) -> Settings:
    return Settings.read({"throttle_url": URL, **given}.get, [])


def nothing_set(_name: str, default: object) -> object:
    return default


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
    assert Settings.read(nothing_set, given) == Settings(expected)


def test_a_url_of_its_own_comes_first() -> None:
    assert Settings.read({"throttle_url": "unix:///run/redis.sock"}.get, [URL]).url == "unix:///run/redis.sock"


def test_everything_can_be_set() -> None:
    options: dict[str, Any] = {
        "url": URL,
        "prefix": "shop",
        "group": "eu",
        "broker": "orders",
        "lease": 5.0,
        "reap_every": 2.5,
        "reap_queue": "housekeeping",
        "on_store_error": "fail",
        "park_durability": "replicas",
        "park_replicas": 2,
        "park_timeout": 1.0,
        "max_begins": 3,
        "enabled": False,
        "environment": " production ",
    }
    given = {f"throttle_{name}": value for name, value in options.items()}
    assert read(**given) == Settings(**options | {"environment": "production"})
    assert read(throttle_lease=timedelta(minutes=2)).lease == 120.0
    assert read(throttle_max_begins=None).max_begins is None


REFUSED = rows(r"""
settings(throttle_url='http://host') => throttle_url must be a URL such as 'redis://host:6379/0', got 'http://host'
settings(throttle_url='localhost:6379') => got 'localhost:6379': write 'redis://localhost:6379/0'
settings(throttle_url='valkey://host/0') => got 'valkey://host/0': write 'redis://host/0'
settings(throttle_url='redis-cluster://host') => write 'redis+cluster://host'
settings(throttle_url='redis://a;redis://b') => throttle_url is one server, got 'redis://a;redis://b'
settings(throttle_url='redis://host/abc') => throttle_url: the database must be a number, got 'abc'
settings(broker_url='redis://host/abc') => the database must be a number, got 'abc'
settings(throttle_url=['redis://a']) => throttle_url must be a URL such as 'redis://host:6379/0', got
settings(throttle_broker=3) => throttle_broker must be 1 to 200 printable characters, got 3
settings(throttle_prefix='') => throttle_prefix must be text without braces, wildcards and blanks, got ''
settings(throttle_prefix='a{b}') => throttle_prefix must be text without braces, wildcards and blanks, got 'a{b}'
settings(throttle_prefix='a*') => text without braces, wildcards and blanks, got 'a*'
settings(throttle_prefix='a b') => text without braces, wildcards and blanks, got 'a b'
settings(throttle_prefix=5) => throttle_prefix must be text without braces, wildcards and blanks, got 5
settings(throttle_group='a:b') => throttle_group must be text without colons, got
settings(throttle_lease=timedelta(days=2)) => timedelta(days=2): write throttle_lease=60
settings(throttle_lease=0.99) => from 1 to 86400, got 0.99: write throttle_lease=60
settings(throttle_lease=86401) => throttle_lease must be seconds or a timedelta, from 1 to 86400, got 86401: write
settings(throttle_lease=float('nan')) => from 1 to 86400, got nan
settings(throttle_reap_every=0) => throttle_reap_every must be seconds or a timedelta, from 1 to 86400
settings(throttle_on_store_error='FAIL') => 'hold', 'run', 'fail', got 'FAIL': write throttle_on_store_error='fail'
settings(throttle_on_store_error=['hold']) => throttle_on_store_error must be one of 'hold', 'run', 'fail', got ['hold']
settings(throttle_park_durability='aof') => throttle_park_durability must be one of 'memory', 'disk', 'replicas', got
settings(throttle_environment='x' * 41) => throttle_environment must be 1 to 40 printable characters, got
settings(throttle_enabled='false') => must be True or False, got 'false': write throttle_enabled=False
settings(throttle_enabled=1) => got 1: write throttle_enabled=True
# -- how safe parked tasks are; a user that sets a number of replicas relies on waiting for them
settings(throttle_park_durability='replicas', throttle_park_replicas=0) => must be a whole number from 1 to 999999999
settings(throttle_park_durability='disk', throttle_park_timeout=0.05) => throttle_park_timeout must be seconds or a time
settings(throttle_park_durability='disk', throttle_park_timeout=float('inf')) => throttle_park_timeout must be seconds
settings(throttle_park_replicas=2) => throttle_park_replicas = 2 has no effect while throttle_park_durability is
settings(throttle_park_replicas=1, throttle_park_durability='disk') => while throttle_park_durability is 'disk'
settings(throttle_park_timeout=5) => throttle_park_timeout = 5.0 has no effect while throttle_park_durability is 'memory
settings(throttle_park_timeout=2.5) => : set throttle_park_durability = 'disk'
# -- no store
settings_of(Celery('other', set_as_current=False)) => nor the result backend of app 'other' is Redis: set throttle_url =
settings_of(Celery(set_as_current=False)) => Neither the broker nor the result backend is Redis: set
# -- settings that do not exist
settings(throttle_leese=5) => 'throttle_leese', did you mean 'throttle_lease'
settings(throttle_limits={'gpu': 3}) => set limits on the tasks, @app.task(base=Throttled, limit=5)
settings(throttle_rate='5/s') => set limits on the tasks
settings(throttle_result_state=True) => 'throttle_result_state': leave it out, and connect a receiver to celery_throttle
settings(throttle_backend='redis://h') => Unknown setting 'throttle_backend': there are throttle_broker, throttle_enabl
settings(throttle_key_prefix='a') => did you mean 'throttle_prefix'?
settings(throttle_disabled=False) => Unknown setting 'throttle_disabled': throttle_enabled is the opposite: True enforce
settings(throttle_disable=False) => throttle_enabled is the opposite: True enforces limits
settings(throttle={'url': 'redis://h'}) => Unknown setting 'throttle': each has a name of its own, write
settings(trottle_url='redis://h') => Setting 'trottle_url' has no effect: write 'throttle_url'
settings(celery_throttle_lease=60) => Setting 'celery_throttle_lease' has no effect: write 'throttle_lease'
# -- as Django projects write them: with a namespace in front, or in capitals
Settings.check_names(['CELERY_THROTTLE_LEESE'], 'celery_') => 'CELERY_THROTTLE_LEESE', did you mean 'CELERY_THROTTLE_LEA
Settings.check_names(['Throttle_Lease']) => 'Throttle_Lease' has no effect in capitals: write 'throttle_lease'
Settings.check_names(['THROTTLE_LEESE']) => 'THROTTLE_LEESE', did you mean 'throttle_lease'
""")
NAMES = {each.__name__: each for each in (Celery, Settings, settings, settings_of, timedelta)}


@pytest.mark.parametrize(("code", "said"), REFUSED)
def test_a_setting_that_cannot_work_is_refused(code: str, said: str) -> None:
    assert said in message_of(lambda: eval(code, dict(NAMES)))


@pytest.mark.parametrize("name", ["debug", "dry_run", "eager", "verbose", "cleanup", "log"])
def test_setting_like_none_of_ours_is_not_taken_for_one(name: str) -> None:
    """``throttle_debug = False`` as ``throttle_enabled = False`` would turn every limit off."""
    message = message_of(lambda: settings(**{f"throttle_{name}": False}))
    assert "did you mean" not in message
    assert message.startswith(f"Unknown setting 'throttle_{name}': there are throttle_broker, throttle_enabled, ")


def test_settings_of_others_are_not_looked_at() -> None:
    Settings.check_names(["broker_url", "throttle_url", "my_throttle_leese", "task_throttle"])
    Settings.check_names(["THROTTLE_LEASE", "CELERY_THROTTLE_LEASE"], "CELERY_")


def test_how_safe_parked_tasks_are() -> None:
    assert read().durability is None
    disk = read(throttle_park_durability="disk", throttle_park_timeout=2.5).durability
    assert disk is not None
    assert disk.command == ("WAITAOF", 1, 0, 2500)
    assert (disk.reached([1, 0]), disk.reached([0, 3])) == (True, False)
    replicas = read(throttle_park_durability="replicas", throttle_park_replicas=2).durability
    assert replicas is not None
    assert replicas.command == ("WAIT", 2, 3000)
    assert [replicas.reached(count) for count in (1, 2, 3)] == [False, True, True]
