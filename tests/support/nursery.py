"""Workers and other commands forked from one process that has imported Celery, redis-py and our package.

That is half of the cost of their start. Everything else is as in ``celery worker``: a session, standard streams,
environment, directory and command line of its own, and each imports the app itself. For apps that import our package
first.
"""

from __future__ import annotations

import array
import ctypes
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from celery_throttle.embedded import bound_to_parent
from celery_throttle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

__all__ = ["Forked", "Nursery"]

ROOT = Path(__file__).resolve().parents[2]

#: The imports of every worker of such an app.
_IMPORTED = (
    "billiard.heap", "billiard.popen_fork", "billiard.sharedctypes", "billiard.synchronize",
    "celery.__main__", "celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log",
    "celery.apps.worker", "celery.backends.redis", "celery.bin.celery", "celery.bin.worker",
    "celery.concurrency.prefork", "celery.concurrency.solo", "celery.concurrency.thread", "celery.events.receiver",
    "celery.fixups.django", "celery.worker.autoscale", "celery.worker.components", "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery", "celery.worker.strategy",
    "celery_throttle.control.remote_step", "celery_throttle.permits", "celery_throttle.tasks.throttled",
    "celery_throttle.worker.bootsteps", "celery_throttle.worker.reported.remarks", "encodings.idna",
    "kombu.asynchronous.hub", "kombu.transport.filesystem", "kombu.transport.redis",
    "redis.asyncio", "tests.support.journal",
)  # fmt: skip

#: With the repository at the END of the path, as for workers that are started as commands.
_NURSERY = "import sys; sys.path.append(sys.argv[1]); from tests.support import nursery; nursery.main(int(sys.argv[2]))"
_MESSAGE = 1 << 17
_STATUS = "i"


class Forked:
    """A process of a nursery; as much of `subprocess.Popen` as a worker's tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0)
            said = array.array(_STATUS, os.read(self._status, 16))
            os.close(self._status)
            self.returncode = said[0] if said else -signal.SIGKILL  # they go with their nursery
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Starts workers; a context manager. Its process begins with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._line.close()
            self._process.wait()

    def start(
        self,
        arguments: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        out: BinaryIO,
        err: BinaryIO | None = None,
    ) -> Forked:
        """Start ``celery`` with these arguments; its output goes to one file, or its errors to another."""
        if self._process is None:
            self._begin()
        order = {"arguments": list(arguments), "directory": str(directory), "environment": dict(environment)}
        mine, theirs = os.pipe()
        try:
            socket.send_fds(self._line, [json.dumps(order).encode()], [out.fileno(), (err or out).fileno(), theirs])
        finally:
            os.close(theirs)
        return Forked(int(self._line.recv(_MESSAGE)), mine)

    def _begin(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                bound_to_parent([sys.executable, "-c", _NURSERY, str(ROOT), str(theirs.fileno())]),
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the tests, which end it
            )


def main(line: int) -> None:
    """Be the nursery, and then each of the workers."""
    importlib.metadata.version = functools.cache(importlib.metadata.version)  # redis-py's, for each connection
    for name in _IMPORTED:
        with suppress(ModuleNotFoundError):  # not in every version of Celery
            importlib.import_module(name)
    Script.load_gate()
    gc.collect()
    gc.freeze()
    arguments = _next_worker(socket.socket(fileno=line))
    if arguments is not None:
        sys.argv[:] = ["celery", *arguments]
        importlib.import_module("celery.__main__").main()


def _next_worker(line: socket.socket) -> list[str] | None:
    """Return the command to run, in each of the children; None, in the parent, once all clients are gone."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not line:
                    selector.unregister(key.fileobj)
                    _say_end(key.fd, *running.pop(key.fd))
                    continue
                order, descriptors, _, _ = socket.recv_fds(line, _MESSAGE, 3)
                if not order:
                    return None
                out, err, status = descriptors
                parent, pid = os.getpid(), os.fork()
                if not pid:
                    others = [line.detach(), status, *running, *(each for _, each in running.values())]
                    break
                os.close(out)
                os.close(err)
                line.send(str(pid).encode())
                ended = os.pidfd_open(pid)
                running[ended] = pid, status
                selector.register(ended, selectors.EVENT_READ)
            else:
                continue
            break
    for each in others:
        os.close(each)
    return _become(json.loads(order), (out, err), parent)


def _say_end(ended: int, pid: int, status: int) -> None:
    _, how = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        os.write(status, array.array(_STATUS, [os.waitstatus_to_exitcode(how)]))
    os.close(status)
    os.close(ended)


def _become(order: Mapping[str, Any], streams: Sequence[int], parent: int) -> list[str]:
    """Set up in this process the state at the start of a command."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None
    for ours, stream in zip(streams, (sys.stdout, sys.stderr), strict=True):
        os.dup2(ours, stream.fileno())
        os.close(ours)
    arguments: list[str] = order["arguments"]
    return arguments
