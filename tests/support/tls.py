"""TLS in front of a server that has none: the wheels' servers are built without it."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1, which signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return certificate, key


class TlsFront:
    """Listens on a port of its own, speaks TLS to clients and passes everything on to the server."""

    def __init__(self, server_port: int, certificate: Path, key: Path) -> None:
        self.connections = 0
        self._server_port = server_port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._closing = False

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        for connection in (self._listener, *self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        # One thread for both ways: an OpenSSL connection cannot be read and written at once.
        self._open.add(plain)
        # A socket that is closed meanwhile has no number to wait for: a ValueError.
        with suppress(OSError, ValueError), self._context.wrap_socket(plain, server_side=True) as client:
            self._open.discard(plain)
            self._open.add(client)
            self.connections += 1
            with socket.create_connection(("127.0.0.1", self._server_port)) as server:
                self._open.add(server)
                _pass_on(client, server)
                self._open.discard(server)
            self._open.discard(client)


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Copy both ways until either side ends."""
    client.setblocking(False)
    server.setblocking(False)
    _Pump(client, server).run()


class _Pump:
    """Two sockets and the bytes that are still to be written to each."""

    def __init__(self, client: ssl.SSLSocket, server: socket.socket) -> None:
        self._pairs = [(client, server), (server, client)]
        self._left: dict[socket.socket, bytearray] = {client: bytearray(), server: bytearray()}

    def run(self) -> None:
        while True:
            writing = [sock for sock, left in self._left.items() if left]
            select.select(list(self._left), writing, [], 1.0)
            for source, target in self._pairs:
                if not self._read(source, self._left[target]):
                    return
            for target, left in self._left.items():
                self._write(target, left)

    @staticmethod
    def _read(source: socket.socket, into: bytearray) -> bool:
        while True:
            try:
                data = source.recv(65536)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                return True
            if not data:
                return False
            into += data

    @staticmethod
    def _write(target: socket.socket, left: bytearray) -> None:
        while left:
            try:
                del left[: target.send(left)]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                return
