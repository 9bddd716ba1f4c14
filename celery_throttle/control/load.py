"""Read the load of a simulation: from the counts of the last hour, and from the options of a user."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.control.pace import ENOUGH_RUNS
from celery_throttle.control.simulation import Load
from celery_throttle.core.checks import seconds, whole
from celery_throttle.core.durations import duration
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.history import History

__all__ = ["AS_COUNTED", "Question", "counted_in", "read_question"]

_FLAGS = {"run_time": "runtime", "lasts": "for"}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIMES = re.compile(r"x(\d+(?:\.\d+)?)")
_OFTEN = re.compile(r"(\d+(?:\.\d+)?) */ *([smhd])")
_MOST_SPREAD, _LONGEST = 10, 30 * 86400


class Times(float):
    """So many times the counted value; a plain number is the value instead."""


AS_COUNTED = Times(1)


class Question(NamedTuple):
    """The checked options of a simulation: see `LimitControl.simulate`; ``seconds`` is its length."""

    arrivals: float
    run_time: float
    spread: float
    seconds: float
    target: float | None
    seed: int

    @property
    def needs_counts(self) -> bool:
        """Whether the load is a multiple of the counted one."""
        return isinstance(self.arrivals, Times) or isinstance(self.run_time, Times)

    def load(self, history: History | None, cost: int) -> Load:
        """Return the load, from the counts as far as the options do not replace them."""
        arrivals, run_time, counted = [self.arrivals], self.run_time, isinstance(self.arrivals, Times)
        if history and counted:
            newest = history.periods[-max(round(self.seconds / 60), 1) :]
            arrivals = [self.arrivals * (each.at_once + each.parked) / each.length for each in newest]
        if history and isinstance(run_time, Times):
            run_time *= history.total.run_time / history.total.ended
        return Load(tuple(arrivals), run_time, self.spread, cost, counted, self.seconds, self.seed)


def counted_in(history: History) -> History | None:
    """Return the history from the first minute with counts to the last whole minute; None if that is too little."""
    busy = (number for number, each in enumerate(history.periods) if each.started or each.parked or each.ended)
    periods = history.periods[next(busy, -1) : -1]
    found = replace(history, periods=periods)
    return found if periods and found.total.ended >= ENOUGH_RUNS else None


def read_question(
    *,
    arrivals: Any = "x1",
    run_time: Any = "x1",
    spread: Any = 1.0,
    lasts: Any = 3600,
    target: Any = None,
    seed: Any = 0,
) -> Question:
    """Check the options of a simulation; `ConfigurationError` with the option and the fix if one cannot work."""
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 <= spread <= _MOST_SPREAD:
        raise _wrong("spread", spread, f"a number from 0 to {_MOST_SPREAD}", 0.5)
    return Question(
        _changed("arrivals", arrivals, _often, "'x1.5' or a number a second", "x1.5", "5/s"),
        _changed("run_time", run_time, _long, "'x2' or a time", "x2", "0.4s"),
        float(spread),
        _seconds("lasts", lasts, 1, 3600, "1h"),
        None if target is None else _seconds("target", target, 0, 2, "2s"),
        whole("simulate: seed", seed, 0, usual=0),
    )


def _changed(option: str, value: Any, read: Callable[[Any], float | None], must_be: str, *fixes: str) -> float:
    found = _TIMES.fullmatch(value) if isinstance(value, str) else None
    if found and float(found[1]):
        return Times(found[1])
    number = read(value)
    if not number or not 0 < number < inf:
        raise _wrong(option, value, must_be, *fixes)
    return number


def _often(value: Any) -> float | None:
    """Read ``5/s``, ``0.5/m``, or a number a second."""
    found = _OFTEN.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) / _UNITS[found[2]] if found else _number(value)


def _long(value: Any) -> float | None:
    """Read ``0.4s``, ``1m30s``, a timedelta, or seconds."""
    length = duration(value) if isinstance(value, str) else value
    return length.total_seconds() if isinstance(length, timedelta) else _number(length)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _seconds(option: str, value: Any, least: float, usual: float, in_shell: str) -> float:
    try:
        return seconds(f"simulate: {option}", value, least, _LONGEST, usual)
    except ConfigurationError as error:
        flag = f"--{_FLAGS.get(option, option)}"
        raise error.for_shell(f"{flag} must be at most 30 days: write {flag} {in_shell}") from None


def _wrong(option: str, value: object, must_be: str, *fixes: object) -> ConfigurationError:
    flag, got = f"--{_FLAGS.get(option, option)}", f"must be {must_be}, got {value!r:.200}: write"
    python = " or ".join(f"{option}={each!r}" for each in fixes)
    shell = " or ".join(f"{flag} {each}" for each in fixes)
    return ConfigurationError(f"simulate: {option} {got} {python}").for_shell(f"{flag} {got} {shell}")
