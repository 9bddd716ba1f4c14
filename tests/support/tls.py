"""TLS in front of a server that has none: the wheels' servers are built without it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.support.relay import Relay
from tests.support.waiting import HANGS_AFTER


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1, which signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=HANGS_AFTER)
    return certificate, key


class TlsFront(Relay):
    """Listens on a port of its own, speaks TLS to clients and passes everything on to the server."""

    def __init__(self, server_port: int, certificate: Path, key: Path) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        super().__init__(server_port, context)

    @property
    def connections(self) -> int:
        """How many clients have shaken hands."""
        return len(self.attempts)
