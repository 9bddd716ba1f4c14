"""A RabbitMQ node of the tests' own: free ports, one directory, nothing of the system's service."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from amqp import Connection
from amqp.exceptions import AMQPError, NotFound

from celery_throttle.embedded import bound_to_parent
from tests.support.ports import free_port
from tests.support.waiting import until

if TYPE_CHECKING:
    from typing_extensions import Self

#: The path of the script in Debian's package: the one on PATH changes to the service's user.
_PLACES = ("/usr/lib/rabbitmq/bin", "/opt/homebrew/sbin", "/usr/local/sbin")


def find_rabbitmq() -> Path | None:
    """Return the script that starts a node; None if RabbitMQ, or Erlang's names daemon, is not installed."""
    found = shutil.which("rabbitmq-server", path=os.pathsep.join((*_PLACES, os.environ.get("PATH", ""))))
    return Path(found) if found and shutil.which("epmd") else None


class Rabbit:
    """One node, and Erlang's names daemon for it alone; a context manager."""

    def __init__(self, script: Path) -> None:
        self.port = free_port()
        self._script = script
        self._names = free_port()
        self._directory = TemporaryDirectory(prefix="throttle-rabbit-")
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def __enter__(self) -> Self:
        epmd = shutil.which("epmd")
        assert epmd, "Erlang's epmd is not on PATH."
        # Written here: two programs of Erlang that start at once may each make one, and the slower finds it half made.
        cookie = Path(self._directory.name) / ".erlang.cookie"
        cookie.write_text("throttle")
        cookie.chmod(0o400)
        # Started here, since a node that finds none starts one that outlives it.
        self._start("epmd", [epmd, "-address", "127.0.0.1", "-port", str(self._names)])
        self._start("node", [str(self._script)])
        try:
            until(self._answers, every=0.1, describe=self.log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._directory.cleanup()

    def waiting(self, queue: str) -> int:
        """Return how many messages no consumer has taken from this queue; 0 if there is no such queue."""
        with Connection(f"127.0.0.1:{self.port}") as connection:
            try:
                found: Any = connection.channel().queue_declare(queue, passive=True)
            except NotFound:
                return 0
            return int(found.message_count)

    def forget(self, *queues: str) -> None:
        """Delete these queues with their messages, and the exchanges of their names."""
        with Connection(f"127.0.0.1:{self.port}") as connection:
            for queue in queues:
                connection.channel().queue_delete(queue)
                connection.channel().exchange_delete(queue)

    def log(self) -> str:
        return (Path(self._directory.name) / "node.log").read_text(errors="replace")[-4000:]

    def _answers(self) -> bool:
        assert self._processes[-1].poll() is None, f"RabbitMQ ended:\n{self.log()}"
        try:
            with Connection(f"127.0.0.1:{self.port}", connect_timeout=5):
                return True
        except (OSError, AMQPError):
            return False

    def _start(self, name: str, command: list[str]) -> None:
        home = Path(self._directory.name)
        # All that its scripts read, and so nothing of /etc/rabbitmq.
        own = {
            "ERL_EPMD_PORT": str(self._names),
            "HOME": str(home),  # for the cookie
            "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
            "RABBITMQ_CONFIG_FILE": str(home / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_NODENAME": f"throttle{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "true",  # its script becomes the node, instead of staying in front of it
        }
        with (home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                bound_to_parent(command),
                cwd=home,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
