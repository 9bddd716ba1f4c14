"""The buyers: a load generator, in a process of its own, so that it does not slow down the servers.

``python -m examples.flash_sale.load PATH URL [URL ...] --requests 5000 --at-once 100`` prints a `Load` as JSON. It also
replaces the load balancer: its connections are spread evenly over the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
ANSWER_TIMEOUT = 30.0


@dataclass
class Load:
    """The answers to the buyers. ``statuses`` counts them by HTTP status; ``"none"`` is a broken connection."""

    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    #: of each answered request
    milliseconds: list[float] = field(default_factory=list)
    #: the ids of the orders in these answers
    orders: list[str] = field(default_factory=list)

    def count(self, status: str) -> None:
        """Count one more answer with this status."""
        self.statuses[status] = self.statuses.get(status, 0) + 1


class Buyer:
    """One HTTP/1.1 connection, kept alive, with one request at a time."""

    def __init__(self, url: str, path: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._request = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: 0\r\n\r\n".encode()

    async def connect(self) -> None:
        """Open the connection."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def buy(self) -> tuple[str, bytes]:
        """Send one request; return the status and the body of the answer."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return head.split(None, 2)[1].decode(), await self._reader.readexactly(int(length[1]) if length else 0)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def run(urls: Sequence[str], path: str, requests: int, at_once: int) -> Load:
    """Send ``requests`` requests, ``at_once`` at a time."""
    buyers = [Buyer(urls[number % len(urls)], path) for number in range(min(at_once, requests))]
    await asyncio.gather(*(buyer.connect() for buyer in buyers))
    load, left = Load(), iter(range(requests))
    started = time.perf_counter()
    await asyncio.gather(*(_shop(buyer, left, load) for buyer in buyers))
    load.seconds = time.perf_counter() - started
    for buyer in buyers:
        buyer.close()
    return load


async def _shop(buyer: Buyer, left: Iterator[int], load: Load) -> None:
    for _ in left:
        started = time.perf_counter()
        try:
            status, body = await asyncio.wait_for(buyer.buy(), ANSWER_TIMEOUT)
        except (OSError, EOFError, asyncio.TimeoutError):
            load.count("none")
            buyer.close()
            await buyer.connect()
            continue
        load.milliseconds.append((time.perf_counter() - started) * 1000)
        load.count(status)
        if status == "201":
            load.orders.append(json.loads(body)["order_id"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load; print the result."""
    parser = argparse.ArgumentParser(prog="python -m examples.flash_sale.load", description="POST, many at a time.")
    parser.add_argument("path")
    parser.add_argument("url", nargs="+")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=100)
    options = parser.parse_args(arguments)
    load = asyncio.run(run(options.url, options.path, options.requests, options.at_once))
    print(json.dumps(asdict(load)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
