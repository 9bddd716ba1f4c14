"""Load the Lua scripts, and call them.

Each script is one ``.lua`` file; the shared functions are put in front of it. A call is sent as EVALSHA. A server
without the script (after a restart, a failover, SCRIPT FLUSH) answers NOSCRIPT. Then the call is sent as EVAL.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError

from celery_throttle.core.storable import storable
from celery_throttle.store.gate_script import gate_scripts, gate_text, inlined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

__all__ = ["Argument", "Call", "Script", "execute", "pack"]

Argument = str | bytes | int

_SIZES = tuple(b"$%d\r\n" % size for size in range(256))


@dataclass(frozen=True)
class Script:
    """A Lua script: its whole text, and the SHA1 that names it in Redis."""

    name: str
    text: str
    sha: str

    @classmethod
    @cache
    def load(cls, name: str, *shared: str) -> Script:
        """Read ``<name>.lua`` from the package, with the text of the shared files before it."""
        folder = files("celery_throttle.store") / "lua"
        parts = [(folder / f"{part}.lua").read_text("utf-8") for part in (*shared, name)]
        return cls.of(name, inlined("\n".join(parts)))

    @classmethod
    @cache
    def of_gate(cls, name: str) -> Script:
        """Read a script of the gate."""
        return cls.of(name, gate_text(name))

    @classmethod
    def load_gate(cls) -> None:
        """Compose the texts of all scripts of the gate, before a worker's loop begins, because that takes long."""
        for name in gate_scripts():
            cls.of_gate(name)

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        """Return the script with this text."""
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True)
class Call:
    """One call to a script, ready to be sent.

    Attributes:
        script: the script to run.
        arguments: the number of keys, the keys, the arguments.
        fixed: how many of the first arguments are the same in each call; they are packed only once.

    Each text is made `storable`, so no call is impossible to send, and no caller has to look at its texts.
    """

    script: Script
    arguments: tuple[Argument, ...]
    fixed: int = 0

    def __post_init__(self) -> None:
        own = self.arguments[self.fixed :]
        if not all(type(each) is not str or each.isascii() for each in own):
            texts = (storable(each) if type(each) is str else each for each in own)
            object.__setattr__(self, "arguments", (*self.arguments[: self.fixed], *texts))

    def evalsha(self) -> tuple[Argument, ...]:
        """Return the command for a server that has the script."""
        return ("EVALSHA", self.script.sha, *self.arguments)

    def packed(self) -> bytes:
        """Return the EVALSHA command in Redis's protocol.

        The packing of redis-py takes longer than Redis takes for the call.
        """
        head = _packed_head(self.script.sha, self.arguments[: self.fixed])
        return b"*%d\r\n%b%b" % (2 + len(self.arguments), head, _packed(self.arguments[self.fixed :]))

    def eval(self) -> tuple[Argument, ...]:
        """Return the command for a server that may not have the script."""
        return ("EVAL", self.script.text, *self.arguments)


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


def execute(client: Redis, call: Call) -> object:
    """Send one call on a plain client and return its reply."""
    try:
        return client.execute_command(*call.evalsha())  # type: ignore[no-untyped-call]
    except NoScriptError:
        return client.execute_command(*call.eval())  # type: ignore[no-untyped-call]
