"""A real server with the real scripts, which read the time that a world sets, and may have a defect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store import gate_script
from celery_throttle.store.scripts import Argument, Script, pack
from tests.simulation.scene import PREFIX
from tests.support.resp import Push, RespConnection

__all__ = ["CLOCK_KEYS", "DEFECTS", "Defect", "Server", "output_of", "serving"]

#: Where the scripts find the time, instead of TIME.
CLOCK_KEYS = ("sim:s", "sim:us")
_USED = ("exchange", "limits", "declare")  # one of each text


@dataclass(frozen=True)
class Defect:
    """A change of a line of the scripts, to see whether it is noticed.

    Attributes:
        small: the small world in which `tests.explore` finds it, "" if it need not.
        said: how the violation begins that simulated worlds find, "" if they need not.
    """

    name: str
    right: str
    wrong: str = ""
    small: str = ""
    said: str = ""

    @property
    def file(self) -> str:
        """The file with that line."""
        names = [f"{folder}/{name}" for folder in ("gate/shared", "gate") for name in gate_script._names(folder)]
        found = [name for name in names if self.right in gate_script._read(name)]
        if len(found) != 1:
            raise ValueError(f"defect {self.name}: its line is in {len(found)} files: {found}")
        return found[0]


DEFECTS = (
    Defect("a lock is not given back", "    drop_lock(identity)\n", "", "once/2", "lock left: "),
    Defect(
        "a renewal brings back what has ended",
        " or load_worker(id_of(report.worker)).number > report.number",
        small="plain/2:late-renewal",
    ),
    Defect(
        "a call of a connection that is gone counts",
        "if before.number > state.call then return",
        "if false then return",
        "plain/2:store",
    ),
    Defect(
        "nobody knows that a task has run",
        "if only_told or is_over then finish(task, record, message == 'broker') end",
        small="plain/2:broker",
    ),
    Defect("who waits to run next is forgotten", "    wake_next(identity)\n  else", "  else", "once/2/keep_last/gpu"),
    Defect(
        "a claim lasts as long as a lock",
        "return NOW + claim_ms end",
        "return NOW + plan.ttl_ms end",
        "once/2/gpu:publisher",
        "lock left: ",
    ),
    Defect(
        "a call that was never published replaces others",
        "if not lock.coming then return verdict end",
        "do return verdict end",
        "once/2/replace/gpu:publisher+limited",
    ),
    Defect(
        "a worker of a site takes the oldest task of its own queues",
        "  local _, first_place = first_at(open)\n",
        "  local first_place = nil\n",
        "host-queues/3",
    ),
    Defect(
        "a lane at another limit is in no line of a site",
        "    for _, head in ipairs(changed_site_heads(lane, entry)) do redis.call('ZADD', HEADS, 0, head) end\n",
        "",
        "host-queues-both/3",
    ),
    Defect("there is always room", "return rule.permits - rule.used >= ", "return 1 or ", "plain/2", "cap: "),
    Defect("a rate lets all start", "start = math.max(start, ", "start = math.min(start, ", said="rate: "),
    Defect(
        "no run ends",
        "if not record or record.nonce ~= nonce then return nil end",
        "if true then return nil end",
        said="ghost: ",
    ),
    Defect(
        "an ended run keeps its lease",
        "  redis.call('ZREM', LEASES, task)\n  if not began then",
        "  if not began then",
        "plain/2",
    ),
    Defect(
        "the sum of all keys keeps what has ended",
        "  add_sum(what, limit, by - math.min(count, 0))",
        "  add_sum(what, limit, math.max(by, 0))",
        "keys/2",
    ),
)


class Server(RespConnection):
    """One raw connection, since redis-py would take longer than the scripts. Hints come between the replies.

    Attributes:
        pushed: the hints that came.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.pushed: list[bytes] = []
        self.ask("HELLO", 3)
        for name in _USED:
            self.ask("SCRIPT", "LOAD", Script.of_gate(name).text)
        self._socket.sendall(pack(("SUBSCRIBE", Keys(PREFIX).wake)))
        self._read()

    def ask(self, *command: Argument) -> Any:
        return self.carry_out(pack(command))[0]

    def carry_out(self, commands: bytes, replies: int = 1) -> list[Any]:
        """Send commands at once, and return their replies; an error is returned, too."""
        self._socket.sendall(commands)
        found: list[Any] = []
        while len(found) < replies or self._at < len(self._buffer):
            reply = self._read()
            if type(reply) is not Push:
                found.append(reply)
            elif reply[0] == b"message":
                self.pushed.append(reply[2])
        self._buffer, self._at = b"", 0
        return found

    def close(self) -> None:
        self._socket.close()


_AServer = TypeVar("_AServer", bound=Server)


@contextmanager
def serving(kind: type[_AServer], defect: Defect | None = None) -> Iterator[_AServer]:
    """Start a server of our own."""
    with _scripts(defect), EmbeddedServer(prefer=("wheel", "path"), options={"unixsocket": "{dir}/redis.sock"}) as own:
        server = kind(str(own.directory / "redis.sock"))
        yield server
        server.close()


@contextmanager
def _scripts(defect: Defect | None) -> Iterator[None]:
    read, file = gate_script._read, defect.file if defect else ""

    def changed(name: str) -> str:
        text = read(name).replace("('TIME')", f"('MGET', '{CLOCK_KEYS[0]}', '{CLOCK_KEYS[1]}')")
        return text.replace(defect.right, defect.wrong) if defect and name == file else text

    with mock.patch.object(gate_script, "_read", changed):
        _forget_texts()
        yield
    _forget_texts()


def _forget_texts() -> None:
    for cached in (gate_script._text_of_several, gate_script.shared_functions, gate_script._constants, Script.of_gate):
        cached.cache_clear()


def output_of(module: str, *options: str) -> str:
    """Return the output of a module that runs in a process of its own: 0 or 1 ends it well."""
    command = [sys.executable, "-m", module, *options]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=os.environ | {"CI": "1"})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()
