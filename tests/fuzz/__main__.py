"""``python -m tests.fuzz --mutations 5000``: change stored bytes, and check the effect on the group."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from redis import Redis

from tests.conftest import new_server
from tests.fuzz.play import fuzz


def main() -> int:
    """Play so many changes, and print those after which something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutations", type=int, default=5000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, wrong = time.monotonic(), 0
    with new_server() as server, Redis.from_url(server.url) as client:
        for found in fuzz(client, server.url, range(asked.first, asked.first + asked.mutations)):
            if found is not None:
                wrong += 1
                print(found, flush=True)  # noqa: T201
    print(f"{asked.mutations} changes in {time.monotonic() - began:.0f} s: {wrong} went wrong")  # noqa: T201
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
