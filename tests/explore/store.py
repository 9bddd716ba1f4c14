"""The real scripts on a real server: put a content there, carry out calls, take the content that came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from celery_throttle.core.keys import _NAMES, Keys
from celery_throttle.store import gate_script, scripts
from celery_throttle.store.calls import Store
from celery_throttle.store.scripts import Call, Script, pack
from tests.support.resp import RespConnection

__all__ = ["CALLS", "LEASE_MS", "NAMES", "SETS", "Content", "Defect", "ScriptFailed", "Server", "explored"]

#: The content of each key, by its name: member -> score, or field -> value, all as text.
Content = dict[str, dict[str, str]]

NAMES = _NAMES
SETS = frozenset(("leases", "lines", "heads", "ready", "due", "ends", "audit", "oldest"))
LEASE_MS = 12_000
#: Builds the calls of all workers.
CALLS = Store(Keys("x"), LEASE_MS / 1000)

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
_USED = ("exchange", "limits", "declare")  # one of each text


class ScriptFailed(Exception):
    """A script ended with an error."""


@dataclass(frozen=True)
class Defect:
    """A change of the scripts' text, to see whether it is noticed."""

    name: str
    right: str
    wrong: str = ""


class Server(RespConnection):
    """One raw connection to a server of our own; redis-py would take longer than the scripts."""

    failed = ScriptFailed

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._known: dict[bytes, tuple[list[Any], bytes]] = {}
        keys = CALLS.keys.all
        put, take = (self._load(text) for text in (_PUT, _TAKE))
        self._put: Callable[..., bytes] = lambda *values: pack(("EVALSHA", put, len(keys), *keys, *values, _KINDS))
        self._take = pack(("EVALSHA", take, len(keys), *keys, _KINDS))

    def load_scripts(self) -> None:
        """Let it know the scripts as they are now."""
        for text in {Script.of_gate(name).text for name in _USED}:
            self._load(text.encode())

    def step(self, content: Content, now_us: int, calls: Sequence[Call | bytes]) -> tuple[list[Any], Content]:
        """Return the replies to calls made one after the other on this content, and the content afterwards.

        Raises:
            ScriptFailed: one ended with an error.
        """
        flat = [[each for pair in content.get(name, {}).items() for each in pair] for name in NAMES]
        commands = [self._put(json.dumps(flat), now_us // 1_000_000, now_us % 1_000_000)]
        commands += [call if isinstance(call, bytes) else call.packed() for call in calls]
        replies, taken = self._answer(b"".join([*commands, self._take]), len(commands))
        for reply in (*replies, taken):
            if isinstance(reply, ScriptFailed):
                raise reply
        found = zip(NAMES, json.loads(taken), strict=True)
        return replies, {name: dict(zip(flat[::2], flat[1::2], strict=True)) for name, flat in found if flat}

    def forget(self) -> None:
        """Another world comes."""
        self._known.clear()

    def close(self) -> None:
        self._socket.close()

    def _answer(self, asked: bytes, commands: int) -> tuple[list[Any], bytes]:
        """Ask only once: the same calls on the same content come again when the other events had another order."""
        key = hashlib.blake2b(asked, digest_size=16).digest()
        if key not in self._known:
            self._socket.sendall(asked)
            _, *replies, taken = [self._read() for _ in range(commands + 1)]
            self._buffer, self._at = b"", 0
            self._known[key] = replies, taken
        return self._known[key]

    def _load(self, text: bytes) -> str:
        self._socket.sendall(pack(("SCRIPT", "LOAD", text)))
        sha = self._read()
        self._buffer, self._at = b"", 0
        if isinstance(sha, ScriptFailed):
            raise sha
        return str(sha.decode())


@contextmanager
def explored(defect: Defect | None = None) -> Iterator[None]:
    """Let the scripts read the time that the search sets, in place of TIME, and have this defect."""
    with ExitStack() as stack:
        stack.callback(_forget_texts)
        if defect is not None:
            read = _with_defect(gate_script._read, defect)
            stack.enter_context(mock.patch.object(gate_script, "_read", read))
        stack.enter_context(mock.patch.object(scripts, "gate_text", _with_given_time(gate_script.gate_text)))
        _forget_texts()
        yield


def _with_given_time(gate_text: Callable[[str], str]) -> Callable[[str], str]:
    return lambda name: gate_text(name).replace("('TIME')", "('MGET', 'sim:s', 'sim:us')")


def _with_defect(read: Callable[[str], str], defect: Defect) -> Callable[[str], str]:
    files = [f"gate/shared/{name}" for name in gate_script._names("gate/shared")]
    files += [f"gate/{name}" for name in gate_script._names("gate")]
    found = [name for name in files if defect.right in read(name)]
    if len(found) != 1:
        raise ValueError(f"defect {defect.name}: its line is in {len(found)} files: {found}")
    return lambda name: read(name).replace(defect.right, defect.wrong) if name == found[0] else read(name)


def _forget_texts() -> None:
    cached: Mapping[str, Any] = vars(gate_script)
    for name in ("_text_of_several", "shared_functions", "_constants"):
        cached[name].cache_clear()
    Script.of_gate.cache_clear()
