"""The URL of the store, in all its forms."""

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
from tests.unit.refusals import rows

#: A URL, the one that redis-py reads for the server with the keys, the nodes, and the URL for sentinels if it differs.
PARSED = rows("""
redis://:pw@host:6380/2 => redis://:pw@host:6380/2
unix:///run/redis.sock?db=4 => unix:///run/redis.sock?db=4
redis+socket:///run/redis.sock?virtual_host=4 => unix:///run/redis.sock?db=4
redis+socket:///run/redis.sock => unix:///run/redis.sock
rediss://host?ssl_cert_reqs=CERT_NONE => rediss://host?ssl_cert_reqs=none
# -- sentinels
sentinel://a?master_name=m => redis://unknown/0 a:26379
sentinel://a,b:26380/3?master_name=m => redis://unknown/3 a:26379 b:26380
sentinel://a/3;sentinel://b:26380/3?master_name=m => redis://unknown/3 a:26379 b:26380
sentinel://a?master_name=m;sentinel://b:26380/3 => redis://unknown/3 a:26379 b:26380
redis+sentinel://a,b:26380/m => redis://unknown/0 a:26379 b:26380
redis+sentinel://a,b:26380/m/3 => redis://unknown/3 a:26379 b:26380
sentinel://[::1]:1,[::2]?master_name=m => redis://unknown/0 ::1:1 ::2:26379
sentinel://?master_name=m => redis://unknown/0 localhost:26379
# The password is the primary's; that of the sentinels is an option.
sentinel://u:p%40w@a;sentinel://b:26380?master_name=m&sentinel_password=s%2Fw&client_name=c
    => redis://u:p%40w@unknown/0?client_name=c a:26379 b:26380 redis://unknown/0?password=s%2Fw
# TLS to the primary, to the sentinels, to all.
sentinel://a?master_name=m&ssl=true&ssl_cert_reqs=CERT_NONE => rediss://unknown/0?ssl_cert_reqs=none a:26379
sentinel://a?master_name=m&sentinel_ssl=True&sentinel_ssl_ca_certs=ca
    => redis://unknown/0 a:26379 rediss://unknown/0?ssl_ca_certs=ca
rediss+sentinel://a/m?ssl_ca_certs=ca
    => rediss://unknown/0?ssl_ca_certs=ca a:26379 rediss://unknown/0?ssl_ca_certs=ca
# -- a cluster
redis+cluster://a => redis://unknown/0 a:6379
redis+cluster://u:p@a:7000,b/0 => redis://u:p@unknown/0 a:7000 b:6379
rediss+cluster://a?ssl_ca_certs=ca => rediss://unknown/0?ssl_ca_certs=ca a:6379
""")


@pytest.mark.parametrize(("url", "expected"), PARSED)
def test_url_is_read(url: str, expected: str) -> None:
    for_keys, *rest = expected.split()
    nodes = tuple((each.rpartition(":")[0], int(each.rpartition(":")[2])) for each in rest if "://" not in each)
    for_sentinels = [each for each in rest if "://" in each] or ["redis://unknown/0"]
    if "sentinel" in url:
        named = StoreUrl("sentinel", for_keys, nodes, master_name="m", sentinel_url=for_sentinels[0])
    else:
        named = StoreUrl("cluster" if "cluster" in url else "server", for_keys, nodes)
    assert StoreUrl.parse(url) == named


@pytest.mark.parametrize(
    ("url", "said"),
    rows("""
sentinel://:secret@a:26379/0 => name of its primary is missing: add ?master_name=mymaster to throttle_url
redis+sentinel://:secret@a:26379 => name of its primary is missing: add ?master_name=mymaster to throttle_url
sentinel://:secret@a/mymaster?master_name=m => database must be a number, got 'mymaster'
redis+cluster://:secret@a/3 => A cluster has only database 0: take /3 off throttle_url
redis+cluster://:secret@a?db=3 => A cluster has only database 0: take /3 off throttle_url
redis+cluster://:secret@a:port => 'a:port' is not host:port
# With these redis-py would go to database 0, without a word.
redis://host/abc => the database must be a number, got 'abc': write redis://host
rediss://u:secret@host:6380/one => the database must be a number, got 'one': write redis://host
redis://host/0x1 => the database must be a number, got '0x1': write redis://host
redis://host/?db=a => the database must be a number, got 'a': write redis://host
redis://host/0?password=secret#cret => percent-encode
redis://u:secret@[::1/0 => throttle_url: 'redis://u:**@
redis://u:secret@host:99999/0 => throttle_url: 'redis://u:**@
redis://u:secret@ho\u2100st/0 => throttle_url: 'redis://u:**@
redis://a?sokket_timeout=1 => throttle_url has an option
sentinel://a?master_name=m&x=1 => throttle_url has an option
"""),
)
def test_a_url_that_cannot_work_is_refused_without_its_password(url: str, said: str) -> None:
    """Before the thread that connects."""
    with pytest.raises(ConfigurationError, match=re.escape(said)) as refused:
        connection_factory(url)
    assert "secret" not in str(refused.value)


def test_urls_in_the_docs_can_be_used() -> None:
    shown = re.findall(r'throttle_url = "(\S+)"', (ROOT / "docs" / "howto" / "redis.md").read_text())
    assert {url.partition("://")[0] for url in shown} >= {"sentinel", "redis+cluster"}
    for url in shown:
        connection_factory(url, Keys("throttle"))


@pytest.mark.parametrize(
    ("url", "safe"),
    rows("""
redis://host:6379/0 => redis://host:6379/0
redis://:s%2Fecret@host/0 => redis://:**@host/0
rediss://user:s:e@cret@host:6380/0?ssl_cert_reqs=none => rediss://user:**@host:6380/0?ssl_cert_reqs=none
redis://user@host/0 => redis://user@host/0
redis://host/0?password=secret&db=3 => redis://host/0?password=**&db=3
sentinel://u:secret@a/2;sentinel://:secret@b => sentinel://u:**@a/2;sentinel://:**@b
sentinel://:s@b?master_name=m&sentinel_password=s => sentinel://:**@b?master_name=m&sentinel_password=**
unix:///run/redis.sock?db=4 => unix:///run/redis.sock?db=4
redis://:p/w?r#d@host/0 => redis://:**@host/0
redis://u:p@w/x@host:1/0 => redis://u:**@host:1/0
redis://u:p?password=x@host/0 => redis://u:**
redis://host/0?password=a;b@c&db=3 => redis://host/0?password=**&db=3
sentinel://u:p/w@a/2;sentinel://:p;w@b => sentinel://u:**@a/2;sentinel://:**@b
redis://host/0?client_name=a@b => redis://host/0?client_name=a@b
amqp://u:p#w@host// => amqp://u:**@host//
"""),
)
def test_loggable_form_of_a_url(url: str, safe: str) -> None:
    assert shown(url) == safe


def test_loggable_form_is_one_line() -> None:
    assert shown("redis://u:line\nbreak/@host/0") == "redis://u:**@host/0"


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
        ({"throttle_url": "http://ana:secret@host/0"}, "throttle_url must be a URL"),
        ({"throttle_url": "valkey://ana:secret@host/0"}, "throttle_url must be a URL"),
        ({"throttle_url": "ana:secret@host"}, "throttle_url must be a URL"),
        ({"throttle_url": "redis://a;redis://ana:secret@b"}, "throttle_url is one server"),
        ({"throttle_url": "redis://h", "broker_url": "amqp://u:12#secret@host//"}, "broker_url: .*percent-encode"),
        ({"throttle_url": "redis://h", "broker_url": "amqp://u:s3/secret@host//"}, "broker_url: .*percent-encode"),
        ({"throttle_url": "redis://h", "broker_url": "pyamqp://:s3?secret@host"}, "broker_url: .*percent-encode"),
    ],
)
def test_settings_that_cannot_work_are_refused_without_their_password(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        settings_of(Celery("shop", set_as_current=False, changes=settings))
    assert "secret" not in str(refused.value)
