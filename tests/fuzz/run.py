"""Change one stored value after the other, each in a group that was healthy, and check the effect."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple

from redis import Redis

from tests.fuzz.app import make_app
from tests.fuzz.mutations import Mutation, mutate
from tests.fuzz.play import play
from tests.fuzz.readers import Readers, no_patience
from tests.fuzz.town import Town
from tests.store.peek import KEY

__all__ = ["Found", "fuzz"]

#: Seconds after which a town is made anew: its leases and locks end by the clock.
_YOUNG = 60.0


class Found(NamedTuple):
    """A change after which something went wrong."""

    seed: int
    mutation: Mutation
    wrong: list[str]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}: {self.mutation}", *self.wrong])


def fuzz(client: Redis, url: str, seeds: Iterable[int]) -> Iterator[Found | None]:
    """Yield for each seed its errors, None if there are none."""
    readers, town, made = Readers(make_app(url)), None, 0.0
    with no_patience():
        for seed in seeds:
            if town is None or time.monotonic() - made > _YOUNG:
                client.flushdb()
                town, made = Town(client), time.monotonic()
            town.restore()
            mutation = mutate(client, KEY, Random(seed))
            wrong = list(play(town, readers, mutation, seed))
            yield Found(seed, mutation, wrong) if wrong else None
