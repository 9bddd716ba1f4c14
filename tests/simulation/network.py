"""The way to the store: the world decides when a call is carried out, and when its reply arrives."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.core.keys import Keys
from celery_throttle.store.scripts import Argument, pack
from tests.simulation.clock import Clock, wait
from tests.simulation.scene import PREFIX
from tests.simulation.server import CLOCK_KEYS, Server

__all__ = ["Ask", "AskingClient", "Network", "Pipe"]

_TIMEOUT = 1.0
#: Chance that the replica confirms in time.
_REPLICATED = 0.6
_SUBSCRIBE, _PING = b"*2\r\n$9\r\nSUBSCRIBE", b"*1\r\n$4\r\nPING"

#: The command that reads a key of each type.
_READS: dict[bytes, Callable[[bytes], tuple[Argument, ...]]] = {
    b"hash": lambda key: ("HGETALL", key),
    b"zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    b"string": lambda key: ("GET", key),
}


class Network:
    """All connections of all workers to one server."""

    def __init__(self, server: Server, clock: Clock, rng: Random) -> None:
        self._server, self.clock, self.rng = server, clock, rng
        self.pipes: list[Pipe] = []
        self.asks: list[Ask] = []
        self.strays: list[deque[tuple[Any, bytes]]] = []
        #: Workers that cannot reach the store.
        self.cut_off: set[Any] = set()
        #: The scripts that it knows after a SCRIPT FLUSH, None: all.
        self.scripts: set[str] | None = None
        self._told_us = 0
        self.fill(full=False)

    def carry_out(self, command: bytes) -> Any:
        """Have the server do it."""
        head = command.split(b"\r\n", 5)
        if head[2] == b"WAIT":  # there is no replica: the world decides whether it would have been in time
            return int(self.rng.random() < _REPLICATED)
        if self.scripts is not None and head[2] == b"EVAL":
            text = command.split(b"\r\n", 4)[4][: int(head[3][1:])]
            self.scripts.add(hashlib.sha1(text, usedforsecurity=False).hexdigest())
        if self.scripts is not None and head[2] == b"EVALSHA" and head[4].decode() not in self.scripts:
            return NoScriptError("NOSCRIPT No matching script.")
        return self._ask(command)

    def _ask(self, command: bytes) -> Any:
        now_us = self.clock.now_us
        if now_us != self._told_us:
            self._told_us, full = now_us, self.full
            if full:
                self.fill(full=False)
            self._server.ask("MSET", CLOCK_KEYS[0], now_us // 1_000_000, CLOCK_KEYS[1], now_us % 1_000_000)
            if full:
                self.fill(full=True)
        (reply,) = self._server.carry_out(command)
        hints, self._server.pushed = self._server.pushed, []
        for pipe in self.pipes if hints else ():
            if pipe.listens and pipe.state == "open":
                pipe.replies.extend((now_us, [b"message", b"", hint]) for hint in hints)
        return reply

    def contents(self) -> dict[str, list[Any]]:
        """Return the content of the server, by key."""
        found = {}
        for key in sorted(self._server.ask("KEYS", "*")):
            if (name := key.decode()) not in CLOCK_KEYS:
                found[name] = self._server.ask(*_READS[self._server.ask("TYPE", key)](key))
        return found

    def fields(self, name: str) -> dict[str, Any]:
        """Return the JSON in the fields of one of our keys."""
        flat = self._server.ask("HGETALL", Keys(PREFIX).key(name))
        return {field.decode(): json.loads(text) for field, text in zip(flat[::2], flat[1::2], strict=True)}

    def leases(self) -> dict[str, float]:
        """Return the end of each lease (ms), by task."""
        return {
            task.decode(): end
            for task, end in self._server.ask("ZRANGE", Keys(PREFIX).key("leases"), 0, -1, "WITHSCORES")
        }

    def lock_ends(self) -> dict[str, float]:
        """Return the end of each identity lock (ms)."""
        flat = self._server.ask("ZRANGE", Keys(PREFIX).key("ends"), 0, -1, "WITHSCORES")
        ends = {member.decode(): end for member, end in flat}
        return {name.removeprefix("locks:"): end for name, end in ends.items() if name.startswith("locks:")}

    def end_lease(self, task: str) -> None:
        self._server.ask("ZADD", Keys(PREFIX).key("leases"), "XX", self.clock.now_us // 1000 - 1, task)

    def fill(self, *, full: bool) -> None:
        """It has no memory left, or has some again."""
        self.full = full
        self._server.ask("CONFIG", "SET", "maxmemory", int(full))

    def flush_data(self) -> None:
        """Emptied; all connections stand. Permits of answers that are on their way are held no more."""
        self._server.ask("FLUSHALL")
        self._told_us = 0
        for pipe in self.pipes:
            pipe.replies = deque((0, reply) for _, reply in pipe.replies)

    def lose_data(self) -> None:
        """Restarted, and empty."""
        self.flush_data()
        self.scripts = set()
        for pipe in list(self.pipes):
            pipe.cut(0)
        for ask in list(self.asks):
            ask.lose(carried=False)

    def gone(self, worker: Any) -> None:
        """The worker is gone; some of its calls may still arrive."""
        for pipe in [pipe for pipe in self.pipes if pipe.worker is worker]:
            pipe.cut(self.rng.randint(0, len(pipe.sent)))
            pipe.disconnect()
        self.asks = [ask for ask in self.asks if ask.worker is not worker]

    def stray(self, worker: Any, commands: list[bytes]) -> None:
        """These may still arrive, though no worker waits for an answer."""
        calls = deque((worker, command) for command in commands if not command.startswith((_SUBSCRIBE, _PING)))
        if calls:
            self.strays.append(calls)


def _commands(written: bytes) -> Iterator[bytes]:
    """Yield each of the commands in one write."""
    begin = at = 0
    while at < len(written):
        line = written.index(b"\r\n", at)
        parts, at = int(written[at + 1 : line]), line + 2
        for _ in range(parts):
            line = written.index(b"\r\n", at)
            at = line + 2 + int(written[at + 1 : line]) + 2
        yield written[begin:at]
        begin = at


class Pipe:
    """Replaces a connection of redis-py, for a worker's loop.

    Attributes:
        sent: calls that have not been carried out.
        replies: unread ones, each with the time when it was made.
        state: "new", "open", "cut" (which the worker has not noticed) or "closed".
    """

    def __init__(self, network: Network, worker: Any) -> None:
        self.network, self.worker = network, worker
        self.sent: deque[bytes] = deque()
        self.replies: deque[tuple[int, Any]] = deque()
        self.state = "new"
        self.listens = self.pinged = False
        self.audible = 0
        self._sock = self

    def fileno(self) -> int:
        return 0

    # -- actions of the worker -- --------------------------------------------------------------------------------------

    def connect(self) -> None:
        self.worker.outside()
        if self.worker in self.network.cut_off:
            raise RedisConnectionError("no way")
        self.state = "open"
        self.network.pipes.append(self)

    def send_command(self, *command: str) -> None:
        """Take the PING of a new connection; its reply comes at once."""
        assert command == ("PING",)
        self.pinged = True

    def disconnect(self) -> None:
        if self in self.network.pipes:
            self.network.pipes.remove(self)
            self.network.stray(self.worker, list(self.sent))
        self.sent.clear()
        self.replies.clear()
        self.state = "closed"

    def gettimeout(self) -> float:
        return _TIMEOUT

    def settimeout(self, seconds: float) -> None:
        """It never waits."""

    def send(self, command: memoryview) -> int:
        self.worker.outside()
        if self.state == "closed":
            raise RedisConnectionError("closed")
        if self.state == "open":  # bytes that are written into a connection that is cut are lost, without an error
            self.sent.extend(_commands(bytes(command)))
        return len(command)

    def can_read(self, timeout: float = 0) -> bool:
        if timeout:
            until = self.network.clock.after(timeout)
            wait(lambda: self.audible > 0 or self.state != "open", until)
        return self.audible > 0 or self.state == "cut"

    def read_response(self) -> Any:
        if self.pinged:
            self.pinged = False
            return b"PONG"
        if self.audible:
            self.audible -= 1
            made_us, reply = self.replies.popleft()
            if not self.listens:
                self.worker.hears_of(made_us, reply)
            if isinstance(reply, RedisError):
                raise reply
            return reply
        raise RedisConnectionError("cut")

    # -- actions of the world -- ---------------------------------------------------------------------------------------

    def carry(self) -> bytes:
        """Have the oldest call carried out."""
        command = self.sent.popleft()
        if command.startswith(_SUBSCRIBE):
            self.listens = True
            self.replies.append((self.network.clock.now_us, [b"subscribe", b"", 1]))
        elif command.startswith(_PING):
            self.replies.append((self.network.clock.now_us, [b"pong", b""]))
        else:
            reply = self.network.carry_out(command)
            self.worker.answered(self.network.clock.now_us, command, reply)
            if self.state == "open":
                self.replies.append((self.network.clock.now_us, reply))
        return command

    def cut(self, arrives: int) -> None:
        """Break; so many of the calls still arrive, no reply does."""
        if self.state == "open":
            self.network.stray(self.worker, list(self.sent)[:arrives])
            self.sent.clear()
            self.replies.clear()
            self.audible = 0
            self.state = "cut"


class Ask:
    """A call whose reply is awaited."""

    def __init__(self, network: Network, worker: Any, command: bytes) -> None:
        self.network, self.worker, self.command = network, worker, command
        self.carried_us = 0
        self.done = False
        self.reply: Any = None

    def carry(self) -> None:
        self.carried_us = self.network.clock.now_us
        self.reply = self.network.carry_out(self.command)

    def hear(self) -> None:
        self.done = True
        self.network.asks.remove(self)

    def lose(self, *, carried: bool) -> None:
        """Its reply will not come; the call itself may still arrive."""
        if not self.carried_us and carried:
            self.network.stray(self.worker, [self.command])
        self.reply = RedisConnectionError("lost")
        self.hear()


class AskingClient:
    """Stands where the client of a worker's renewals does."""

    def __init__(self, network: Network, worker: Any) -> None:
        self._network, self._worker = network, worker
        self.connection_pool = self

    def disconnect(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""

    def execute_command(self, *arguments: Any) -> Any:
        """Wait for the reply."""
        self._worker.outside()
        ask = Ask(self._network, self._worker, pack(arguments))
        self._network.asks.append(ask)
        wait(lambda: ask.done, self._network.clock.after(_TIMEOUT))
        if not ask.done:
            ask.lose(carried=True)
            raise RedisTimeoutError("no answer in time")
        if isinstance(ask.reply, RedisError):
            raise ask.reply
        return ask.reply
