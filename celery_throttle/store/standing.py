"""The reasons why a limit does not let a task start, as values and in words; and how the keys of a limit stand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from celery_throttle.core.wording import at, counted, listed, one_line, seconds
from celery_throttle.store.limit_status import State, rates_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.store.limit_status import LimitStatus, RuntimeOverride
    from celery_throttle.store.task_view import TaskView

__all__ = ["Refusal", "in_words", "key_states", "refusals", "refusals_of"]

Kind = Literal["undeclared", "paused", "held-back", "full", "barred", "rate"]
#: The kinds of states that keys have by themselves, in the order in which they are shown, and their words.
_OF_KEYS = {
    "paused": "paused",
    "held-back": "held back",
    "disabled": "disabled",
    "override": "overridden",
    "full": "full",
    "rate": "waiting for its rate",
}


@dataclass(frozen=True)
class Refusal:
    """The reason why a limit with this status does not let a task start that needs ``cost`` permits."""

    kind: Kind
    status: LimitStatus
    cost: int = 1

    @property
    def clause(self) -> str:
        """The reason as a part of a sentence, without the operator: ``limit api is paused``."""
        limit, rates = f"limit {self.status.bucket}", listed([each.rate for each in self.status.rates_in_force])
        return {
            "undeclared": f"no worker has declared {limit}",
            "paused": f"{limit} is paused",
            "held-back": f"{limit} is held back",
            "full": f"{limit} is full, {self.status.held} of {self.status.in_force} permits are held then",
            "barred": f"task {self.status.barred_by} goes first on {limit}",
            "rate": f"the rate of {limit} ({rates}) allows the next start in {seconds(self.status.next_start_in)}",
        }[self.kind]

    @property
    def sentence(self) -> str:
        """The reason as a sentence, with the change at run time that is behind it."""
        status, limit = self.status, f"imit {self.status.bucket}"
        if self.kind == "undeclared":
            return f"No worker has declared l{limit}."
        if self.kind == "full":
            wanted = f", and it needs {self.cost}" if self.cost > 1 else ""
            code = "any number" if status.permits is None else status.permits
            number = status.override and f": {status.override.permits} instead of {code} {in_words(status.override)}"
            return f"L{limit} is full: {status.held} of {status.in_force} permits are held{wanted}{number or ''}."
        if self.kind == "barred":
            return f"Task {status.barred_by}, which needs several limits and waited for long, goes first on l{limit}."
        if self.kind == "rate":
            rates = listed([rate.rate for rate in status.rates_in_force])
            if status.rate_override:
                rates += f", instead of {rates_text(status.rates) or 'none'} {in_words(status.rate_override)}"
            return f"The rate of l{limit} ({rates}) allows the next start in {status.next_start_in:.1f} s."
        change = dict(status.changes)[self.kind]
        return f"Limit {change.limit} is {self.kind.replace('-', ' ')} {in_words(change)}."


def refusals(status: LimitStatus, cost: int = 1, task_id: str = "", place: float = inf) -> Iterator[Refusal]:
    """Yield the reasons why a limit does not let a task start, in the order of the gate; none if it may start.

    Args:
        status: the status of the limit.
        cost: the permits that the task needs.
        task_id: the id of the task, "" for any task.
        place: the place of the task in the line of the limit, by default behind all others.
    """
    found: dict[Kind, bool] = {
        "paused": status.paused is not None,
        "held-back": status.held_back is not None,
        "undeclared": not status.declared,
        "full": status.declared and not status.has_room(cost),
        "barred": status.bars(task_id, place),
        "rate": status.next_start_in > 0 and not status.stopped,
    }
    return (Refusal(kind, status, cost) for kind, is_so in found.items() if is_so)


def refusals_of(task_id: str, view: TaskView) -> Iterator[Refusal]:
    """Yield the reasons why the limits of a task do not let it start, limit by limit."""
    costs = {need.bucket: need.permits for need in view.needs}
    for limit in view.limits:
        yield from refusals(limit, costs.get(limit.bucket, 1), task_id, view.place(limit.bucket))


def key_states(keys: Iterable[LimitStatus], *, cut: bool) -> Iterator[State]:
    """Yield the states that keys of a limit have by themselves, with the number of keys; ``cut``: more are in use."""
    counts = Counter(kind for key in keys for kind in {*_kinds_of_key(key)})
    least = "at least " if cut else ""
    for kind, words in _OF_KEYS.items():
        if counts[kind]:
            yield State(kind, f"{least}{counted(counts[kind], 'key')} {words}")


def _kinds_of_key(key: LimitStatus) -> Iterator[str]:
    yield from (kind for kind, change in key.changes if key.scope(change) == key.bucket)
    if key.full:
        yield "full"
    if key.next_start_in > 0:
        yield "rate"


def in_words(override: RuntimeOverride) -> str:
    """Return the details of a runtime override: ``since ... until ... by ana, because: their incident``."""
    until = f" until {at(override.until)}" if override.until else ""
    why = f", because: {one_line(override.why)}" if override.why else ""
    by = f" by {one_line(override.by)}" if override.by else ""
    return f"since {at(override.since)}{until}{by}{why}"
