"""A relay in front of a server: its replies wait, come late or get lost, its connections are refused or slow."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.support.waiting import HANGS_AFTER

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from typing_extensions import Self

_PIECE = 65536


class Relay:
    """Listens on a port of its own and passes everything on to the server, until told otherwise.

    Args:
        server_port: of the server.
        context: of TLS, which clients have to speak.

    Attributes:
        attempts: when a client connected, on the monotonic clock.
        delay: seconds that each piece of a reply is late.
        instead: bytes of the server, and bytes that arrive in their place, of the same length.
        calls_per_second: bytes that go to the server on one connection, as through a slow network; 0: all.
    """

    def __init__(self, server_port: int, context: ssl.SSLContext | None = None) -> None:
        self.attempts: list[float] = []
        self.delay = 0.0
        self.instead = (b"", b"")
        self.calls_per_second = 0
        self._server_port, self._context = server_port, context
        self._said = time.monotonic()
        self._listener = socket.create_server(("127.0.0.1", 0))
        # So that a sender notices a slow network, rather than filling the kernel's buffers at once.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
        self.port = int(self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._refusing = False
        self._replying = asyncio.Event()
        self._replying.set()
        self._holding_from = b""
        self._subscribing: set[object] = set()
        self._forgotten: set[object] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._serve, sock=self._listener, ssl=self._context)
        self._server = self._run(listening)
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

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
        self._loop.call_soon_threadsafe(self._replying.set)

    def refuse(self) -> None:
        """Break all connections, and close each new one."""
        self._refusing = True
        self.hang_up()

    def accept(self) -> None:
        """Let connections through again."""
        self._refusing = False

    def hang_up(self) -> None:
        """Break all connections that there are now, and drop the kept bytes of their replies."""
        self._run(self._break())

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(HANGS_AFTER)

    async def _break(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        self._refusing = True
        self._replying.set()
        await self._break()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts.append(time.monotonic())
        writers = [writer]
        self._open.add(writer)
        try:
            if not self._refusing:
                with suppress(OSError, EOFError):  # the server is down, or one side has ended
                    from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
                    writers.append(to_server)
                    self._open.add(to_server)
                    passing = self._pass_calls(reader, to_server), self._pass_replies(from_server, writer, to_server)
                    await asyncio.gather(*passing)
        finally:
            self._open.difference_update(writers)
            for each in writers:
                each.transport.abort()
            await asyncio.sleep(0)  # which they need to close

    async def _pass_calls(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_PIECE):
            if b"SUBSCRIBE" in piece:
                self._subscribing.add(to_server)
            if to_server in self._forgotten:
                continue
            self._said = time.monotonic()
            if self.calls_per_second:
                await asyncio.sleep(len(piece) / self.calls_per_second)
            if self._holding_from and self._holding_from in piece:
                self._holding_from = b""
                self._replying.clear()
            to_server.write(piece)
            await to_server.drain()
        raise EOFError

    async def _pass_replies(
        self, reader: asyncio.StreamReader, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter
    ) -> None:
        while piece := await reader.read(_PIECE):
            if to_server in self._forgotten:
                continue
            self._said = time.monotonic()
            await asyncio.sleep(self.delay)
            await self._replying.wait()
            to_client.write(piece.replace(*self.instead) if self.instead[0] else piece)
            await to_client.drain()
        raise EOFError
