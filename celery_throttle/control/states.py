"""Describe the states of a limit (paused, full, ...) in words, the same on the command line and the page."""

from __future__ import annotations

from collections import Counter
from datetime import timezone
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.core.wording import at, counted, one_line, span
from celery_throttle.store.limit_status import rates_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from celery_throttle.store.limit_status import LimitStatus, RuntimeOverride

__all__ = ["State", "key_states", "states"]

#: The kinds of states that keys have by themselves, in the order in which they are shown, and their words.
_OF_KEYS = {
    "paused": "paused",
    "held-back": "held back",
    "disabled": "disabled",
    "override": "overridden",
    "full": "full",
    "rate": "waiting for its rate",
}


class State(NamedTuple):
    """A state of a limit: its kind, its text, and the time when it ends by itself."""

    kind: str
    text: str
    until: datetime | None = None


def states(status: LimitStatus) -> Iterator[State]:
    """Yield the states of a limit, or of one key of it; those that stop it first."""
    if not status.declared:
        yield State("undeclared", "no worker has declared it")
    if status.paused:
        yield State("paused", f"paused{_details(status.paused)}", status.paused.until)
    if status.held_back:
        yield State("held-back", f"held back{_details(status.held_back)}", status.held_back.until)
    if status.disabled:
        yield State("disabled", f"disabled{_details(status.disabled)}", status.disabled.until)
    if status.override:
        instead = "" if status.permits is None else f" instead of {status.permits}"
        number = f"override {status.override.permits}{instead}"
        yield State("override", f"{number}{_details(status.override)}", status.override.until)
    if status.rate_override:
        instead = f" instead of {rates_text(status.rates)}" if status.rates else ""
        rates = f"rate override {rates_text(status.rate_override.rates)}{instead}"
        yield State("override", f"{rates}{_details(status.rate_override)}", status.rate_override.until)
    if status.full and status.declared:
        yield State("full", "full")
    if status.next_start_in > 0:
        yield State("rate", f"next start in {span(status.next_start_in)}")
    if status.barred_by:
        yield State("barred", f"task {status.barred_by} goes first")


def key_states(keys: Iterable[LimitStatus], *, cut: bool) -> Iterator[State]:
    """Yield the states that keys of a limit have by themselves, each with the number of these keys.

    Args:
        keys: the keys that were read.
        cut: whether more keys are in use.
    """
    counts = Counter(kind for key in keys for kind in {*_kinds_of_key(key)})
    least = "at least " if cut else ""
    for kind, words in _OF_KEYS.items():
        if counts[kind]:
            yield State(kind, f"{least}{counted(counts[kind], 'key')} {words}")


def _kinds_of_key(key: LimitStatus) -> Iterator[str]:
    for kind, override in (
        ("paused", key.paused),
        ("held-back", key.held_back),
        ("disabled", key.disabled),
        ("override", key.override),
        ("override", key.rate_override),
    ):
        if override and key.scope(override) == key.bucket:
            yield kind
    if key.full:
        yield "full"
    if key.next_start_in > 0:
        yield "rate"


def _details(override: RuntimeOverride) -> str:
    until = f" until {at(override.until.astimezone(timezone.utc))}" if override.until else ""
    by = f" by {one_line(override.by)}" if override.by else ""
    why = f" ({one_line(override.why)})" if override.why else ""
    return f"{until}{by}{why}"
