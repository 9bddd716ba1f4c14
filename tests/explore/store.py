"""Put a content into a real server, carry out calls there, and take the content that came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from celery_throttle.core.keys import _NAMES, Keys
from celery_throttle.store.calls import Store
from celery_throttle.store.scripts import Call, pack
from tests.simulation.invariants import Violation
from tests.simulation.server import Server as PlainServer

__all__ = ["CALLS", "NAMES", "SETS", "Content", "Server"]

#: The content of each key, by its name: member -> score, or field -> value, all as text.
Content = dict[str, dict[str, str]]

NAMES = _NAMES
SETS = frozenset(("leases", "lines", "heads", "ready", "due", "ends", "audit", "oldest"))
#: Builds the calls of all workers.
CALLS = Store(Keys("x"), 12.0)

_KINDS = "".join("z" if name in SETS else "h" for name in NAMES)
_PUT = b"""redis.call('FLUSHDB')
redis.call('MSET', 'sim:s', ARGV[2], 'sim:us', ARGV[3])
for i, flat in ipairs(cjson.decode(ARGV[1])) do
  local set = string.sub(ARGV[4], i, i) == 'z'
  for at = 1, #flat, 2 do
    if set then redis.call('ZADD', KEYS[i], flat[at + 1], flat[at])
    else redis.call('HSET', KEYS[i], flat[at], flat[at + 1]) end
  end
end
return 1"""
_TAKE = b"""local found = {}
for i, key in ipairs(KEYS) do
  local set = string.sub(ARGV[1], i, i) == 'z'
  found[i] = set and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or redis.call('HGETALL', key)
end
return cjson.encode(found)"""


class Server(PlainServer):
    """A server that goes from content to content."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._known: dict[bytes, list[Any]] = {}
        keys = CALLS.keys.all
        put, take = (self.ask("SCRIPT", "LOAD", text).decode() for text in (_PUT, _TAKE))
        self._put: Callable[..., bytes] = lambda *values: pack(("EVALSHA", put, len(keys), *keys, *values, _KINDS))
        self._take = pack(("EVALSHA", take, len(keys), *keys, _KINDS))

    def step(self, content: Content, now_us: int, calls: Sequence[Call | bytes]) -> tuple[list[Any], Content]:
        """Return the replies to calls made one after the other on this content, and the content afterwards.

        Raises:
            Violation: one ended with an error.
        """
        flat = [[each for pair in content.get(name, {}).items() for each in pair] for name in NAMES]
        commands = [self._put(json.dumps(flat), now_us // 1_000_000, now_us % 1_000_000)]
        commands += [call if isinstance(call, bytes) else call.packed() for call in calls]
        _, *replies, taken = found = self._answer(b"".join([*commands, self._take]), len(commands) + 1)
        for reply in found:
            if isinstance(reply, ResponseError):
                raise Violation(f"a script failed: {reply}")
        contents = zip(NAMES, json.loads(taken), strict=True)
        return replies, {name: dict(zip(flat[::2], flat[1::2], strict=True)) for name, flat in contents if flat}

    def forget(self) -> None:
        """Another world comes."""
        self._known.clear()

    def _answer(self, asked: bytes, commands: int) -> list[Any]:
        """Ask only once: the same calls on the same content come again when the other events had another order."""
        key = hashlib.blake2b(asked, digest_size=16).digest()
        if key not in self._known:
            self._known[key] = self.carry_out(asked, commands)
        return self._known[key]
