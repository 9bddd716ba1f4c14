"""The way to the store: the world decides when a call is carried out, and when its reply arrives."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.simulation.clock import Clock, wait
from tests.support.resp import Push, RespConnection

__all__ = ["CLOCK_KEYS", "Ask", "AskingClient", "Network", "Pipe", "Server"]

#: Where the scripts find the time, instead of TIME.
CLOCK_KEYS = ("sim:s", "sim:us")
_TIMEOUT = 1.0
#: Chance that the replica confirms in time.
_REPLICATED = 0.6
_SUBSCRIBE, _PING = b"*2\r\n$9\r\nSUBSCRIBE", b"*1\r\n$4\r\nPING"


#: The command that reads a key of each type.
_READS: dict[bytes, Callable[[bytes], tuple[Any, ...]]] = {
    b"hash": lambda key: ("HGETALL", key),
    b"zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    b"string": lambda key: ("GET", key),
}


def packed(*arguments: Any) -> bytes:
    """Return a command in Redis's protocol."""
    values = [each if isinstance(each, bytes) else str(each).encode() for each in arguments]
    return b"*%d\r\n" % len(values) + b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in values)


class Server(RespConnection):
    """One raw connection to a real server; messages of any channel come between the replies.

    Args:
        path: of its socket.
        channel: of the hints.
    """

    def __init__(self, path: str, channel: str) -> None:
        super().__init__(path)
        self.pushed: list[bytes] = []
        self.ask(packed("HELLO", 3))
        self._socket.sendall(packed("SUBSCRIBE", channel))
        while not self.pushed:
            self.pushed.append(self._read())
        self.pushed.clear()

    def ask(self, command: bytes, replies: int = 1) -> Any:
        """Send, and return the last of so many replies; an error is returned, too."""
        return self.ask_all(command, replies)[-1]

    def ask_all(self, commands: bytes, replies: int) -> list[Any]:
        """Send several commands at once, and return their replies."""
        self._socket.sendall(commands)
        found = []
        for _ in range(replies):
            reply = self._read()
            while type(reply) is Push:
                self._note(reply)
                reply = self._read()
            found.append(reply)
        while self._at < len(self._buffer):
            push = self._read()
            self._note(push)
        self._buffer, self._at = b"", 0
        return found

    def close(self) -> None:
        self._socket.close()

    def _note(self, push: Any) -> None:
        if push[0] == b"message":
            self.pushed.append(push[2])


class Network:
    """All connections of all workers to one server.

    Args:
        server: a real one.
        clock: gives the scripts their time.
        rng: decides how many bytes arrive after a connection broke.
        texts: of the scripts, by their SHA1 at the server. A server that lacks one has it loaded silently, so that only
            `lose_scripts` brings NOSCRIPT to a worker.
        outside: called by each message that a worker sends to the outside, with the worker's name.
    """

    def __init__(
        self, server: Server, clock: Clock, rng: Random, texts: dict[str, str], outside: Callable[[Any], None]
    ) -> None:
        self._server, self._clock, self.rng, self._texts, self.outside = server, clock, rng, texts, outside
        self.pipes: list[Pipe] = []
        self.asks: list[Ask] = []
        self.strays: list[deque[tuple[Any, bytes]]] = []
        #: Workers that cannot reach the store.
        self.cut_off: set[Any] = set()
        self._known: set[str] | None = None
        self._told_us = 0
        self.fill(full=False)
        self.calls = 0

    @property
    def now_us(self) -> int:
        return self._clock.now_us

    def after(self, seconds: float) -> int:
        return self._clock.after(seconds)

    def carry_out(self, command: bytes) -> Any:
        """Have the server do it."""
        self.calls += 1
        head = command.split(b"\r\n", 5)
        if head[2] == b"EVAL":
            length = int(head[3][1:])
            text = command.split(b"\r\n", 4)[4][:length]
            sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
            if self._known is not None:
                self._known.add(sha)
            return self._ask(command)
        if head[2] == b"WAIT":  # there is no replica: the world decides whether it would have been in time
            return int(self.rng.random() < _REPLICATED)
        if head[2] == b"EVALSHA":
            sha = head[4].decode()
            if self._known is not None and sha not in self._known:
                return NoScriptError("NOSCRIPT No matching script.")
            reply = self._ask(command)
            if type(reply) is ResponseError and str(reply).startswith("NOSCRIPT"):
                self._server.ask(packed("SCRIPT", "LOAD", self._texts[sha]))
                reply = self._ask(command)
            return reply
        return self._ask(command)

    def _ask(self, command: bytes) -> Any:
        now_us = self._clock.now_us
        if now_us != self._told_us:
            self._told_us = now_us
            if self.full:
                self._server.ask(packed("CONFIG", "SET", "maxmemory", 0))
            clock = packed("MSET", CLOCK_KEYS[0], now_us // 1_000_000, CLOCK_KEYS[1], now_us % 1_000_000)
            if self.full:
                clock += packed("CONFIG", "SET", "maxmemory", 1)
            reply = self._server.ask(clock + command, 2 + self.full)
        else:
            reply = self._server.ask(command)
        if self._server.pushed:
            self._tell(self._server.pushed)
            self._server.pushed.clear()
        return reply

    def _tell(self, hints: list[bytes]) -> None:
        for pipe in self.pipes:
            if pipe.listens and pipe.state == "open":
                pipe.replies.extend((self.now_us, [b"message", b"", hint]) for hint in hints)

    def contents(self) -> dict[str, list[Any]]:
        """Return the content of the server, by key."""
        keys = sorted(key for key in self._server.ask(packed("KEYS", "*")) if key.decode() not in CLOCK_KEYS)
        # All at once, because the way to the server takes longer than the commands do.
        kinds = self._server.ask_all(b"".join([packed("TYPE", key) for key in keys]), len(keys))
        reads = b"".join([packed(*_READS[kind](key)) for key, kind in zip(keys, kinds, strict=True)])
        found = {}
        for key, kind, value in zip(keys, kinds, self._server.ask_all(reads, len(keys)), strict=True):
            if kind == b"hash":  # in an order that is another on each server
                value = sorted([field, text] for field, text in zip(value[::2], value[1::2], strict=True))  # noqa: PLW2901
            found[key.decode()] = value
        return found

    def holders(self, records: str, leases: str) -> list[tuple[bytes, bytes, float]]:
        """Return each task that has a lease, with its record and the end of the lease (ms)."""
        flat, ends = self._server.ask_all(packed("HGETALL", records) + packed("ZRANGE", leases, 0, -1, "WITHSCORES"), 2)
        by_task = dict(zip(flat[::2], flat[1::2], strict=True))
        return [(task, by_task[task], float(end)) for task, end in ends if task in by_task]

    def tasks(self, key: str) -> int:
        """Return how many of these records have a delivery that holds or is parked."""
        return sum(b'"needs"' in record for record in self._server.ask(packed("HVALS", key)))

    def lose_scripts(self) -> None:
        """SCRIPT FLUSH."""
        self._known = set()

    def find_scripts(self) -> None:
        """Everything is known again."""
        self._known = None

    def fill(self, *, full: bool) -> None:
        """It has no memory left, or has some again."""
        self.full = full
        self._server.ask(packed("CONFIG", "SET", "maxmemory", int(full)))

    def flush_data(self) -> None:
        """Emptied; all connections stand. Permits of answers that are on their way are held no more."""
        self._server.ask(packed("FLUSHALL"))
        self._told_us = 0
        for pipe in self.pipes:
            pipe.replies = deque((0, reply) for _, reply in pipe.replies)

    def lose_data(self) -> None:
        """Restarted, and empty."""
        self.flush_data()
        self.lose_scripts()
        for pipe in list(self.pipes):
            pipe.cut(0)
        self.asks_lost()

    def asks_lost(self) -> None:
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
        self.listens = False
        self.audible = 0
        self._sock = self

    def fileno(self) -> int:
        return 0

    # -- actions of the worker -- --------------------------------------------------------------------------------------

    def connect(self) -> None:
        self.network.outside(self.worker)
        if self.worker in self.network.cut_off:
            raise RedisConnectionError("no way")
        self.state = "open"
        self.network.pipes.append(self)

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
        self.network.outside(self.worker)
        if self.state == "closed":
            raise RedisConnectionError("closed")
        if self.state == "open":  # bytes that are written into a connection that is cut are lost, without an error
            self.sent.append(bytes(command))
        return len(command)

    def can_read(self, timeout: float = 0) -> bool:
        if timeout:
            until = self.network.after(timeout)
            wait(lambda: self.audible > 0 or self.state != "open", until)
        return self.audible > 0 or self.state == "cut"

    def read_response(self) -> Any:
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
            self.replies.append((self.network.now_us, [b"subscribe", b"", 1]))
        elif command.startswith(_PING):
            self.replies.append((self.network.now_us, [b"pong", b""]))
        else:
            reply = self.network.carry_out(command)
            self.worker.answered(self.network.now_us, command, reply)
            if self.state == "open":
                self.replies.append((self.network.now_us, reply))
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
        self.built_us = network.now_us
        self.carried_us = 0
        self.done = False
        self.reply: Any = None

    def carry(self) -> None:
        self.carried_us = self.network.now_us
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
        self._network.outside(self._worker)
        ask = Ask(self._network, self._worker, packed(*arguments))
        self._network.asks.append(ask)
        wait(lambda: ask.done, self._network.after(_TIMEOUT))
        if not ask.done:
            ask.lose(carried=True)
            raise RedisTimeoutError("no answer in time")
        if isinstance(ask.reply, RedisError):
            raise ask.reply
        return ask.reply
