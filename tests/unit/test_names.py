"""Names in the store: of keys, of tasks and of brokers."""

from __future__ import annotations

import pytest
from celery import Celery
from redis.crc import key_slot

from celery_throttle.brokers import broker_of
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.keys import Keys
from celery_throttle.core.naming import outside_queue
from celery_throttle.core.task_codes import TaskNames, code_of


def test_all_keys_are_different_and_on_one_shard() -> None:
    """One script uses them all, so a cluster must keep them together."""
    names = [*Keys("throttle").all, Keys("throttle").wake]
    assert len({key_slot(key.encode()) for key in names}) == 1
    assert len(set(names)) == len(names) > 20


def test_two_prefixes_share_no_key() -> None:
    """Also when one begins with the other."""
    one, other = Keys("shop"), Keys("shop2")
    assert not {*one.all, one.wake} & {*other.all, other.wake}


# -- tasks -------------------------------------------------------------------------------------------------------------

GPU, TENANT, OWN = Bucket("gpu"), Bucket("tenant", "acme"), Bucket("shop.render")
NAMES = TaskNames({"shop.render": {"shop.render", "tenant"}, "shop.train": {"gpu"}, "shop.pay": set()})


def test_task_is_found_by_its_code() -> None:
    """One that is named by its limit needs none."""
    assert code_of("shop.render", {"shop.render", "tenant"}) == ""
    assert len(code_of("shop.train", {"gpu"})) == 8
    assert NAMES.find("", [TENANT, OWN], "celery") == "shop.render"
    assert NAMES.find(code_of("shop.train", {"gpu"}), [GPU], "celery") == "shop.train"
    assert NAMES.find(code_of("shop.pay", set()), [], "celery") == "shop.pay"


def test_unknown_code_is_not_guessed() -> None:
    assert NAMES.find(code_of("shop.other", {"gpu"}), [GPU], "celery") is None
    assert NAMES.find("", [GPU], "celery") is None
    assert NAMES.find("", [OWN], outside_queue("script/1/ab")) is None
    assert TaskNames({}).find("", [OWN], "celery") is None
    alike = ("plumless", "buckeroo")  # known to have the same CRC-32
    assert len({code_of(name, ()) for name in alike}) == 1
    assert TaskNames({name: {"gpu"} for name in alike}).find(code_of(alike[0], ()), [GPU], "celery") is None


# -- brokers -----------------------------------------------------------------------------------------------------------

FAR = "redis://store.example:6379/0"


def broker(url: str | list[str], store: str = FAR, **options: str) -> str:
    app = Celery(set_as_current=False)
    app.conf.update(broker_url=url, broker_transport_options=options)
    return broker_of(app.conf, store)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:secret@Cache.example/1?x=1", "redis://cache.example:6379/1"),
        ("rediss://cache.example", "rediss://cache.example:6379/0"),
        ("amqps://user:secret@rabbit.example/orders", "amqp://rabbit.example:5671/orders"),
        ("amqp://u:p@a.example/a@b", "amqp://a.example:5672/a@b"),
        ("pyamqp://u:p@a.example/a@b", "amqp://a.example:5672/a@b"),
        ("azureservicebus://policy:s3/cret=@space", "azureservicebus://space"),  # a raw key, which kombu takes there
        ("sentinel://b.example:1;sentinel://:secret@a:2/3", "sentinel://a:2/3,sentinel://b.example:1/0"),
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
