"""Find what a caller names: limits by a name, a `Limit` or a task; tasks and queues."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.result import AsyncResult

from celery_throttle.control.limit_control import LimitControl
from celery_throttle.control.reader import AT_ONCE, Reader, readers
from celery_throttle.core.buckets import Bucket, Site
from celery_throttle.core.checks import closest
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import key_text, limits_of
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import dedups_of, policies_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_throttle.store.audit import Change
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.parked_tasks import Parked

__all__ = ["KnownLimits", "changes_of", "holders_of", "parked_of", "queue_names", "task_id_of"]


class KnownLimits:
    """The limits of an app's tasks, and those that workers have declared in the app's store."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def readers(self) -> list[Reader]:
        """Return a reader for each group that a limit of the app names, and one for the default group."""
        self._policies()
        return list(readers(self._app))

    def limit(self, limit: str | Limit | Task[..., Any], key: object) -> LimitControl:
        """Return the control of a limit; see `ThrottleControl.limit`."""
        if isinstance(limit, Task):
            found = self._of_task(limit)
            if len(found) > 1:
                which = " or ".join(repr(each.name) for each in found)
                several = f"Task {limit.name} has several limits"
                one = shlex.quote(found[0].name)
                raise ConfigurationError(f"{several}: name one of them, {which}").for_shell(
                    f"{several}, {which}: write `{{command}} {one}`"
                )
            limit = found[0]
        name: Any = limit.name if isinstance(limit, Limit) else limit
        if not isinstance(name, str):
            raise ConfigurationError(
                f"ThrottleControl.limit: the name of a limit, the Limit or its task is wanted, got {name!r}: "
                "write limit('api')"
            )
        known = limits_of(self._policies())
        if isinstance(limit, Limit):
            known.setdefault(name, limit)
        reader = self._reader_of(name, known.get(name))
        if reader is None and name in self._app.tasks:
            return self.limit(self._app.tasks[name], key)
        if reader is None:
            names = (each for one in self.readers() for each in one.names())
            is_task = bool(name) and any(one.explain(name).state for one in self.readers())
            raise _unknown_limit(name, {*known, *names}, is_task=is_task)
        if key is not None and (per := known[name].per if name in known else reader.stand([name])[0].per):
            return LimitControl(reader, name, _site(per, str(key)))
        if key is not None and name in known and known[name].key is None:
            raise ConfigurationError(f"Limit {name!r} has no keys: leave key= out, or give the limit a key").for_shell(
                f"Limit {name!r} has no keys: write `{{command}} {shlex.quote(name)}`"
            )
        return LimitControl(reader, name, None if key is None else key_text(key))

    def limits(self, task: str | Limit | Task[..., Any], key: object) -> tuple[LimitControl, ...]:
        """Return the control of each limit of a task; see `ThrottleControl.limits`."""
        policies = self._policies()
        known = isinstance(task, str) and (task in limits_of(policies) or self._reader_of(task, None) is not None)
        named = None if known or not isinstance(task, str) else self._app.tasks.get(task)
        meant = task if isinstance(task, Task) else named
        if meant is None:
            return (self.limit(task, key),)
        found = self._of_task(meant)
        if key is not None:
            found = tuple(each for each in found if each.key is not None) or found
        return tuple(self.limit(each, key) for each in found)

    def _of_task(self, task: Task[..., Any]) -> tuple[Limit, ...]:
        self._policies()
        policy = policies_of(self._app).get(str(task.name))
        if policy is None and task.name in dedups_of(self._app):
            once = f"Task {task.name} runs once and has no limit"
            raise ConfigurationError(
                f"{once}: throttle.locks() or `celery throttle locks` shows its identity locks"
            ).for_shell(f"{once}: `{{throttle}} locks` shows its identity locks")
        if policy is None:
            raise ConfigurationError(f"Task {task.name} has no limit: give it base=Throttled, limit=5")
        return policy.limits

    def _reader_of(self, name: object, known: Limit | None) -> Reader | None:
        if known is not None:
            return Reader(self._app, settings_of(self._app).group_of(known.group))
        if not isinstance(name, str) or not name.isprintable():
            return None
        return next((each for each in self.readers() if each.stand([name])[0].declared), None)

    def _policies(self) -> Iterable[Any]:
        self._app.finalize(auto=True)  # binds the tasks, which register their limits
        return policies_of(self._app).values()


def _site(per: str, key: str) -> Site:
    """Return one site (``a7``, ``host=a7``), or any site of this kind (``host``, ``any host``)."""
    any_site = Site.of(per)
    return any_site if key in (per, any_site) else Site.of(per, key.removeprefix(f"{per}="))


def queue_names(method: str, queues: Iterable[str]) -> tuple[str, ...]:
    """Return the names of queues; `ConfigurationError` if one is no text, or empty."""
    named: tuple[Any, ...] = (queues,) if isinstance(queues, str) else tuple(queues)
    for each in named:
        if not isinstance(each, str) or not each:
            raise ConfigurationError(
                f"ThrottleControl.{method}: a queue is named by text, got {each!r:.80}: write 'celery'"
            ).for_shell(f"A queue has a name, got {each!r:.80}: write `{{command}} celery`")
    return named


def task_id_of(method: str, task: object) -> str:
    """Return the id of a task, from its id or its `AsyncResult`; `ConfigurationError` for another value."""
    task_id = task.id if isinstance(task, AsyncResult) else task
    if not isinstance(task_id, str) or not task_id:
        option = " --task" if method == "drop" else ""
        raise ConfigurationError(
            f"{method}: a task's id or what delay() returned is wanted, got {task_id!r}: write {method}(result.id)"
        ).for_shell(f"A task's id is wanted, got {task_id!r}: write `{{throttle}} {method}{option} TASK_ID`")
    return task_id


def _unknown_limit(name: str, known: set[str], *, is_task: bool) -> ConfigurationError:
    """Return the error for an unknown limit, with the likeliest name."""
    limits = sorted(each for each in known if Bucket.parse(each).key is None)
    bare, split, key = name.removesuffix("]").partition("[")
    close = closest(name, limits)
    meant, shell = f", did you mean {close!r}?" if close else ":", ""
    if split and bare in limits:  # the text of a `Bucket`, or a part of it: `tenant[acme`
        key = key or "KEY"
        meant = f": write limit({bare!r}, key={key!r})."
        shell = f": write `{{command}} {shlex.join([bare, '--key', key])}`."
    if is_task:  # a similar name of a limit would mislead here
        meant = f", but a task has this id: explain and drop take it, throttle.drop({name!r}) or drop --task {name}."
        task = shlex.quote(name)
        shell = f", but a task has this id: write `{{throttle}} explain {task}` or `{{throttle}} drop --task {task}`."
    there = ", ".join(limits[:AT_ONCE]) or "none"
    error = ConfigurationError(f"No limit {name!r}{meant} Known limits: {there}")
    return error.for_shell(f"No limit {name!r}{shell or meant} Known limits: {there}")


def holders_of(limits: Sequence[LimitControl], most: int) -> tuple[Holder, ...]:
    """Return the holders of permits of any of these limits, each once; the first lease to end first."""
    found = {row.task_id: row for each in limits for row in each.holders(most=most)}
    return tuple(sorted(found.values(), key=lambda row: row.lease_left))[:most]


def parked_of(limits: Sequence[LimitControl], most: int) -> tuple[Parked, ...]:
    """Return the parked tasks that need permits of any of these limits, each once; line by line."""
    found = {row.task_id: row for each in limits for row in each.parked(most=most)}
    return tuple(found.values())[:most]


def changes_of(limits: Sequence[LimitControl], most: int) -> tuple[Change, ...]:
    """Return the changes of any of these limits, newest first."""
    found = [row for each in limits for row in each.audit(most=most)]
    return tuple(sorted(found, key=lambda row: row.at, reverse=True))[:most]
