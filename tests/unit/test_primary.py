"""Finding the server that has the keys."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from celery_throttle.store.servers import primary
from celery_throttle.store.servers.primary import Addresses, elsewhere, moved_to

ADDRESSES = [("a", 1), ("b", 2), ("c", 3)]


class Attempts:
    """Fails at some hosts; keeps a list of the tried ones."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.tried = failing, ""

    def __call__(self, host: str, port: int) -> int:
        self.tried += host
        if host in self.failing:
            raise RedisConnectionError("no")
        return port


def test_the_first_that_works_is_the_first_next_time() -> None:
    addresses, attempts = Addresses(ADDRESSES), Attempts("a")
    assert addresses.try_each(attempts) == addresses.try_each(attempts) == 2
    assert attempts.tried == "abb"
    attempts.failing = ("b",)
    assert addresses.try_each(attempts) == 1
    assert attempts.tried == "abbba"


def test_all_that_failed_are_named() -> None:
    with pytest.raises(RedisConnectionError, match=r"^a:1: no; b:2: no; c:3: no$"):
        Addresses(ADDRESSES).try_each(Attempts("a", "b", "c"))


def test_when_time_is_over_the_others_come_first_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers that say nothing must not stand before the one that would."""
    monkeypatch.setattr(primary, "PATIENCE", -1.0)
    addresses, attempts = Addresses(ADDRESSES), Attempts("a", "b")
    for _ in range(2):
        with pytest.raises(RedisConnectionError):
            addresses.try_each(attempts)
    assert addresses.try_each(attempts) == 3
    assert attempts.tried == "abc"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ReadOnlyError("You can't write against a read only replica."), True),
        # As redis-py before 6 has them, and Redis before 7.
        (ResponseError("MOVED 3999 127.0.0.1:6381"), True),
        (ResponseError("CLUSTERDOWN The cluster is down"), True),
        (ResponseError("Error running script (call to f_0): @user_script:1: -READONLY You can't write"), True),
        (ResponseError("NOREPLICAS Not enough good replicas to write. script: 0c, on @user_script:1."), True),
        (ResponseError("Error running script (call to f_0): @user_script:1: -NOREPLICAS Not enough good"), True),
        (ResponseError("ASK 3999 127.0.0.1:6381"), False),
        (ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"), False),
        (ResponseError("a user's text: MOVED house"), False),
        (b"MOVED 3999 127.0.0.1:6381", False),
    ],
)
def test_another_server_is_the_one_to_ask(error: object, expected: bool) -> None:
    assert elsewhere(error) is expected


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("MOVED 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("MOVED 3999 ::1:6381", ("::1", 6381)),
        ("MOVED 1 :7", ("", 7)),
    ],
)
def test_where_a_slot_moved_to(text: str, address: tuple[str, int]) -> None:
    assert moved_to(ResponseError(text)) == address
    assert moved_to(ResponseError(text.replace("MOVED", "ASK"))) is None
