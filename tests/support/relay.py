"""A relay in front of a server: its replies wait, come late or get lost, its connections are refused or slow."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_PIECE = 65536


class Relay:
    """Listens on a port of its own and passes everything on to the server, until told otherwise.

    Attributes:
        attempts: when a client connected, on the monotonic clock.
        delay: seconds that each piece of a reply is late.
        instead: bytes of the server, and bytes that arrive in their place, of the same length.
        calls_per_second: bytes that go to the server on one connection, as through a slow network; 0: all.
    """

    def __init__(self, server_port: int) -> None:
        self.attempts: list[float] = []
        self.delay = 0.0
        self.instead = (b"", b"")
        self.calls_per_second = 0
        self._server_port = server_port
        self._said = time.monotonic()
        self._listener = socket.create_server(("127.0.0.1", 0))
        # So that a sender notices a slow network, rather than filling the kernel's buffers at once.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
        self._open: set[socket.socket] = set()
        self._replying = threading.Event()
        self._replying.set()
        self._refusing = False
        self._holding_from = b""
        self._subscribing: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._replying.set()
        self._refusing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def forget_subscriptions(self) -> None:
        """Drop later messages of subscribed connections, without notice to either side, as a NAT does."""
        self._forgotten |= self._subscribing

    def quiet_for(self, seconds: float) -> bool:
        """Return whether no bytes came for so long."""
        return time.monotonic() - self._said > seconds

    def hold_replies(self) -> None:
        """Keep the server's bytes from now on; calls still reach it."""
        self._replying.clear()

    def hold_replies_from(self, said: bytes) -> None:
        """Keep the server's bytes from the moment that a client sends this."""
        self._holding_from = said

    def pass_replies(self) -> None:
        """Pass on the kept bytes, and later ones."""
        assert not self._holding_from, f"no client has sent {self._holding_from!r}"
        self._replying.set()

    def refuse(self) -> None:
        """Break all connections, and close each new one."""
        self._refusing = True
        self.hang_up()

    def accept(self) -> None:
        """Let connections through again."""
        self._refusing = False

    def lead_to(self, server_port: int) -> None:
        """Pass on new connections to another server, as an address that moves does."""
        self._server_port = server_port
        self.hang_up()

    def hang_up(self) -> None:
        """Break all connections that there are now, and drop the kept bytes of their replies."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.attempts.append(time.monotonic())
            server = None
            if not self._refusing:
                with suppress(OSError):  # the server is down
                    server = socket.create_connection(("127.0.0.1", self._server_port))
            if server is None:
                client.close()
                continue
            for source, target, replies in ((client, server, False), (server, client, True)):
                self._open.add(source)
                threading.Thread(target=self._pass_on, args=(source, target, replies), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if not replies and b"SUBSCRIBE" in piece:
                    self._subscribing |= {source, target}
                if source in self._forgotten:
                    continue
                self._said = time.monotonic()
                if replies:
                    time.sleep(self.delay)
                    self._replying.wait()
                    piece = piece.replace(*self.instead) if self.instead[0] else piece
                else:
                    if self.calls_per_second:
                        time.sleep(len(piece) / self.calls_per_second)
                    if self._holding_from and self._holding_from in piece:
                        self._holding_from = b""
                        self._replying.clear()
                target.sendall(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
