"""Ways in which stored bytes can go wrong, each decided by a seed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from redis import Redis

__all__ = ["Mutation", "mutate"]

_OTHERS = (
    *(b"", b"[]", b"{}", b"7", b'"x"', b"null", b"true", b'{"v":2}', b'{"v":3}', b'{"v":1}', b"garbage", b"\x80"),
    *(b"-1", b"[1,2,3]", b"[[]]", b"1e999", b"nan", b"0", b'{"v":2,"needs":null}', b"[" * 1100 + b"]" * 1100, b"\x00"),
)
_NUMBERS = (
    *(b"0", b"-1", b"-0", b"1", b"2", b"7", b"0.5", b"1e15", b"-1e15", b"1e308", b"1e999", b"99999999999999999999"),
    *(b"4503599627370496", b"null", b'"7"', b"[]", b"nan", b"0x10"),
)
_VALUES: tuple[Any, ...] = (
    *(0, -1, 7, 0.5, 1e15, 1e300, "", "x", "\x00", "\ud7ff", [], {}, None, True, False, [1], {"a": 1}, "1:gpu"),
)


class Mutation(NamedTuple):
    """A change of one stored value.

    Attributes:
        key: the name of the key, as `core.keys` has it.
        field: of a hash; of a sorted set: the member.
        kind: of the change.
        before: the value, or the score as text; ``after``, too.
    """

    key: str
    field: bytes
    kind: str
    before: bytes
    after: bytes

    def __str__(self) -> str:
        return f"{self.kind} of {self.key}[{self.field!r}]: {self.before!r:.400} -> {self.after!r:.400}"


def mutate(client: Redis, keys: dict[str, str], random: Random) -> Mutation:
    """Change one stored value, and return the change."""
    while True:
        name = random.choice([each for each in keys if client.exists(keys[each])])
        is_hash = client.type(keys[name]) == b"hash"
        done = (_in_hash if is_hash else _in_set)(client, name, keys[name], random)
        if done.before != done.after:
            return done


def _in_hash(client: Redis, name: str, key: str, random: Random) -> Mutation:
    content: Any = client.hgetall(key)
    field = random.choice(sorted(content))
    if random.random() < 0.08:
        other = _flipped(field, random)
        client.hdel(key, field)
        client.hset(key, other, content[field])
        return Mutation(name, field, "another field", field, other)
    kind = random.choice(list(_KINDS))
    after = _KINDS[kind](content[field], random)
    client.hset(key, field, after)
    return Mutation(name, field, kind, content[field], after)


def _in_set(client: Redis, name: str, key: str, random: Random) -> Mutation:
    content: Any = client.zrange(key, 0, -1, withscores=True)
    member, score = random.choice(content)
    if random.random() < 0.4:
        other = random.choice((0.0, -1.0, 1.0, 1e15, 1e300, float("inf"), float("-inf"), score + 1, score * 2))
        client.zadd(key, {member: other})
        return Mutation(name, member, "another score", str(score).encode(), str(other).encode())
    kind = random.choice(["flipped bit", "truncated", "other JSON"])
    after = _KINDS[kind](member, random)
    client.zrem(key, member)
    client.zadd(key, {after: score})
    return Mutation(name, member, f"member, {kind}", member, after)


def _flipped(value: bytes, random: Random) -> bytes:
    if not value:
        return b"\x01"
    changed = bytearray(value)
    for _ in range(random.choice((1, 1, 1, 3))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _truncated(value: bytes, random: Random) -> bytes:
    return value[: random.randrange(len(value))] if value else b"0"


def _other(_value: bytes, random: Random) -> bytes:
    return random.choice(_OTHERS)


def _number(value: bytes, random: Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", value))
    if not found:
        return random.choice(_NUMBERS)
    one = random.choice(found)
    return value[: one.start()] + random.choice(_NUMBERS) + value[one.end() :]


def _part(value: bytes, random: Random) -> bytes:
    """Another value of a part of an object or array, or one part less."""
    try:
        read = json.loads(value)
    except ValueError:
        return _flipped(value, random)
    spots = list(_spots(read))
    if not spots:
        return _other(value, random)
    where, name = random.choice(spots)
    if isinstance(where, dict) and random.random() < 0.3:
        del where[name]
    else:
        where[name] = random.choice(_VALUES)
    return json.dumps(read, separators=(",", ":")).encode()


def _spots(read: Any) -> Any:
    parts = read.items() if isinstance(read, dict) else enumerate(read) if isinstance(read, list) else ()
    for name, value in parts:
        yield read, name
        yield from _spots(value)


_KINDS: dict[str, Callable[[bytes, Random], bytes]] = {
    "flipped bit": _flipped,
    "truncated": _truncated,
    "other JSON": _other,
    "other number": _number,
    "other part": _part,
}
