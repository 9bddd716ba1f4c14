"""The throttled tasks of an app for the gate: the needs and the lock plan of each request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_throttle.core.contents import stored_id
from celery_throttle.core.policy import limits_of
from celery_throttle.core.task_codes import TaskNames, code_of, limits_by_task
from celery_throttle.worker.celery_side.parsing import content_of
from celery_throttle.worker.lock_plans import plan_of
from celery_throttle.worker.runs import Content, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_throttle.core.dedup import Dedup, LockPlan
    from celery_throttle.core.limits import Limit
    from celery_throttle.core.policy import Policy
    from celery_throttle.core.settings import Settings
    from celery_throttle.core.sites import Sites
    from celery_throttle.worker.celery_side.broker import Queues

__all__ = ["Tasks"]

logger = logging.getLogger(__name__)


class Tasks:
    """The throttled tasks of one app.

    Args:
        policy: the limits of each task that has some, by the task's name.
        dedups: the run-once options of each singleton, by the task's name.
        settings: the settings of the app.
        sites: the sites of the worker.

        Attributes:
            names: the names of the tasks, by their codes in the store.
            sites: as given.
    """

    def __init__(
        self, policy: Mapping[str, Policy], dedups: Mapping[str, Dedup], settings: Settings, sites: Sites
    ) -> None:
        self.sites = sites
        self._policies, self._dedups, self._settings = policy, dedups, settings
        limits_of_tasks = limits_by_task(policy, dedups)
        self._codes = {name: code_of(name, limits) for name, limits in limits_of_tasks.items()}
        self.names = TaskNames(limits_of_tasks)
        self._plain = {name for name, each in policy.items() if not each.paced}

    def run_of(self, request: Any, epoch: int, queues: Queues | None) -> Run:
        """Return the run of a request, with the content of its message.

        Raises:
            Exception: the message cannot be used, see `content_of`.
        """
        name = request.task.name
        policy, dedup = self._policies.get(name), self._dedups.get(name)
        # If throttling is off, the gate is only there for tasks that are still parked.
        if (policy is None and dedup is None) or not self._settings.enabled:
            return self.unread(request, epoch)
        content = content_of(request, policy, dedup, self.sites)
        queue = queues.queue_of(request.message) if queues is not None else ""
        return Run(
            request, content, epoch=epoch, queue=queue, group=self.group_of(request.task), code=self._codes[name]
        )

    @staticmethod
    def unread(request: Any, epoch: int) -> Run:
        """Return the run of a request of which nothing else is read: its task is not throttled, or cannot run."""
        return Run(request, Content(stored_id(request.id)), epoch=epoch)

    def group_of(self, task: Any) -> str:
        """Return the group of a task's limits."""
        policy = self._policies.get(task.name)
        return self._settings.group_of(policy.group if policy is not None else None)

    def plan_of(self, context: Any, task: Any) -> LockPlan | None:
        """Return the lock plan of a call, None if its task may run any number of times, or the call has none."""
        dedup = self._dedups.get(task.name)
        try:
            return None if dedup is None else plan_of(context, task, dedup)
        except Exception as error:  # noqa: BLE001 - the user's own functions raise anything
            logger.debug("Task %s has no lock: %r", task.name, error)
            return None

    def is_paced(self, run: Run) -> bool:
        """Return whether one of the run's limits has a rate."""
        policy = self._policies.get(run.request.task.name)
        return policy is not None and policy.paced

    def is_plain(self, run: Run) -> bool:
        """Return whether a permit may pass to or from the run before the store has the new holder.

        Only numbers of permits limit such a run: no rate, and no identity lock. The broker has no message of it while
        it runs, because another worker could get that message.
        """
        task = run.request.task
        return task.name in self._plain and bool(run.needs.text) and not run.lock and not task.acks_late

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
        return limits_of(each for each in self._policies.values() if self._settings.group_of(each.group) == group)
