"""Where things are in Redis."""

from __future__ import annotations

from redis.crc import key_slot

from celery_throttle.core.keys import Keys


def test_all_keys_are_on_one_shard() -> None:
    """One script uses them all, so a cluster must keep them together."""
    keys = Keys("throttle")
    assert len({key_slot(key.encode()) for key in (*keys.all, keys.wake)}) == 1


def test_every_key_is_another_one() -> None:
    keys = Keys("throttle")
    names = [*keys.all, keys.wake]
    assert len(set(names)) == len(names) > 20


def test_two_prefixes_share_nothing() -> None:
    """Also when one begins with the other."""
    one, other = Keys("shop"), Keys("shop2")
    assert not {*one.all, one.wake} & {*other.all, other.wake}
