"""One text for all states that differ in names, places and times alone.

Tickets, claims and fencing tokens are written as ranks, nonces and ids of workers as numbers in order of appearance.
Numbers of calls are written as distances from the worker's last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache

from tests.explore.store import NAMES, Content

__all__ = ["canonical"]

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
