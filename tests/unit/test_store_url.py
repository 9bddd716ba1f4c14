"""Where the store is, in all the forms a URL may have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_throttle.core.keys import Keys
from celery_throttle.core.store_url import StoreUrl, shown
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of
from celery_throttle.store.servers.client import connection_factory
from tests.support.workers import ROOT

A, B = ("a", 26379), ("b", 26380)
NAMED = {"kind": "sentinel", "master_name": "m", "sentinel_url": "redis://unknown/0"}


@pytest.mark.parametrize(
    ("url", "as_redis_py_reads_it"),
    [
        ("redis://:pw@host:6380/2", "redis://:pw@host:6380/2"),
        ("unix:///run/redis.sock?db=4", "unix:///run/redis.sock?db=4"),
        ("redis+socket:///run/redis.sock?virtual_host=4", "unix:///run/redis.sock?db=4"),
        ("redis+socket:///run/redis.sock", "unix:///run/redis.sock"),
        ("rediss://host?ssl_cert_reqs=CERT_NONE", "rediss://host?ssl_cert_reqs=none"),
    ],
)
def test_one_server(url: str, as_redis_py_reads_it: str) -> None:
    assert StoreUrl.parse(url) == StoreUrl("server", as_redis_py_reads_it)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sentinel://a?master_name=m", {"url": "redis://unknown/0", "nodes": (A,)}),
        ("sentinel://a,b:26380/3?master_name=m", {"url": "redis://unknown/3", "nodes": (A, B)}),
        ("sentinel://a/3;sentinel://b:26380/3?master_name=m", {"url": "redis://unknown/3", "nodes": (A, B)}),
        ("sentinel://a?master_name=m;sentinel://b:26380/3", {"url": "redis://unknown/3", "nodes": (A, B)}),
        ("redis+sentinel://a,b:26380/m", {"url": "redis://unknown/0", "nodes": (A, B)}),
        ("redis+sentinel://a,b:26380/m/3", {"url": "redis://unknown/3", "nodes": (A, B)}),
        ("sentinel://[::1]:1,[::2]?master_name=m", {"url": "redis://unknown/0", "nodes": (("::1", 1), ("::2", 26379))}),
        ("sentinel://?master_name=m", {"url": "redis://unknown/0", "nodes": (("localhost", 26379),)}),
        # The password is the primary's; that of the sentinels is an option.
        (
            "sentinel://u:p%40w@a;sentinel://b:26380?master_name=m&sentinel_password=s%2Fw&client_name=c",
            {
                "url": "redis://u:p%40w@unknown/0?client_name=c",
                "nodes": (A, B),
                "sentinel_url": "redis://unknown/0?password=s%2Fw",
            },
        ),
        # TLS to the primary, to the sentinels, to all.
        (
            "sentinel://a?master_name=m&ssl=true&ssl_cert_reqs=CERT_NONE",
            {"url": "rediss://unknown/0?ssl_cert_reqs=none", "nodes": (A,)},
        ),
        (
            "sentinel://a?master_name=m&sentinel_ssl=True&sentinel_ssl_ca_certs=ca",
            {"url": "redis://unknown/0", "nodes": (A,), "sentinel_url": "rediss://unknown/0?ssl_ca_certs=ca"},
        ),
        (
            "rediss+sentinel://a/m?ssl_ca_certs=ca",
            {
                "url": "rediss://unknown/0?ssl_ca_certs=ca",
                "nodes": (A,),
                "sentinel_url": "rediss://unknown/0?ssl_ca_certs=ca",
            },
        ),
    ],
)
def test_sentinels(url: str, expected: dict[str, Any]) -> None:
    assert StoreUrl.parse(url) == StoreUrl(**(NAMED | expected))


@pytest.mark.parametrize(
    ("url", "as_redis_py_reads_it", "nodes"),
    [
        ("redis+cluster://a", "redis://unknown/0", [("a", 6379)]),
        ("redis+cluster://u:p@a:7000,b/0", "redis://u:p@unknown/0", [("a", 7000), ("b", 6379)]),
        ("rediss+cluster://a?ssl_ca_certs=ca", "rediss://unknown/0?ssl_ca_certs=ca", [("a", 6379)]),
    ],
)
def test_a_cluster(url: str, as_redis_py_reads_it: str, nodes: list[tuple[str, int]]) -> None:
    assert StoreUrl.parse(url) == StoreUrl("cluster", as_redis_py_reads_it, tuple(nodes))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sentinel://:secret@a:26379/0", "add .*master_name=mymaster to throttle_url"),
        ("redis+sentinel://:secret@a:26379", "add .*master_name=mymaster to throttle_url"),
        ("sentinel://:secret@a/mymaster?master_name=m", "database must be a number, got 'mymaster'"),
        ("redis+cluster://:secret@a/3", "take /3 off throttle_url"),
        ("redis+cluster://:secret@a?db=3", "take /3 off throttle_url"),
        ("redis+cluster://:secret@a:port", "'a:port' is not host:port"),
        # With these redis-py would go to database 0, without a word.
        ("redis://host/abc", r"the database must be a number, got '.*': write redis://host"),
        ("rediss://u:secret@host:6380/one", r"the database must be a number, got '.*': write redis://host"),
        ("redis://host/0x1", r"the database must be a number, got '.*': write redis://host"),
        ("redis://host/?db=a", r"the database must be a number, got '.*': write redis://host"),
        ("redis://host/0?password=secret#cret", "percent-encode"),
        ("redis://u:secret@[::1/0", r"throttle_url: 'redis://u:\*\*@"),
        ("redis://u:secret@host:99999/0", r"throttle_url: 'redis://u:\*\*@"),
        ("redis://u:secret@ho\u2100st/0", r"throttle_url: 'redis://u:\*\*@"),
    ],
)
def test_a_url_that_cannot_work_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        StoreUrl.parse(url)
    assert "secret" not in str(refused.value)


def test_urls_in_the_docs_can_be_used() -> None:
    shown = re.findall(r'throttle_url = "(\S+)"', (ROOT / "docs" / "howto" / "redis.md").read_text())
    assert {url.partition("://")[0] for url in shown} >= {"sentinel", "redis+cluster"}
    for url in shown:
        connection_factory(url, Keys("throttle"))


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:s%2Fecret@host/0", "redis://:**@host/0"),
        ("rediss://user:s:e@cret@host:6380/0?ssl_cert_reqs=none", "rediss://user:**@host:6380/0?ssl_cert_reqs=none"),
        ("redis://user@host/0", "redis://user@host/0"),
        ("redis://host/0?password=secret&db=3", "redis://host/0?password=**&db=3"),
        (
            "sentinel://u:secret@a/2;sentinel://:secret@b?master_name=m&sentinel_password=secret",
            "sentinel://u:**@a/2;sentinel://:**@b?master_name=m&sentinel_password=**",
        ),
        ("unix:///run/redis.sock?db=4", "unix:///run/redis.sock?db=4"),
        ("redis://:p/w?r#d@host/0", "redis://:**@host/0"),
        ("redis://u:p@w/x@host:1/0", "redis://u:**@host:1/0"),
        ("redis://u:line\nbreak/@host/0", "redis://u:**@host/0"),
        ("redis://u:p?password=x@host/0", "redis://u:**"),
        ("redis://host/0?password=a;b@c&db=3", "redis://host/0?password=**&db=3"),
        ("sentinel://u:p/w@a/2;sentinel://:p;w@b", "sentinel://u:**@a/2;sentinel://:**@b"),
        ("redis://host/0?client_name=a@b", "redis://host/0?client_name=a@b"),
        ("amqp://u:p#w@host//", "amqp://u:**@host//"),
    ],
)
def test_loggable_form_of_a_url(url: str, safe: str) -> None:
    assert shown(url) == safe


RAW = ("s3/cret", "s3?cret", "s3#cret", "12/cret", "12?cret", "12#cret", "/", "s@3/cret", "s3?a=b/cret", "s3//cret")
FORMS = (
    "redis://:{}@host/0",
    "redis://user:{}@host:6379/0?ssl_cert_reqs=none",
    "rediss://user:{}@host",
    "sentinel://user:{}@a:26379,b/0?master_name=m",
    "sentinel://a:1/0;sentinel://:{}@b:26379/0?master_name=m",
    "redis+sentinel://:{}@a/m/0",
    "redis+cluster://:{}@a:7000,b",
    "unix://:{}@/run/redis.sock?db=1",
)


def shown_to_users(url: str) -> Iterator[str]:
    """Return all printed forms of a URL: as throttle_url, and as the broker's."""
    settings_of_it = [{"throttle_url": url}, {"broker_url": url}]
    if url.partition("://")[0] in ("redis", "rediss", "sentinel"):  # kombu's own
        settings_of_it.append({"broker_url": url, "throttle_url": "redis://store"})
    for settings in settings_of_it:
        app: Any = Celery("shop", set_as_current=False, changes=settings)
        with pytest.raises(ConfigurationError) as refused:
            connection_factory(settings_of(app).url, Keys("throttle"))
        yield str(refused.value)


@pytest.mark.parametrize("password", RAW)
@pytest.mark.parametrize("form", FORMS)
def test_raw_password_is_refused_with_the_fix(form: str, password: str) -> None:
    for error in shown_to_users(form.format(password)):
        assert "percent-encode" in error
        assert "urllib.parse.quote" in error
        assert not any(part in error for part in ("s3", "cret", "12"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pw@host:6379/0?client_name=a@b",
        "redis://[::1]:6379/0?client_name=a@b&db=1",
        "redis://:p@w@host/0",
        "redis://:a%2Fb%3Fc%23d%40@host/0",
        "redis://host/0?password=a@b",
        "redis://host:6379/0?password=a@b",
        "unix:///run/a:b@c.sock",
        "sentinel://u:p@a,b:26380/0?master_name=m&client_name=a@b",
    ],
)
def test_at_sign_elsewhere_is_no_raw_password(url: str) -> None:
    connection_factory(url, Keys("throttle"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"throttle_url": b"redis://:secret@host/0"}, "throttle_url must be a URL"),
        ({"throttle_url": ["redis://u:secret@a", "redis://u:secret@b"]}, "throttle_url must be a URL"),
        ({"throttle_url": "redis://h", "broker_url": "amqp://u:12#secret@host//"}, "broker_url: .*percent-encode"),
        ({"throttle_url": "redis://h", "broker_url": "amqp://u:s3/secret@host//"}, "broker_url: .*percent-encode"),
        ({"throttle_url": "redis://h", "broker_url": "pyamqp://:s3?secret@host"}, "broker_url: .*percent-encode"),
    ],
)
def test_settings_that_cannot_work_are_refused_without_their_password(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        settings_of(Celery("shop", set_as_current=False, changes=settings))
    assert "secret" not in str(refused.value)


def test_raw_key_where_kombu_takes_it_is_left_out_of_the_name() -> None:
    url = "azureservicebus://policy:s3/cret=@space"
    app = Celery("shop", set_as_current=False, changes={"throttle_url": "redis://h", "broker_url": url})
    assert settings_of(app).broker == "azureservicebus://space"


def test_at_sign_in_the_virtual_host_of_a_broker_is_none_either() -> None:
    app = Celery("shop", set_as_current=False, broker="amqp://u:p@host/a@b", changes={"throttle_url": "redis://h"})
    assert settings_of(app).broker.endswith("/a@b")


def test_two_names_of_one_transport_are_one_broker() -> None:
    apps = [Celery("shop", set_as_current=False, broker=f"{kind}://u:p@host//") for kind in ("amqp", "pyamqp")]
    for app in apps:
        app.conf.throttle_url = "redis://h"
    assert len({settings_of(app).broker for app in apps}) == 1
