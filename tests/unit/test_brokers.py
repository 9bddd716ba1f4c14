"""Which URLs are one broker."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_throttle.brokers import broker_of

FAR = "redis://store.example:6379/0"


def broker(url: str | list[str], store: str = FAR, **options: str) -> str:
    app = Celery(set_as_current=False)
    app.conf.update(broker_url=url)
    app.conf.broker_transport_options = options
    return broker_of(app.conf, store)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:secret@Cache.example/1?x=1", "redis://cache.example:6379/1"),
        ("rediss://cache.example", "rediss://cache.example:6379/0"),
        ("amqps://user:secret@rabbit.example/orders", "amqp://rabbit.example:5671/orders"),
        (
            "sentinel://b.example:1;sentinel://:secret@a.example:2/3",
            "sentinel://a.example:2/3,sentinel://b.example:1/0",
        ),
        ("sentinel://:secret@b.example:1,a.example:2/3", "sentinel://a.example:2/3,sentinel://b.example:1/3"),
    ],
)
def test_broker_name_has_address_without_secret(url: str, expected: str) -> None:
    named = broker(url)
    assert named == expected or named == expected.replace("rediss", "redis", 1)
    assert "secret" not in named


def test_a_failover_list_is_one_broker_in_any_order() -> None:
    urls = ["amqp://a.example//", "amqp://b.example//"]
    assert broker(urls) == broker(urls[::-1]) == broker(";".join(urls))


def test_a_store_with_several_hosts_is_read() -> None:
    """A broker on this machine is another one than that of any other machine, unless the store is here, too."""
    assert " on " not in broker("redis://localhost/1", "sentinel://127.0.0.1:1,127.0.0.1:2/0?master_name=m")
    assert ",on " in broker("redis://localhost/1", "sentinel://a.example:1,b.example:2/0?master_name=m")


def test_key_prefixes_keep_brokers_apart() -> None:
    assert broker("redis://a.example", global_keyprefix="x") != broker("redis://a.example", global_keyprefix="y")
