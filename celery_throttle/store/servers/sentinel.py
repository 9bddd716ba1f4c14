"""The primary, as sentinels know it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from celery_throttle.store.servers.primary import Addresses

if TYPE_CHECKING:
    from celery_throttle.core.store_url import Address


class Sentinels:
    """Connects to the first server that a sentinel names, and that itself says that it is a primary.

    Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/

    Warning:
        Sentinels that are cut off from the others still name the old primary, and a client on their side of the network
        goes on with it; what it writes there is lost. ``min-replicas-to-write 1`` on the servers makes it refuse.

    Args:
        addresses: of the sentinels.
        master_name: what they call the primary.
        make: makes an unconnected connection to a sentinel.
    """

    def __init__(self, addresses: Iterable[Address], master_name: str, make: Callable[[str, int], Any]) -> None:
        self._sentinels, self._name, self._make = Addresses(addresses), master_name, make

    def __call__(self, connection: Any) -> None:
        """Connect a connection."""
        try:
            self._sentinels.try_each(lambda host, port: self._follow(connection, host, port))
        except RedisConnectionError as error:
            raise RedisConnectionError(
                f"no sentinel leads to a primary named {self._name!r} ({error}); if this lasts, check throttle_url, or "
                f"the broker's URL, and master_name"
            ) from error

    def _follow(self, connection: Any, host: str, port: int) -> None:
        """Connect to the server that this sentinel names."""
        host, port = self._named(host, port)
        connection.connect_to(host, port)
        role = _role(connection)
        if role not in ("", "master"):
            # A sentinel that did not yet hear of the failover, or one that is ahead of it.
            raise RedisConnectionError(f"{host}:{port} is no primary yet, or no more: its role is {role}")

    def _named(self, host: str, port: int) -> Address:
        sentinel = self._make(host, port)
        try:
            sentinel.connect()
            sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
            reply = sentinel.read_response()
        finally:
            sentinel.disconnect()
        if not reply:
            raise RedisConnectionError("it does not know that name")
        return reply[0].decode(), int(reply[1])


def _role(connection: Any) -> str:
    try:
        return str(connection.ask("ROLE")[0].decode())
    except NoPermissionError:
        return ""  # A replica will say READONLY.
