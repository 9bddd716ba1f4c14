"""The differences that are known, each with its reason. One that is not here, or no longer occurs, is an error."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LISTED", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """A test that ends otherwise if its tasks are throttled.

    Attributes:
        test: file, class, name and parameters, as they are printed.
        where: on which workers, under which limit, as it is printed; ``*`` stands for anything.
        reason: why it may.
    """

    test: str
    where: str
    reason: str


LISTED: tuple[Known, ...] = ()
