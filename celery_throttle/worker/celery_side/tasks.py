"""The throttled tasks of an app for the gate: the needs and the lock plan of each request.

A running worker may learn of a task: after `pool_restart`, or by a late import. So what is computed of the registered
tasks is computed again when these have changed.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_throttle.core.contents import stored_id
from celery_throttle.core.dedup import carried_plan
from celery_throttle.core.policy import limits_of
from celery_throttle.core.task_codes import TaskNames, code_of, limits_by_task
from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.registry import dedup_of, dedups_of, policies_of, registered, release_of_app
from celery_throttle.tasks.result_backends import check_result_backend
from celery_throttle.worker.celery_side.parsing import content_of
from celery_throttle.worker.celery_side.strategies import check_strategy
from celery_throttle.worker.lock_plans import header_of, plan_of
from celery_throttle.worker.runs import Content, Run
from celery_throttle.worker.user_code import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.core.dedup import LockPlan
    from celery_throttle.core.limits import Limit
    from celery_throttle.core.release import Options
    from celery_throttle.core.settings import Settings
    from celery_throttle.core.sites import Sites
    from celery_throttle.worker.celery_side.broker import Queues

__all__ = ["Tasks", "check_task"]

logger = logging.getLogger(__name__)


def check_task(task: Any) -> None:
    """Refuse a throttled task that no worker can throttle, or whose duplicates would wait for ever.

    Raises:
        ConfigurationError: with the fix.
    """
    check_strategy(task)
    if (dedup := dedup_of(task)) is not None:
        check_result_backend(task, dedup, ignores_result=bool(task.ignore_result))


class _Known:
    """The throttled tasks of an app, as they were registered at one time."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.version = registered(app).version  # first, because another thread may declare a task
        self.policies, self.dedups = policies_of(app).copy(), dedups_of(app)
        limits = limits_by_task(self.policies, self.dedups)
        self.codes = {name: code_of(name, theirs) for name, theirs in limits.items()}
        self.names = TaskNames(limits)
        self.plain = {name for name, each in self.policies.items() if not each.paced}

    @cached_property
    def options(self) -> Options:
        """The options of the tasks and of the app."""
        return release_of_app(self._app)


class Tasks:
    """The throttled tasks of one app, as they are registered now.

    Args:
        app: the app.
        settings: the settings of the app.
        sites: the sites of the worker.
        groups: the groups of limits that the worker serves.
        free_lock: frees the lock in a message, by its plan and task id, that no run here takes.

    Attributes:
        sites, free_lock: as given.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        sites: Sites,
        groups: Iterable[str],
        free_lock: Callable[[LockPlan, object], None],
    ) -> None:
        self.sites, self.free_lock = sites, free_lock
        self._app, self._settings, self._served = app, settings, frozenset((*groups, None))
        self._registered = registered(app)
        self._last = _Known(app)

    @property
    def version(self) -> int:
        """Another number after each change of the registered tasks."""
        return self._registered.version

    @property
    def _known(self) -> _Known:
        if self._last.version != self._registered.version:
            self._last = _Known(self._app)
        return self._last

    @property
    def names(self) -> TaskNames:
        """The names of the tasks, by their codes in the store."""
        return self._known.names

    @property
    def options(self) -> Options:
        """The options of the tasks and of the app, to compare them with those of other workers."""
        return self._known.options

    def check(self, task: Any) -> None:
        """Refuse a throttled task that this worker cannot throttle: it may have started before the task was declared.

        Raises:
            ConfigurationError: with the fix.
        """
        check_task(task)
        if (group := self.group_of(task)) not in self._served:
            raise ConfigurationError(
                f"Task {task.name} was declared while the worker ran, which has no connection for its group of limits, "
                f"{group!r}: restart the worker"
            )

    def run_of(self, request: Any, epoch: int, queues: Queues | None) -> Run:
        """Return the run of a request, with the content of its message.

        Raises:
            Exception: the message cannot be used, see `content_of`.
        """
        name = request.task.name
        known = self._known
        policy, dedup = known.policies.get(name), known.dedups.get(name)
        own = self.group_of(request.task)
        # The limits and the lock of a run are in one group. If throttling is off, the gate is only there for tasks that
        # are still parked.
        honoured = (self._served if policy is None else (own, None)) if self._settings.enabled else ()
        if (carried := carried_plan(header_of(request), request.id, dedup)) and carried.group not in honoured:
            self.free_lock(carried, request.id)
        if not self._settings.enabled:
            return self.unread(request, epoch)
        plan = plan_of(request, request.task, dedup, honoured)
        if policy is None and plan is None:
            return self.unread(request, epoch)
        content = content_of(request, policy, plan, self.sites)
        queue = queues.queue_of(request.message) if queues is not None else ""
        group = own if plan is None or plan.group is None else plan.group
        code = known.codes[name] if name in known.codes else code_of(name, ())
        return Run(request, content, epoch=epoch, queue=queue, group=group, code=code)

    @staticmethod
    def unread(request: Any, epoch: int) -> Run:
        """Return the run of a request of which nothing else is read: its task is not throttled, or cannot run."""
        return Run(request, Content(stored_id(request.id)), epoch=epoch)

    def group_of(self, task: Any) -> str:
        """Return the group of a task's limits."""
        policy = self._known.policies.get(task.name)
        return self._settings.group_of(policy.group if policy is not None else None)

    def plan_of(self, context: Any, task: Any) -> LockPlan | None:
        """Return the lock plan of a call with its group, None if the call has none."""
        try:
            plan = call(plan_of, context, task, self._known.dedups.get(task.name))
            return plan and replace(plan, group=self.group_of(task) if plan.group is None else plan.group)
        except Exception as error:  # noqa: BLE001 - the user's own functions raise anything
            logger.debug("Task %s has no lock: %r", task.name, error)
            return None

    def runs_once(self, request: Any) -> bool:
        """Return whether a request may have an identity lock."""
        return request.task.name in self._known.dedups

    def is_plain(self, run: Run) -> bool:
        """Return whether a permit may pass to or from the run before the store has the new holder.

        Only numbers of permits limit such a run: no rate, and no identity lock. The broker has no message of it while
        it runs, because another worker could get that message.
        """
        task = run.request.task
        return task.name in self._known.plain and bool(run.needs.text) and not run.lock and not task.acks_late

    def declared(self, group: str) -> dict[str, str]:
        """Return this app's declaration of each limit of a group, by name."""
        return {name: limit.declared for name, limit in self._limits(group).items()}

    def sites_for(self, group: str) -> Sites | None:
        """Return the sites of the worker, None if no limit of a group has any."""
        limits = self._limits(group).values()
        if not any(limit.per for limit in limits):
            return None
        return self.sites if any(limit.share for limit in limits) else self.sites.unsized

    def _limits(self, group: str) -> dict[str, Limit]:
        policies = self._known.policies.values()
        return limits_of(each for each in policies if self._settings.group_of(each.group) == group)
