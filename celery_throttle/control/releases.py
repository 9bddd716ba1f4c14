"""Find options of tasks and limits, and settings, in which the code of live workers differs: two releases run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.control.findings import Finding
from celery_throttle.core.code_text import comparable
from celery_throttle.core.dedup import DEDUP_OPTIONS
from celery_throttle.core.wording import one_line, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.core.release import Options
    from celery_throttle.store.workers import Declared

__all__ = ["differing_options"]


class _Effect(NamedTuple):
    """What happens while workers differ in an option, and whether a limit or a lock does not hold meanwhile."""

    why: str
    alarm: bool = False


_PERMITS = _Effect("Each worker takes permits as its own code has it: more tasks may run than the limit allows.", True)
_IDENTITY = _Effect("Calls that are one call in one release are two in the other, and may run at once.", True)
_PUBLISHED = _Effect("A call has the options of the release that published it.")
_OWN = _Effect("Each worker goes by its own.")
#: By kind and option; the others are `_OWN`.
_EFFECTS = {
    **dict.fromkeys((("limit", "key"), ("limit", "group"), ("task", "limit"), ("task", "cost")), _PERMITS),
    **dict.fromkeys((("task", "singleton"), ("task", "unique_on")), _IDENTITY),
    **dict.fromkeys((("task", each) for each in DEDUP_OPTIONS if each != "unique_on"), _PUBLISHED),
    **dict.fromkeys((("limit", "fair_by"), ("limit", "weights")), _PUBLISHED),
}
_BEGIN = {"limit": "Workers declare limit", "task": "Workers declare task", "app": "Workers have the settings of app"}
_NOT_SET = "not set"
_HERE = "this code"
_FIX = ("restart the workers that have the older code",)


def differing_options(workers: Iterable[Declared], here: Options) -> Iterator[Finding]:
    """Yield each option in which these workers differ, or else all of them from this code."""
    codes: dict[int, tuple[Options, list[str]]] = {}  # most workers have the same, which is read once
    for each in workers:
        codes.setdefault(id(each.options), (each.options, []))[1].append(each.worker)
    for kind, begin in _BEGIN.items():
        named: dict[str, list[tuple[dict[str, str], list[str]]]] = {}
        for options, names in codes.values():
            for name, given in options.get(kind, {}).items():
                named.setdefault(name, []).append((given, names))
        ours = here.get(kind, {}) if kind != "app" else {}  # a command may have settings of its own
        for name, versions in sorted(named.items()):
            for option, texts, differ in _differing(versions, ours.get(name)):
                parts = [
                    f"{text} on {shortened(sorted(names, key=_in_order))}" for text, names in sorted(texts.items())
                ]
                effect = _EFFECTS.get((kind, option), _OWN)
                what = f"{begin} {name} differently: {option} is {', '.join(parts)}."
                limit = name if kind == "limit" else None
                yield Finding("declared", differ and effect.alarm, one_line(what), effect.why, _FIX, limit)


def _in_order(worker: str) -> tuple[bool, str]:
    return worker == _HERE, worker


def _differing(
    versions: list[tuple[dict[str, str], list[str]]], ours: dict[str, str] | None
) -> Iterator[tuple[str, dict[str, list[str]], bool]]:
    """Yield each option that differs, with the workers of each text, and whether workers differ."""
    every = [*versions, *([(ours, [_HERE])] if ours is not None else [])]
    for option in sorted({option for given, _ in every for option in given}):
        if option in DEDUP_OPTIONS and any("singleton" not in given for given, _ in every):
            continue  # that it is no singleton everywhere is a finding of its own
        forms = comparable(given.get(option, _NOT_SET) for given, _ in every)
        texts: dict[str, list[str]] = {}
        for given, names in every:
            texts.setdefault(forms[given.get(option, _NOT_SET)], []).extend(names)
        if len(texts) > 1:
            yield option, texts, sum(names != [_HERE] for names in texts.values()) > 1
