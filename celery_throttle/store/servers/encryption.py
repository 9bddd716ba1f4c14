"""TLS where there is none, and none where there is TLS: what a server that does not answer speaks."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Any

from redis import SSLConnection

__all__ = ["mixed_up", "unreadable"]

_PATIENCE = 2.0
_URL = "in throttle_url (or the broker's URL that it was taken from)"
#: The files of a connection, and the options that name them.
_FILES = {"ca_certs": "ssl_ca_certs", "ca_path": "ssl_ca_path", "certfile": "ssl_certfile", "keyfile": "ssl_keyfile"}


def unreadable(connection: Any) -> str | None:
    """Return which file of a connection is not there, with the fix; redis-py's error does not name it."""
    for attribute, option in _FILES.items():
        path = getattr(connection, attribute, None)
        if isinstance(path, str) and not os.access(path, os.R_OK):
            return f"names {path} as {option}, which cannot be read here: correct the path"
    return None


def mixed_up(connection: Any) -> str | None:
    """Return whether the server speaks TLS and a failed connection does not, or the other way round, with the fix."""
    host, port = getattr(connection, "host", None), getattr(connection, "port", None)
    if not host or not port:
        return None
    encrypted = isinstance(connection, SSLConnection)
    try:
        if encrypted and _speaks_plainly(host, port):
            return f"speaks no TLS: write redis:// {_URL}"
        if not encrypted and _speaks_tls(host, port):
            return f"speaks TLS: write rediss:// {_URL}"
    except OSError:
        return None
    return None


def _speaks_plainly(host: str, port: int) -> bool:
    with socket.create_connection((host, port), _PATIENCE) as plain:
        plain.sendall(b"PING\r\n")
        return plain.recv(1) in (b"+", b"-")


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with socket.create_connection((host, port), _PATIENCE) as plain, context.wrap_socket(plain, server_hostname=host):
        return True
