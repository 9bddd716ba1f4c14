"""Load the Lua scripts and build calls to them.

Each script is one ``.lua`` file; what several scripts share is put in front of it. A call is sent as EVALSHA; a server
that does not know the script (restarted, failed over, SCRIPT FLUSH) answers NOSCRIPT and gets it with EVAL.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

    from celery_throttle.core.keys import Keys

__all__ = ["SHARED", "Call", "HolderRow", "ParkRow", "Script", "Store", "execute", "execute_async", "pack"]

Argument = str | bytes | int
#: task id, nonce, limit, permits, attempt, lock, more: as exchange.lua says
HolderRow = tuple[str, str, str, str, int, str, str]
#: task id, limit, permits, attempt, queue, message, lock, more: as park.lua says
ParkRow = tuple[str, str, str, int, str, bytes, str, str]
#: What comes before every script of the gate.
SHARED = ("rate/gcra", "gate/common", "gate/lines", "gate/locks", "gate/rules")
#: What comes after that in those that only read.
_READING = ("gate/reading",)

_SIZES = tuple(b"$%d\r\n" % size for size in range(256))


@dataclass(frozen=True)
class Script:
    """One Lua script: its whole text and the SHA1 that Redis knows it by."""

    name: str
    text: str
    sha: str

    @classmethod
    @cache
    def load(cls, name: str, *shared: str) -> Script:
        """Read ``<name>.lua`` from the package, with the text of the shared ones before it."""
        folder = files("celery_throttle.store") / "lua"
        text = inlined("\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (*shared, name)))
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_VALUE = r"(?:\d+|KEYS\[\d+\])"
_CONSTANTS = re.compile(rf"^local ([A-Z][A-Z_]*(?:, [A-Z][A-Z_]*)*) = ({_VALUE}(?:, {_VALUE})*)$", re.MULTILINE)
_NAME_OR_STRING = re.compile(r"'[^'\n]*'|\b[A-Z][A-Z_]*\b")


def inlined(text: str) -> str:
    """Return a script with its constants (``local STATE, NONCE = 1, 2``, ``local USED = KEYS[2]``) written as values.

    Lua makes every function of a script anew in every call, and pays for each local that a function uses, the more the
    more locals there are; with some forty constants in sight of as many functions that took longer than the script's
    own work.
    """
    values: dict[str, str] = {}
    for names, numbers in _CONSTANTS.findall(text):
        values |= dict(zip(names.split(", "), numbers.split(", "), strict=True))
    # An empty line in its place: line numbers in error messages stay those of the text.
    return _NAME_OR_STRING.sub(lambda match: values.get(match.group(), match.group()), _CONSTANTS.sub("", text))


@dataclass(frozen=True)
class Call:
    """One call to a script, ready to be sent.

    Attributes:
        script: what to run.
        arguments: number of keys, keys, arguments.
        fixed: how many of the first arguments are the same in every call; they are packed only once.
    """

    script: Script
    arguments: tuple[Argument, ...]
    fixed: int = 0

    def evalsha(self) -> tuple[Argument, ...]:
        """The command for a server that knows the script."""
        return ("EVALSHA", self.script.sha, *self.arguments)

    def packed(self) -> bytes:
        """The same in Redis's protocol; redis-py's own packing takes longer than Redis takes for the call."""
        head = _packed_head(self.script.sha, self.arguments[: self.fixed])
        return b"*%d\r\n%b%b" % (2 + len(self.arguments), head, _packed(self.arguments[self.fixed :]))

    def eval(self) -> tuple[Argument, ...]:
        """The command for a server that may not know it."""
        return ("EVAL", self.script.text, *self.arguments)


@dataclass(frozen=True)
class Store:
    """Builds the calls of one worker (or one command) on one set of keys.

    Args:
        keys: where everything is.
        lease: seconds a permit lasts without renewal.
        queues: the queues the caller can start tasks from.
    """

    keys: Keys
    lease: float
    queues: tuple[str, ...] = ()
    _head: tuple[Argument, ...] = field(init=False, repr=False)
    _claim_head: tuple[Argument, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = (*self.keys.all, self.keys.wake)
        object.__setattr__(self, "_head", (len(names), *names, int(self.lease * 1000)))
        object.__setattr__(self, "_claim_head", (*self._head, "", 0, 0))

    def exchange(
        self,
        nonces: str,
        slots: int,
        released: Iterable[tuple[str, str, str]] = (),
        started: Iterable[tuple[str, str]] = (),
        asked: Iterable[HolderRow] = (),
    ) -> Call:
        """Give back permits, forget started messages, ask for permits, take what is next."""
        return self._call("exchange", nonces, slots, *_flat(released), *_flat(started), *_flat(asked))

    def started(self, tasks: Iterable[tuple[str, str]]) -> Call:
        """Forget started messages and nothing else: (task id, nonce) each."""
        arguments = (value for task in tasks for value in task)
        return Call(Script.load("gate/started"), (2, self.keys.records, self.keys.messages, *arguments))

    def park(
        self,
        nonces: str,
        slots: int,
        worker: str,
        number: int,
        tasks: Iterable[ParkRow],
    ) -> Call:
        """Set tasks aside."""
        return self._call("park", nonces, slots, worker, number, *_flat(tasks))

    def send_back(self, row: ParkRow, nonce: str, pause: float, limits: Iterable[str]) -> Call:
        """Put a task that has begun back to the head of its line; these limits start nothing for so many seconds."""
        pause_ms = round(pause * 1000)
        return self._call("send_back", "", 0, row[0], nonce, *row[1:], pause_ms, *_flat((limit,) for limit in limits))

    def wait(self, nonces: str, slots: int, holders: Iterable[str]) -> Call:
        """Say who still waits outside of tasks."""
        return self._call("wait", nonces, slots, *_flat((holder,) for holder in holders))

    def reserve(self, limit: str, declared: str, cost: int, longest: float) -> Call:
        """Book a start that is at most so many seconds away."""
        return self._call("reserve", "", 0, limit, declared, cost, round(longest * 1_000_000))

    def crowd(self, limit: str) -> Call:
        """Ask how many wait for a limit."""
        return self._call("crowd", "", 0, limit)

    def look(self, nonces: str, slots: int) -> Call:
        """Start what can start."""
        return self._call("look", nonces, slots)

    def renew(self, held: Iterable[HolderRow]) -> Call:
        """Renew leases."""
        return self._call("renew", "", 0, *_flat(held))

    def reap(self, most: int) -> Call:
        """Clear at most that many expired holders."""
        return self._call("reap", "", 0, most)

    def declare(self, known_birth: str, limits: Iterable[tuple[str, str]]) -> Call:
        """Say how many permits each limit has."""
        return self._call("declare", "", 0, known_birth, *_flat(limits))

    def withdraw(self, tasks: Iterable[str]) -> Call:
        """Take parked tasks out of their line."""
        return self._call("withdraw", "", 0, *_flat((task,) for task in tasks))

    def claim(self, task: str, lock: str, least: float, *, awaited: bool = False) -> Call:
        """Claim an identity lock for a task about to be published; it lasts at least that many seconds."""
        head = self._claim_head
        return Call(self._claim_script, (*head, task, lock, int(least * 1000), int(awaited)), len(head))

    def succeeded(self, identity: str, task: str, fencing_token: int, remember: float) -> Call:
        """Say that a task has succeeded, to be remembered for so many seconds."""
        return self._call("succeeded", "", 0, identity, task, str(fencing_token), round(remember * 1000))

    def give_up(self, identity: str, task: str) -> Call:
        """Free the identity lock of a task that will never run."""
        return self._call("give_up", "", 0, identity, task)

    def locked(self, identity: str) -> Call:
        """Ask who has an identity lock."""
        return self._call("locked", "", 0, identity)

    def unlock(self, identity: str, task: str = "") -> Call:
        """Take an identity lock away."""
        return self._call("unlock", "", 0, identity, task)

    def mine(self, worker: str) -> Call:
        """Ask what this worker holds."""
        return self._call("mine", "", 0, worker)

    def control(self, pool: str, name: str, value: str, until: str, by: str, why: str) -> Call:
        """Say something of a limit at run time, or take it back (value ""), as control.lua has it; then `wake`."""
        return self._call("control", "", 0, pool, name, value, until, by, why)

    def wake(self, pool: str, change: str, after: str) -> Call:
        """Hint to those who can start what a change of a limit lets start."""
        return self._call("wake", "", 0, pool, change, after)

    def limits(self, source: Literal["limits", "used", "parked"], after: str) -> Call:
        """Ask which limits and keys there are."""
        return self._call("limits", "", 0, source, after)

    def status(self, pools: Iterable[str]) -> Call:
        """Ask how limits stand."""
        return self._call("status", "", 0, *_flat((pool,) for pool in pools), after=_READING)

    def holders(self, past: int, count: int) -> Call:
        """Ask who holds something."""
        return self._call("holders", "", 0, past, count)

    def parked(self, pool: str | None, most: int) -> Call:
        """Ask who waits for a limit (and all its keys), None: for anything."""
        return self._call("parked", "", 0, pool or "", int(pool is None), most, after=_READING)

    def explain(self, task: str) -> Call:
        """Ask for all that matters to one task."""
        return self._call("explain", "", 0, task, after=_READING)

    def leave(self, worker: str) -> Call:
        """Say goodbye for a worker."""
        return self._call("leave", "", 0, worker)

    @cached_property
    def _claim_script(self) -> Script:
        return Script.load("gate/claim", "gate/claim_soon", *SHARED)

    def _call(self, script: str, nonces: str, slots: int, *rest: Argument, after: tuple[str, ...] = ()) -> Call:
        head = (*self._head, nonces, slots, len(self.queues), *self.queues)
        return Call(Script.load(f"gate/{script}", *SHARED, *after), (*head, *rest), len(self._head))


def pack(command: tuple[Argument, ...]) -> bytes:
    """Return a command in Redis's protocol."""
    return b"*%d\r\n%b" % (len(command), _packed(command))


def _packed(arguments: Iterable[Argument]) -> bytes:
    parts: list[bytes] = []
    for argument in arguments:
        value = argument if isinstance(argument, bytes) else str(argument).encode()
        size = len(value)
        parts += (_SIZES[size] if size < len(_SIZES) else b"$%d\r\n" % size, value, b"\r\n")
    return b"".join(parts)


@lru_cache(maxsize=64)
def _packed_head(sha: str, fixed: tuple[Argument, ...]) -> bytes:
    return _packed(("EVALSHA", sha, *fixed))


def _flat(rows: Iterable[tuple[Argument, ...]]) -> list[Argument]:
    rows = list(rows)
    return [len(rows), *(value for row in rows for value in row)]


async def execute_async(client: AsyncRedis, call: Call) -> object:
    """As `execute`, on an asyncio client."""
    try:
        return await client.execute_command(*call.evalsha())  # type: ignore[no-untyped-call]
    except NoScriptError:
        return await client.execute_command(*call.eval())  # type: ignore[no-untyped-call]


def execute(client: Redis, call: Call) -> object:
    """Carry out one call on a plain client and wait for its reply."""
    try:
        return client.execute_command(*call.evalsha())  # type: ignore[no-untyped-call]
    except NoScriptError:
        return client.execute_command(*call.eval())  # type: ignore[no-untyped-call]
