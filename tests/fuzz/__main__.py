"""Change what a store or a message has, and check the effect on all else.

``python -m tests.fuzz --mutations 5000``: stored bytes.
``python -m tests.fuzz --messages 2000 --pool prefork``: messages of throttled tasks, before a real worker.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from redis import Redis

from tests.conftest import new_server
from tests.fuzz.play import fuzz
from tests.fuzz.post import Post, summary
from tests.support.journal import Journal
from tests.support.workers import Workers


def main() -> int:
    """Play so many changes, and print those after which something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutations", type=int, default=5000, help="how many changes of stored bytes")
    parser.add_argument("--messages", type=int, default=0, help="how many changed messages, instead of stored bytes")
    parser.add_argument("--pool", default="threads", help="the pool of the worker that gets the messages")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, count = time.monotonic(), asked.messages or asked.mutations
    seeds = range(asked.first, asked.first + count)
    wrong = 0
    for found in _of_messages(asked.pool, seeds) if asked.messages else _of_stored_bytes(seeds):
        wrong += 1
        print(found, flush=True)  # noqa: T201
    print(f"{count} changes in {time.monotonic() - began:.0f} s: {wrong} went wrong")  # noqa: T201
    return int(wrong > 0)


def _of_stored_bytes(seeds: range) -> Iterator[object]:
    with new_server() as server, Redis.from_url(server.url) as client:
        yield from (found for found in fuzz(client, server.url, seeds) if found is not None)


def _of_messages(pool: str, seeds: range) -> Iterator[str]:
    with new_server() as server, tempfile.TemporaryDirectory() as directory:
        workers = Workers(server.url, Journal(Path(directory) / "journal"), Path(directory))
        try:
            post = Post(workers, pool)
            yield from post.play(seeds)
            print(f"{post.sent} messages;", "the log has", summary(post.worker.log()))  # noqa: T201
        finally:
            workers.end()


if __name__ == "__main__":
    sys.exit(main())
