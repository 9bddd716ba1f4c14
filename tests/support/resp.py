"""A connection to a server that reads replies without redis-py, which takes longer than the server does."""

from __future__ import annotations

import socket
from typing import Any, ClassVar

from redis.exceptions import ResponseError

__all__ = ["Push", "RespConnection"]


class Push(list[Any]):
    """Not a reply."""


class RespConnection:
    """Reads one reply after the other from a server's socket.

    Args:
        path: of the socket.
    """

    #: A reply that is an error, as it is read.
    failed: ClassVar[type[Exception]] = ResponseError

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._buffer, self._at = b"", 0

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._at)) < 0:
            self._more()
        line = self._buffer[self._at : end]
        self._at = end + 2
        return line

    def _more(self) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise EOFError("the server is gone")
        self._buffer += data

    def _text(self, size: int) -> bytes:
        end = self._at + size
        while len(self._buffer) < end + 2:
            self._more()
        self._at = end + 2
        return self._buffer[end - size : end]

    def _read(self) -> Any:  # noqa: PLR0911 - one for each type
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._text(int(rest)) if rest != b"-1" else None
        if kind in (b"*", b"~"):
            return [self._read() for _ in range(int(rest))]
        if kind == b">":
            return Push(self._read() for _ in range(int(rest)))
        if kind == b"%":
            return [self._read() for _ in range(2 * int(rest))]
        if kind == b",":
            return float(rest)
        if kind == b"-":
            return self.failed(rest.decode())
        return None if kind == b"_" else rest
