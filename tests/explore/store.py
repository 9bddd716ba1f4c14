"""Put a content into a real server, carry out calls there, take the content that came of it, and write it as a text.

The text is one for all states that differ in names, places and times alone: tickets, claims and fencing tokens are
written as ranks, nonces and ids of workers as numbers in order of appearance, numbers of calls as distances from the
worker's last one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from redis.exceptions import ResponseError

from celery_throttle.core.keys import _NAMES, Keys
from celery_throttle.store.calls import Store
from celery_throttle.store.scripts import Call, pack
from tests.simulation.invariants import Violation
from tests.simulation.server import Server as PlainServer

__all__ = ["CALLS", "NAMES", "SETS", "Content", "Server", "canonical"]

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
        """Return the replies to calls made one after the other on this content, and the content afterwards."""
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


# -- which contents are the same ---------------------------------------------------------------------------------------

_JSON = frozenset(("records", "lanes", "workers", "locks", "overrides", "rates"))
#: Fields for people only, and constant ones.
_LEFT_OUT = frozenset(("audit", "limits"))
# Times, tickets and places; ids of workers, nonces, and worker#call. Found fast by their first character.
_TOKEN = re.compile(r"([018-]\d{12,15}|w\d+[:#]?[\da-f.]*)")
_PLACE, _STAMP, _TICKET, _TIME = 16, 16, 14, 13  # digits
_NOUGHT = 10**15


def canonical(content: Content, now_us: int, model: str, workers: Mapping[str, tuple[int, bool]]) -> str:
    """Return that text.

    Args:
        content: of the store.
        now_us: the time there.
        model: the state outside of the store, as text.
        workers: of each, the number of its last call, and whether the answer to that is still needed.
    """
    now = now_us // 1000
    parts = [model]
    for name in NAMES:
        fields = content.get(name)
        if fields and name not in _LEFT_OUT:
            parts.append(name + repr(sorted(_what_counts(name, fields, now, workers).items())))
    return _renamed("\n".join(parts), now, workers)


def _what_counts(
    name: str, fields: dict[str, str], now: int, workers: Mapping[str, tuple[int, bool]]
) -> dict[str, str]:
    if name == "workers":
        return {field: _of_worker(field, value, workers.get(field, (0, False))[1]) for field, value in fields.items()}
    if name in _JSON:
        return {field: _of_json(name, value) for field, value in fields.items()}
    if name in ("ready", "oldest"):  # a lane that begins with a digit comes right after the ticket
        return {re.sub(r"\0(\d{16})", "\\0\\1|", member): "" for member in fields}
    if name in ("leases", "due"):
        return {member: till if float(till) > now else "0" for member, till in fields.items()}
    return {field: value for field, value in fields.items() if not _says_nothing(name, field)}


def _says_nothing(name: str, field: str) -> bool:
    if name == "meta":
        return field not in ("settling", "moment")
    return name == "ends" and field.startswith(("workers:", "meta:"))


@lru_cache(200_000)
def _of_worker(worker: str, packed: str, needed: bool) -> str:
    said = json.loads(packed)
    said["number"] = f"{worker}#{said['number']}" if isinstance(said["number"], int) else "left"
    said.pop("till", None)
    if not needed:
        for answer in ("asked", "parked", "granted", "withdrawn"):
            said.pop(answer, None)
    return json.dumps(said, sort_keys=True)


@lru_cache(200_000)
def _of_json(name: str, packed: str) -> str:
    said = json.loads(packed)
    if name == "records":
        said.pop("since", None)
        for each in (said, said.get("second", {})):
            if "out" in each:
                each["out"] = _copies(each["out"])
        if "finished" in said:
            said["finished"] = {attempt: _copies(out) for attempt, out in said["finished"].items()}
    elif name == "locks":
        said.pop("since", None)
    elif name == "rates":
        said.pop("seen", None)
    elif name == "overrides":
        said = {what: [row[0], row[1], row[3] if what == "bar" else 0] for what, row in said.items()}
    return json.dumps(said, sort_keys=True)


def _copies(out: dict[str, int]) -> list[str]:
    return [f"{name}#{call}" if call and name != "again" else name for name, call in sorted(out.items())]


def _renamed(text: str, now: int, workers: Mapping[str, tuple[int, bool]]) -> str:
    for control, shown in (("\\x00", "|"), ("\\u0000", "|"), ("\\x01", "^"), ("\\u0001", "^")):
        text = text.replace(control, shown)
    pieces = _TOKEN.split(text)
    tokens = set(pieces[1::2])
    tickets = {ticket for token in tokens if (ticket := _ticket(token)) is not None}
    stamps = sorted(token for token in tokens if len(token) == _STAMP and token.startswith("18"))
    ranks = {ticket: rank for rank, ticket in enumerate(sorted(tickets))}
    names: dict[str, int] = {}
    new: dict[str, str] = {stamp: f"S{rank}" for rank, stamp in enumerate(stamps)}
    for at in range(1, len(pieces), 2):
        token = pieces[at]
        if token not in new:
            new[token] = _name(token, names, workers) if token[0] == "w" else _time(token, ranks, now)
        pieces[at] = new[token]
    return "".join(pieces)


def _ticket(token: str) -> int | None:
    if token[0] == "w":
        return None
    if len(token) == _PLACE and token[:2] != "18":
        return int(token) - _NOUGHT
    return int(token) if len(token) == _TICKET or token[0] == "-" else None


def _name(token: str, names: dict[str, int], workers: Mapping[str, tuple[int, bool]]) -> str:
    if "#" not in token:
        return f"N{names.setdefault(token, len(names))}"
    worker, _, call = token.partition("#")
    last = workers.get(worker, (int(call), False))[0]
    return f"{names.setdefault(worker, len(names))}#{max(int(call) - last, -1)}"


def _time(token: str, ranks: dict[int, int], now: int) -> str:
    ticket = _ticket(token)
    return f"M{max(int(token) - now, -9000)}" if ticket is None else f"T{ranks[ticket]}"
