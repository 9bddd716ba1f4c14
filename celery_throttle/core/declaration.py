"""The declaration of a limit: the value that workers write, that the store keeps, and that readers compare."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from celery_throttle.core.json_text import write
from celery_throttle.core.rates import Rate

__all__ = ["Declaration", "described"]


class Declaration(NamedTuple):
    """The numbers of a limit that all workers have to share.

    Attributes:
        permits: number of runs at once; None for any number.
        rates: the rates, each with its burst.
        max_parked: number of tasks that may be parked; None for any number.
        fair: the step of one turn of parked tasks, at weight 1 (`Limit.step`); 0 if they take no turns.
        per: the kind of sites of which each has the permits; "" if all have them together.
        share: of the pool of each worker, instead of a number of permits.
    """

    permits: int | None
    rates: tuple[tuple[Rate, int], ...] = ()
    max_parked: int | None = None
    fair: int = 0
    per: str = ""
    share: float | None = None

    @property
    def text(self) -> str:
        """The declaration as the store keeps it: the permits, or JSON as permits.lua reads it."""
        if self == Declaration(self.permits):
            return str(self.permits)
        others: dict[str, Any] = {
            "rates": [[rate.count, rate.period, burst] for rate, burst in self.rates],
            "max_parked": self.max_parked,
            "fair": self.fair,
            "per": self.per,
            "share": self.share,
        }
        return write({"permits": self.permits or 0} | {name: value for name, value in others.items() if value})

    @classmethod
    @lru_cache(maxsize=1024)  # all keys of a limit have the same
    def parse(cls, text: str) -> Declaration:
        """Parse `text`.

        Raises:
            ValueError: it is no declaration.
        """
        read = json.loads(text)
        if isinstance(read, int):
            return cls(read)
        rates = tuple((Rate.of(int(count), int(period)), int(burst)) for count, period, burst in read.get("rates", ()))
        per, share = read.get("per", ""), read.get("share")
        return cls(read["permits"] or None, rates, read.get("max_parked"), read.get("fair", 0), per, share)

    def __str__(self) -> str:
        """Return the declaration for people: ``8, 100/m (burst 10)``, ``2 on each host``, ``0.5 of each worker``."""
        parts = [f"{self.permits}{f' on each {self.per}' if self.per else ''}"] if self.permits else []
        parts += [f"{self.share:.3g} of each worker"] if self.share else []
        parts += [f"{rate} (burst {burst})" for rate, burst in self.rates]
        parts += [f"max_parked={self.max_parked}"] if self.max_parked else []
        parts += ["with turns" + (f" of {self.fair}" if self.fair > 1 else "")] if self.fair else []
        return ", ".join(parts)


def described(text: str) -> str:
    """Return the declaration in this text for people."""
    return str(Declaration.parse(text))
