"""Free ports, where the library's own servers look for theirs."""

from __future__ import annotations

import random
import socket

from celery_throttle.embedded import PORTS


def free_port() -> int:
    """Return a port without a listener, below those that Linux gives to outgoing connections."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
