"""The kinds of tasks that a run of chaos publishes, and the expectations of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

__all__ = ["CAPS", "KINDS", "LEASE", "OUTSIDE", "RATES", "REVOKED_TOO", "STEERED", "Call", "Kind"]

LEASE = 3

#: The most permits that a limit has in any release, however it is steered.
CAPS = {
    "early": 3, "late": 3, "shared": 5, "keyed": 1, "heavy": 4, "api": 4, "tenant": 1, "again": 2, "told": 2, "ends": 2,
}  # fmt: skip
#: Starts a second and burst, the largest of all releases.
RATES = {"paced": (8, 2)}
#: Limits that are overridden, paused and resumed while others use them.
STEERED = ("shared", "late", "paced")
_WHO = ("ada", "bob", "cyd", "ж*:{}\x1f", "\ud800 \n")


@dataclass(frozen=True)
class Call:
    """One call: its message, and the task of its run."""

    kind: Kind
    label: str
    args: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def buckets(self) -> dict[str, int]:
        """The permits that it takes, by bucket."""
        cost = int(self.args.get("size", 1))
        return {self._bucket(limit): cost for limit in self.kind.limits}

    def _bucket(self, limit: str) -> str:
        return f"{limit}[{self.args['who']}]" if limit in {"keyed", "tenant"} else limit


@dataclass(frozen=True)
class Kind:
    """A task, and how its calls end."""

    name: str
    weight: int
    limits: tuple[str, ...] = ()
    late: bool = False
    #: The end of its body after its time: see `tests.chaos.tasks`.
    then: str = ""
    #: How the last of its runs ends.
    final: str = "returned"
    #: Whether a call of it need not come to its end: it may expire, be a duplicate, or be killed by a time limit.
    may_miss: bool = False
    #: Whether it has an identity, of which one call runs at a time.
    once: bool = False
    remember: float | None = None
    by_who: bool = False
    by_size: bool = False
    seconds: tuple[float, float] = (0.02, 0.25)
    expires: float | None = None
    throttled: bool = True

    def call(self, number: int, chance: Random) -> Call:
        """Make up a call."""
        label = f"{self.name}-{number}"
        args: dict[str, Any] = {"label": label, "seconds": round(chance.uniform(*self.seconds), 3)}
        if self.by_who:
            args["who"] = chance.choice(_WHO)
        if self.by_size:
            args["size"] = chance.choice((1, 1, 2, 3))
        if self.once:
            args["order"] = f"{self.name}-{number - chance.choice((0, 0, 0, 1, 2, 5, 40))}"
        return Call(self, label, args, {} if self.expires is None else {"expires": self.expires})


KINDS = (
    Kind("plain", 2, throttled=False),
    Kind("fan", 1, throttled=False),
    Kind("early", 5, ("early",)),
    Kind("late", 5, ("late",), late=True),
    Kind("shared_early", 3, ("shared",)),
    Kind("shared_late", 3, ("shared",), late=True),
    Kind("keyed", 4, ("keyed",), late=True, by_who=True),
    Kind("keyed_early", 2, ("keyed",), by_who=True),
    Kind("paced", 3, ("paced",), late=True),
    Kind("heavy", 3, ("heavy",), late=True, by_size=True),
    Kind("two", 4, ("api", "tenant"), late=True, by_who=True),
    Kind("once", 4, (), late=True, once=True, remember=600.0, may_miss=True),
    Kind("once_early", 2, ("early",), once=True, may_miss=True),
    Kind("once_fails", 1, (), late=True, once=True, may_miss=True, then="fail", final="raised"),
    Kind("retrying", 2, ("again",), late=True, then="retry"),
    Kind("retrying_early", 1, ("again",), then="retry"),
    Kind("told", 2, ("told",), late=True, then="slow_down"),
    Kind("told_early", 1, ("told",), then="slow_down"),
    Kind("failing", 1, ("ends",), late=True, then="fail", final="raised"),
    Kind("ignoring", 1, ("ends",), late=True, then="ignore", final="raised"),
    Kind("rejecting", 1, ("ends",), late=True, then="reject", final="raised"),
    Kind("requeueing", 1, ("ends",), late=True, then="requeue"),
    Kind("expiring", 1, ("ends",), late=True, may_miss=True, expires=1.0),
    Kind("timed", 1, ("timed",), late=True, may_miss=True, seconds=(0.5, 1.5)),
    Kind("leaving", 1, ("late",), late=True, may_miss=True),
)

#: A service that takes permits outside of tasks.
OUTSIDE = Kind("outside", 0, ("shared",), may_miss=True)
#: Kinds of which some calls are revoked.
REVOKED_TOO = {"early", "late", "keyed", "two", "heavy", "shared_late", "once_early"}
