"""Serve the page in a server of its own."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Any, Literal

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware

from celery_throttle.errors import ConfigurationError
from celery_throttle.web.site import site
from celery_throttle.web.tokens import Token

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from celery_throttle.control.findings import Commands

__all__ = ["behind", "listening", "root_of", "serve"]

_SHORTEST = 16
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
#: The names of this machine. "[" is the rest of an IPv6 address that an old Starlette compares.
_LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]", "[")
_HOW = """python -c "import secrets; print(secrets.token_urlsafe())" makes one"""


def listening(host: str, port: int, token: str | None) -> tuple[socket.socket, str]:
    """Return a listening socket, and the URL of the page.

    `ConfigurationError` if other machines could reach the page and there is no token, the token is too short, or the
    address cannot be used.
    """
    if token is None and not _is_loopback(host):
        raise ConfigurationError(f"{host} may be reached from other machines: add --token ({_HOW})")
    if token is not None and (len(token) < _SHORTEST or not token.isascii() or not token.isprintable()):
        raise ConfigurationError(f"The token must be {_SHORTEST} printable ASCII characters or more: {_HOW}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(f"Cannot listen on {host}, port {port}: {error.strerror or error}") from error
    shown = f"[{host}]" if ":" in host else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}/"


def serve(
    app: Any,
    listener: socket.socket,
    commands: Commands,
    token: str | None,
    rights: Literal["all", "read"],
    root_path: str = "",
) -> None:
    """Serve the page of a Celery app until it is interrupted, below a path as `root_of` returns it."""
    page = behind(app, commands, token, rights, listener.getsockname()[0], root_path)
    # The headers of a proxy count only from the addresses in FORWARDED_ALLOW_IPS, which uvicorn reads.
    config = uvicorn.Config(page, log_level="warning", access_log=False, lifespan="off", server_header=False)
    uvicorn.Server(config).run(sockets=[listener])


def behind(
    app: Any, commands: Commands, token: str | None, rights: Literal["all", "read"], host: str, root_path: str = ""
) -> ASGIApp:
    """Return the page behind a token; without one only for requests to this machine's own names.

    Without a token every user of the machine may read, so the arguments of tasks are hidden.
    """
    page: ASGIApp
    if token is None:
        page = site(app, lambda _: "change" if rights == "all" else "read", None, commands)
        # Against DNS rebinding: another site can have its name point here.
        page = TrustedHostMiddleware(page, [*_LOCAL, host], www_redirect=False)
    else:
        door = Token(token, rights)
        page = site(app, door.access, None, commands, door)
    return Below(page, root_path) if root_path else page


def root_of(path: str) -> str:
    """Return the path below which a proxy has the page, without its last slash; "" for none.

    `ConfigurationError` if the text is no such path.
    """
    bare = path.removesuffix("/")
    if not _ROOT_PATH.fullmatch(bare):
        raise ConfigurationError(f"--root-path must be a path such as '/ops/throttle', got {path!r}")
    return bare


class Below:
    """Answers below a path, whether or not a proxy strips that path from its requests."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            path, root = scope["path"], self._root_path
            whole = path if path == root or path.startswith(f"{root}/") else root + path
            scope = {**scope, "root_path": root, "path": whole}
        await self._app(scope, receive, send)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
