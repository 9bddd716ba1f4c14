"""A primary, its replica, and a sentinel that watches them, as processes on 127.0.0.1."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError

from celery_throttle.embedded import EmbeddedServer, bound_to_parent
from tests.support.ports import free_port
from tests.support.waiting import until

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "mymaster"


class Sentinel:
    """One sentinel process; a context manager.

    Args:
        binary: of a server; all supported ones can be a sentinel too.
        primary: port of the server to watch.
        down_after: milliseconds of silence until it fails over; by default too many.
        password: the one that its clients need.
    """

    def __init__(self, binary: Path, primary: int, down_after: int = 60_000, password: str | None = None) -> None:
        self.port, self._password = free_port(), password
        self._directory = TemporaryDirectory(prefix="throttle-sentinel-")
        configuration = Path(self._directory.name) / "sentinel.conf"
        watched = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._directory.name}",
            f"sentinel monitor {NAME} 127.0.0.1 {primary} 1",
            f"sentinel down-after-milliseconds {NAME} {down_after}",
            f"sentinel failover-timeout {NAME} 5000",
        ]
        wants = [f"requirepass {password}"] if password else []
        configuration.write_text("\n".join([*watched, *wants, ""]))
        with (Path(self._directory.name) / "log").open("wb") as log:
            self._process = subprocess.Popen(
                bound_to_parent([str(binary), str(configuration), "--sentinel"]),
                cwd=self._directory.name,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        until(lambda: self.ask("MASTERS"))  # it listens
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def ask(self, *command: str) -> Any:
        """Return the raw reply; None while it does not listen, or if it refuses."""
        with Redis(port=self.port, password=self._password, protocol=2, socket_timeout=5) as client:
            client.response_callbacks.clear()
            try:
                return client.execute_command("SENTINEL", *command)
            except RedisError:
                return None


class Watched:
    """A store that fails over.

    Attributes:
        servers: the primary of the beginning, then its replica.
        sentinel: the one that watches.
    """

    def __init__(self, servers: Sequence[EmbeddedServer], sentinel: Sentinel) -> None:
        self.servers, self.sentinel = tuple(servers), sentinel

    @property
    def url(self) -> str:
        """As our own setting has it; the first address has no listener."""
        return f"sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel.port}/0?master_name={NAME}"

    @property
    def primary(self) -> EmbeddedServer:
        """The one that the sentinel names."""
        _, port = self.sentinel.ask("GET-MASTER-ADDR-BY-NAME", NAME)
        return next(server for server in self.servers if server.port == int(port))

    @property
    def replica(self) -> EmbeddedServer:
        """The other one."""
        primary = self.primary
        return next(server for server in self.servers if server is not primary)

    def wait_replicated(self) -> None:
        """Wait until the replica has all that the primary has."""
        wait_replicated(self.primary, self.replica)

    def cut_off_replica(self) -> EmbeddedServer:
        """Freeze the replica and end its connection, so that later writes of the primary never reach it. Return it."""
        replica = self.replica
        replica.freeze()
        with Redis(port=self.primary.port) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        return replica

    def fail_over(self) -> None:
        """SIGKILL the primary; the replica, which is thawed if it was cut off, is the primary from now on."""
        lost, replica = self.primary, self.replica
        lost.kill()
        replica.thaw()
        until(lambda: self.primary is replica or self.sentinel.ask("FAILOVER", NAME), every=0.1)
        until(lambda: self.primary is replica)


def wait_replicated(primary: EmbeddedServer, replica: EmbeddedServer) -> None:
    """Wait until this replica has all that its primary has."""

    def caught_up() -> bool:
        with Redis(port=primary.port) as here, Redis(port=replica.port) as there:
            mine, its = here.info("replication"), there.info("replication")
        return bool(
            its["role"] == "slave"
            and its.get("master_link_status") == "up"
            and mine["master_repl_offset"] == its.get("slave_repl_offset")
        )

    until(caught_up)


@contextmanager
def watched(new_server: Callable[..., EmbeddedServer], *, down_after: int = 60_000) -> Iterator[Watched]:
    """Yield a primary with a replica and a sentinel; by default one too patient to fail over by itself."""
    quick = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 1}
    with ExitStack() as stack:
        primary = stack.enter_context(new_server(options=quick))
        replica = stack.enter_context(new_server(options=quick | {"replicaof": f"127.0.0.1 {primary.port}"}))
        wait_replicated(primary, replica)
        sentinel = stack.enter_context(Sentinel(primary.binary, primary.port, down_after))

        def knows_both() -> bool:
            # It can be chosen once it has announced itself.
            fields = [dict(zip(each[::2], each[1::2], strict=True)) for each in sentinel.ask("REPLICAS", NAME) or []]
            return [each[b"master-link-status"] for each in fields] == [b"ok"]

        until(knows_both, describe=lambda: sentinel.ask("REPLICAS", NAME))
        yield Watched((primary, replica), sentinel)
