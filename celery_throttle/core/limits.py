"""The definition of a limit: a named cap, a rate or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import lcm
from typing import Any

from celery_throttle.core.buckets import Bucket, Site
from celery_throttle.core.checks import group_name, plain, text, whole
from celery_throttle.core.declaration import Declaration
from celery_throttle.core.rates import Rate, read_bursts, read_rates
from celery_throttle.core.sites import WORKER, check_kind
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.errors import ConfigurationError

__all__ = ["MOST_STEP", "Limit", "Part"]

#: Selects a part of the arguments: a name or dotted path, or a function of all arguments.
Part = str | Callable[..., Any]

_MOST_BURST = 10**6
#: Our own words that belong elsewhere, each with its fix.
_ELSEWHERE = dict.fromkeys(
    ("cost", "start_deadline", "singleton", "unique_on"),
    "set it on the task, @app.task(base=Throttled, limit=Limit('gpu', 4), ...)",
) | {
    "limit": "write Limit('gpu', 4)",
    "lease": "set throttle_lease",
    "prefix": "set throttle_prefix, or give the limit a group",
    "timeout": "write start_deadline=30 at the task, or limit.acquire(timeout=30)",
}
_MOST_WEIGHT = 1000
#: Positions in a line have 16 digits and grow by at most this for each turn: enough for 28 years at 100 turns a second.
MOST_STEP = 100_000


@dataclass(frozen=True, repr=False)
class Limit:
    """A named cap: at most ``permits`` runs at once, over all workers, first come first served; a rate, or both.

    Give the same limit to several tasks and they share its permits, also when their queues differ::

        gpu = Limit("gpu", 4)

        @app.task(base=Throttled, limit=gpu)
        def train(...): ...

        Limit("tenant", 2, key="tenant_id")                      # two for each tenant, each with its own line
        Limit("api", 8, rate="100/m", burst=10)                  # eight at once, and 100 starts a minute
        Limit("mail", rate=["10/s", "5000/h"], burst=[1, 500])   # a rate alone, or several
        Limit("api", 8, fair_by="tenant_id")                     # parked tasks take turns by tenant
        Limit("gpu", 2, per="host")                              # two on each host, one line for all
        Limit("thumbs", share=0.5, per="worker")                 # half of the pool of each worker

    Args:
        name: 1 to 200 printable characters.
        permits: number of runs at once; None for any number, if there is a rate.
        key: the part of the arguments that splits the limit: the name of an argument, a dotted path
            (``"order.customer_id"``) or a function of the arguments. Each value has its own permits, rates and line.
        rate: starts in a period: "10/s", "100/m", "5000/h" or "1/d", or a list of them; exact, over all workers.
        burst: number of starts at once after a pause; one number, or one for each rate.
        fair_by: the part of the arguments by which parked tasks take turns, as ``key``; by default first come, first
            served.
        weights: turns in a round for each value of ``fair_by``, 1 by default.
        per: "host", "worker" or a tag of ``throttle_tags``: each host, each worker or each value of the tag has that
            many permits. A task that waits is bound to one of them only when a worker of it asks.
        share: instead of a number, with ``per="worker"``: this share of each worker's pool, rounded up. It follows a
            pool that grows or shrinks.
        max_parked: number of tasks that may be parked (for each key); more are refused when they are published.
        group: limits of one group share a hash slot in Redis; all limits of a task need the same group. By default
            ``throttle_group``.

    Raises:
        ConfigurationError: the name, a number or a rate cannot work.

    Warning:
        The cap counts runs under a live lease. A worker that is cut off from the store for longer than its lease goes
        on with the tasks that it had started, while other tasks get its permits. A rate counts starts. A task may use
        its start up to a tenth of a second late without a delay for the tasks after it. A period never has more than
        ``count + burst`` starts.
    """

    name: str
    permits: int | None = None
    key: Part | None = field(default=None, kw_only=True)
    rate: str | Rate | Sequence[str | Rate] | None = field(default=None, kw_only=True, hash=False)
    burst: int | Sequence[int] = field(default=1, kw_only=True, hash=False)
    fair_by: Part | None = field(default=None, kw_only=True)
    weights: Mapping[Any, int] | None = field(default=None, kw_only=True, hash=False)
    max_parked: int | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    per: str | None = field(default=None, kw_only=True)
    share: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        text("Limit name", self.name)
        self._check_numbers()
        self._check_parts()
        self._check_sites()
        self.rates  # noqa: B018 - raises if a rate or a burst cannot work

    def __repr__(self) -> str:
        """Return the limit as code, without arguments that have their defaults."""
        given = [repr(self.name)] + ([repr(self.permits)] if self.permits is not None else [])
        values = [(each.name, getattr(self, each.name), each.default) for each in fields(self)[2:]]
        given += [f"{name}={value!r}" for name, value, default in values if value != default]
        return f"Limit({', '.join(given)})"

    @cached_property
    def rates(self) -> tuple[tuple[Rate, int], ...]:
        """The rates, each with its burst."""
        if self.rate is None:
            return ()
        try:
            rates = read_rates(self.rate)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._what}rate: {error}") from None
        both = tuple(zip(rates, read_bursts(self._what, self.burst, rates, _MOST_BURST), strict=True))
        _check_each_matters(self.name, both)
        return both

    @cached_property
    def declaration(self) -> Declaration:
        """The numbers of the limit that all workers have to share."""
        fair = 0 if self.fair_by is None else self.step(None)
        return Declaration(self.permits, self.rates, self.max_parked, fair, self.per or "", self.share)

    @cached_property
    def declared(self) -> str:
        """The declaration as the store keeps it."""
        return self.declaration.text

    def bucket(self, key: str | None) -> Bucket:
        """Return the bucket of this limit, of one key of it, or of any site of it."""
        return Bucket(self.name, key if self.per is None else Site.of(self.per))

    def step(self, value: object) -> int:
        """Return how far one turn moves this value of ``fair_by``: a higher weight makes the step smaller.

        Where the weights have no common multiple up to `MOST_STEP`, each share is exact within half a percent.
        """
        weights = self.weights or {}
        return round(min(lcm(*weights.values()), MOST_STEP) / weights.get(value, 1))

    @property
    def _what(self) -> str:
        return f"Limit {self.name!r}: "

    def _check_numbers(self) -> None:
        given: object = self.permits
        if isinstance(given, str) and "/" in given:
            raise ConfigurationError(
                f"{self._what}permits must be a whole number, got {given!r}: write Limit({self.name!r}, rate={given!r})"
            )
        if given is not None:
            whole(f"{self._what}permits", given, usual=4)
        elif self.rate is None and self.share is None:
            raise ConfigurationError(
                f"Limit {self.name!r} has neither a number nor a rate: write Limit({self.name!r}, 4) or "
                f"Limit({self.name!r}, rate='100/m')"
            )
        if self.rate is None and self.burst != 1:
            raise ConfigurationError(f"Limit {self.name!r}: burst needs a rate beside it: write rate='100/m', burst=10")
        if self.max_parked is not None:
            whole(f"{self._what}max_parked", self.max_parked, usual=1000)
        if self.group is not None:
            group_name(f"{self._what}group", self.group)

    def _check_sites(self) -> None:
        if self.share is not None:
            given: object = self.share
            if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= 1:
                raise ConfigurationError(
                    f"{self._what}share must be a number above 0, 1 at most, got {self.share!r}: write share=0.5"
                )
            if self.permits is not None:
                raise ConfigurationError(f"{self._what}share={self.share} stands instead of a number: leave one out")
            if self.per != WORKER:
                raise ConfigurationError(f"{self._what}share is of each worker's pool: write per='worker' beside it")
        if self.per is None:
            return
        check_kind(f"{self._what}per", self.per)
        for option in ("key", "rate"):
            if getattr(self, option) is not None:
                other = f"Limit('{self.name}_{option}', ..., {option}={getattr(self, option)!r})"
                raise ConfigurationError(
                    f"{self._what}per={self.per!r} cannot have {option} beside it: give the task two limits, "
                    f"limit=[Limit({self.name!r}, ..., per={self.per!r}), {other}]"
                )

    def _check_parts(self) -> None:
        for option in ("key", "fair_by"):
            part = getattr(self, option)
            if part is not None and not callable(part) and not (isinstance(part, str) and all(part.split("."))):
                raise ConfigurationError(
                    f"Limit {self.name!r}: {option} must be the name of an argument such as 'customer_id', or a "
                    f"function of the arguments, got {part!r}: write {_one_part(option, part)}"
                )
        if self.weights is not None:
            if self.fair_by is None:
                raise ConfigurationError(
                    f"Limit {self.name!r}: weights needs fair_by beside it: write fair_by='tenant_id', "
                    f"weights={self.weights!r:.80}"
                )
            if not isinstance(self.weights, Mapping):
                raise ConfigurationError(
                    f"Limit {self.name!r}: weights must be a dict of numbers by value of fair_by, got "
                    f"{self.weights!r}: write weights={{'gold': 3}}"
                )
            for value, weight in self.weights.items():
                whole(f"{self._what}weights[{value!r}]", weight, most=_MOST_WEIGHT, fix="weights={'gold': 3}")


Limit.__init__ = with_fixes(**_ELSEWHERE)(Limit.__init__)  # type: ignore[method-assign]


def _one_part(option: str, given: object) -> str:
    """Return how to write a part of the arguments, or several of them."""
    names = [str(each) for each in given] if isinstance(given, (list, tuple)) else []
    if len(names) == 1:
        return f"{option}={names[0]!r}"
    if names and all(map(str.isidentifier, names)):
        several = "/".join(f"{{{name}}}" for name in names)
        return f"{option}=lambda {', '.join(names)}, **_: f'{several}'"
    path = ".".join(filter(None, given.split("."))) if isinstance(given, str) else ""
    return f"{option}={path or 'customer_id'!r}"


def _check_each_matters(name: str, rates: Sequence[tuple[Rate, Any]]) -> None:
    """Refuse a rate that another one always covers: it has no effect, so it must be a mistake."""
    for rate, burst in rates:
        for other, its_burst in rates:
            if rate is not other and other.period * rate.count >= rate.period * other.count and its_burst <= burst:
                apart = f"{plain(other.period / other.count / 1e6)} s"
                raise ConfigurationError(
                    f"Limit {name!r}: {rate} never matters beside {other} with a burst of {its_burst}, which starts "
                    f"one every {apart}: give the slower rate a larger burst, one number for each rate, such as "
                    f"rate=['10/s', '5000/h'], burst=[1, 500]"
                )
