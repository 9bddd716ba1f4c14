"""Where the store is, in all the forms a URL may have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_throttle.core.keys import Keys
from celery_throttle.core.store_url import StoreUrl, shown
from celery_throttle.errors import ConfigurationError
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
    ("url", "fix"),
    [
        ("sentinel://:secret@a:26379/0", "add .*master_name=mymaster to throttle_url"),
        ("redis+sentinel://:secret@a:26379", "add .*master_name=mymaster to throttle_url"),
        ("sentinel://:secret@a/mymaster?master_name=m", "database must be a number, got 'mymaster'"),
        ("redis+cluster://:secret@a/3", "take /3 off throttle_url"),
        ("redis+cluster://:secret@a?db=3", "take /3 off throttle_url"),
        ("redis+cluster://:secret@a:port", "'a:port' is not host:port"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_the_fix(url: str, fix: str) -> None:
    with pytest.raises(ConfigurationError, match=fix) as refused:
        StoreUrl.parse(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("page", ["README.md", "docs/redis.md"])
def test_what_the_docs_show_can_be_used(page: str) -> None:
    shown = re.findall(r'throttle_url = "(\S+)"', (ROOT / page).read_text())
    assert {url.partition("://")[0] for url in shown} >= {"sentinel", "redis+cluster"}
    for url in shown:
        connection_factory(url, Keys("throttle"))


@pytest.mark.parametrize(
    "place", ["redis://host/abc", "rediss://u:pw@host:6380/one", "redis://host/0x1", "redis://host/?db=a"]
)
def test_a_database_that_is_no_number_is_refused(place: str) -> None:
    """Also by its number alone would redis-py go to database 0, without a word."""
    with pytest.raises(
        ConfigurationError, match=r"the database must be a number, got '.*': write redis://host"
    ) as raised:
        StoreUrl.parse(place)
    assert "pw" not in str(raised.value)


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
    ],
)
def test_what_may_be_logged(url: str, safe: str) -> None:
    assert shown(url) == safe
