"""Find data of releases that lay out their keys otherwise, which share no limits with this one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_throttle.core.keys import LAYOUT
from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from celery_throttle.core.keys import Keys

__all__ = ["layout_findings"]

#: The layouts of earlier releases, and of some later ones.
_OTHERS = tuple(number for number in range(1, LAYOUT + 8) if number != LAYOUT)


def layout_findings(client: Redis, keys: Keys) -> Iterator[str]:
    """Yield a sentence, with the fix, for each other layout that has data under this prefix and group.

    Without the right to read it there is none.
    """
    for number in _OTHERS:
        other = replace(keys, layout=number)
        try:
            found, parked = client.exists(other.key("meta")), int(client.zcard(other.key("lines")))
        except RedisError:
            return
        if found:
            yield (
                f"the store also has the limits of a release with key layout {number} (this one has {LAYOUT}), with "
                f"{counted(parked, 'parked task')}: the two share no limits. Drain the limits with that release and "
                f"stop its workers, then remove the keys that begin with {other.key('')}"
            )
