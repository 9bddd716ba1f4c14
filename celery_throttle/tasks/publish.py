"""Checks before a task is published: the identity lock of a task that runs once, and ``max_parked``.

These checks save work; the guarantee is the worker's gate, which checks again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery import current_task, states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.result import EagerResult
from celery.utils import uuid
from celery.utils.saferepr import saferepr
from celery.utils.time import maybe_iso8601

from celery_throttle.clients import store_client
from celery_throttle.core.dedup import carried_plan
from celery_throttle.errors import DuplicateTask, LimitExceeded, ResultLost, StoreUnavailable
from celery_throttle.settings import throttles
from celery_throttle.signals import DuplicateDropped, duplicate_dropped
from celery_throttle.store.calls import CLAIMED_FOR
from celery_throttle.store.identity_locks import CLAIMED, LOST, OURS, REPLACED, TAKEN, read_claimed
from celery_throttle.tasks.registry import policies_of
from celery_throttle.tasks.result_backends import answers_caller_only, check_result_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_throttle.clients import StoreClient
    from celery_throttle.core.arguments import TaskCall
    from celery_throttle.core.dedup import Dedup, LockPlan

__all__ = ["HEADER", "check_max_parked", "is_again", "publish", "skipped"]

logger = logging.getLogger(__name__)

#: The header of a message with the claim that its publisher made.
HEADER = "throttle"

#: Seconds between claims of a lock whose first has just ended; a worker reports an end within a few milliseconds.
_UNTIL_FREE = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1)

#: In place of the store's answer to a claim: the call has made none.
_UNCLAIMED = -1


def check_max_parked(task: Any, call: TaskCall, options: dict[str, Any]) -> None:
    """Refuse a call if as many tasks are parked as may wait.

    Raises:
        LimitExceeded: a limit of the task is that crowded.
    """
    policy = policies_of(task.app).get(str(task.name))
    if policy is None or not policy.crowds or not throttles(task.app):
        return
    if is_again(options):
        return  # a retry: this check passed before
    values = policy.carried((options.get("headers") or {}).get(HEADER))
    if values is None:
        values = policy.values(call)
    client = store_client(task.app, policy.group)
    for bucket, most in policy.most_parked(values):
        try:
            parked = client.ask_if_up(client.store.crowd(bucket.text))
        except StoreUnavailable as error:
            _log_unchecked(client, task.name, error)
            return
        if parked >= most:
            raise LimitExceeded(str(task.name), str(bucket), parked, most)


def publish(
    task: Any,
    client: StoreClient,
    dedup: Dedup,
    call: TaskCall,
    options: dict[str, Any],
    send: Callable[..., Any],
) -> Any:
    """Publish a task that runs once, or return the `AsyncResult` of the task that has its lock.

    Args:
        task: the task.
        client: the store client of the task's group.
        dedup: the task's options, with those of this call.
        call: the call.
        options: all other arguments of ``apply_async``.
        send: publishes the call with the options that it is given.

    Raises:
        DuplicateTask: another call has the lock, and ``on_conflict="raise"``.
        ConfigurationError: the arguments cannot be compared, or a duplicate could not get the result of the first.
    """
    wanted = options.get("task_id")
    task_id = options["task_id"] = wanted or uuid()
    carried = _carried_on(options, dedup)
    if carried is None:
        check_result_backend(task, dedup, ignores_result=_ignores_result(task, options))
    plan = carried or dedup.plan(call)
    dedup = plan.dedup  # a retry has the options of its first call
    awaited = _is_awaited(wanted, options, dedup)
    if awaited and dedup.on_conflict == "skip":
        # If this task were skipped, here or by a worker, the rest of its canvas would wait for ever.
        dedup = replace(dedup, on_conflict="return_existing")
    least = _least(task, dedup, options)
    try:  # from here on, since a signal may come right after the store has made the claim
        if carried and dedup.lock_until == "started":
            answer, other, claim = _UNCLAIMED, "", plan.claim  # the task has begun, and needs no lock any more
        else:
            answer, other, claim = _claim(task, client, plan, task_id, least, awaited=awaited)
        first = ""
        if answer in (TAKEN, LOST):
            _report_duplicate(task, task_id, other, dedup)
            if not awaited:
                return _instead(task, call, other, dedup, options, is_lost=answer == LOST)
            if dedup.on_conflict != "raise":
                first = other
        plan = replace(plan, dedup=dedup, claim=claim, first=first)
        _add_header(options, plan.header(task_id, client.store.keys.group))
        result = send(options)
    except DuplicateTask:
        raise
    except BaseException:
        _give_up(task, client, plan, task_id)
        raise
    _confirm(task, client, plan, task_id, least, answer)
    if answer == REPLACED and other:
        task.app.control.revoke(other)
    return result


def _add_header(options: dict[str, Any], header: dict[str, object]) -> None:
    headers = options.get("headers") or {}
    before = headers.get(HEADER)
    options["headers"] = {**headers, HEADER: {**(before if isinstance(before, dict) else {}), **header}}
    options["headers"].pop("fencing_token", None)


def _carried_on(options: dict[str, Any], dedup: Dedup) -> LockPlan | None:
    """Return the plan in the header of a retry, which keeps its lock also with other arguments, else None."""
    header = (options.get("headers") or {}).get(HEADER)
    if not isinstance(header, dict):
        return None
    return carried_plan(header, options["task_id"], dedup) if is_again(options) else None


def is_again(options: Mapping[str, Any]) -> bool:
    """Return whether a call is a retry, published by its own task, or by its worker after the process was lost."""
    request = getattr(current_task, "request", None)
    return bool(options.get("retries")) or (request is not None and request.id == options["task_id"] is not None)


def _claim(
    task: Any, client: StoreClient, plan: LockPlan, task_id: str, least: float, *, awaited: bool
) -> tuple[int, str, str]:
    """Claim the lock; if its first has just ended, again until its worker has freed the lock, for a moment."""
    answer, other, claim = _claim_once(task, client, plan, task_id, least, awaited=awaited)
    first, may_end = other, answer == TAKEN and not awaited
    for pause in _UNTIL_FREE if may_end and _has_ended(task, first, plan.dedup) else ():
        time.sleep(pause)
        answer, other, claim = _claim_once(task, client, plan, task_id, least, awaited=False)
        if answer != TAKEN or other != first:
            break
    return answer, other, claim


def _claim_once(
    task: Any, client: StoreClient, plan: LockPlan, task_id: str, least: float, *, awaited: bool
) -> tuple[int, str, str]:
    # A call that raises DuplicateTask does not wait for an outcome.
    asks = awaited and plan.dedup.on_conflict != "raise"
    try:
        return read_claimed(client.ask_if_up(client.store.claim(task_id, plan.spec, least, awaited=asks)))
    except StoreUnavailable as error:
        _log_unchecked(client, task.name, error)
        return _UNCLAIMED, "", plan.claim


def _has_ended(task: Any, first: str, dedup: Dedup) -> bool:
    """Return whether the task that has the lock has its result stored, so that its worker frees the lock in a moment.

    A lock with ``remember`` stays after a success, and one until ``expires`` in any case.
    """
    if dedup.lock_until == "expires" or answers_caller_only(task.backend):
        return False
    try:
        state = task.AsyncResult(first).state
    except Exception as error:  # noqa: BLE001 - each backend has errors of its own
        logger.debug("celery_throttle: the state of %s[%s] cannot be read: %r", task.name, first, error)
        return False
    return state in states.READY_STATES and not (dedup.remember and state == states.SUCCESS)


def _log_unchecked(client: StoreClient, task_name: str, error: StoreUnavailable) -> None:
    """Log once in an outage that tasks are published without a check in the store."""
    if client.breaker.to_be_logged():
        logger.warning(
            "celery_throttle: %s and others are published unchecked until the store answers; workers check them: %s",
            task_name, error,
        )  # fmt: skip


def _confirm(task: Any, client: StoreClient, plan: LockPlan, task_id: str, least: float, answer: int) -> None:
    """Let a claim last, because the message was sent. No failure may reach the caller, whose task will run."""
    is_retry = answer == OURS
    if answer not in (CLAIMED, OURS, REPLACED) or (is_retry and plan.dedup.lock_until == "expires"):
        return  # nothing was claimed; an expiry counts from the first call
    try:
        client.post_if_up(client.store.sent(plan.identity, task_id, plan.claim, least, is_retry=is_retry))
    except StoreUnavailable as error:
        if client.breaker.to_be_logged():
            logger.warning(
                "celery_throttle: the lock of %s[%s] may end before a worker has the task, so a duplicate may be "
                "published, and workers drop it; so it is with others until the store answers: %s",
                task.name, task_id, error,
            )  # fmt: skip


def _give_up(task: Any, client: StoreClient, plan: LockPlan, task_id: str) -> None:
    """End the claim of a call that was not published now, so that a caller that tries again does not wait for it."""
    try:
        client.ask_if_up(client.store.give_up(plan.identity, task_id, plan.first))
    except StoreUnavailable as error:
        logger.warning(
            "celery_throttle: %s[%s] was not published, and its lock ends in %d s: %s",
            task.name, task_id, CLAIMED_FOR, error,
        )  # fmt: skip


def _least(task: Any, dedup: Dedup, options: dict[str, Any]) -> float:
    """Return the seconds that the lock has to last: the task may wait for its ETA, and until it expires."""
    eta = options.get("countdown") or _seconds_until(task.app, options.get("eta"))
    least = float(dedup.lock_ttl + eta)
    if dedup.lock_until == "expires":
        return least
    return max(least, _seconds_until(task.app, options.get("expires") or task.expires))


def _seconds_until(app: Any, when: Any) -> float:
    if isinstance(when, (int, float)):
        return max(float(when), 0.0)
    when = maybe_iso8601(when)
    if not isinstance(when, datetime):
        return 0.0
    aware = when if when.tzinfo else when.replace(tzinfo=app.timezone)
    return max((aware - datetime.now(timezone.utc)).total_seconds(), 0.0)


def _is_awaited(wanted: str | None, options: dict[str, Any], dedup: Dedup) -> bool:
    """Return whether a caller or a canvas waits for the outcome of this task id, so that a worker has to store one."""
    canvas = any(options.get(name) for name in ("group_id", "chord", "chain", "link", "link_error"))
    if wanted and dedup.on_conflict in ("raise", "skip"):
        # A canvas chooses its task ids in advance. The only mark of a chain's last task is that a task publishes it.
        request = getattr(current_task, "request", None)
        return canvas or is_again(options) or (request is not None and not request.called_directly)
    return canvas or bool(wanted)


def _instead(task: Any, call: TaskCall, other: str, dedup: Dedup, options: dict[str, Any], *, is_lost: bool) -> Any:
    task_id = options["task_id"]
    if dedup.on_conflict == "raise":
        raise DuplicateTask(task.name, other)
    if dedup.on_conflict == "skip":
        # Not IGNORED, which is never ready for Celery, so that callers would wait for ever.
        why = skipped(task.name, other)
        if not answers_caller_only(task.backend):  # else the result returned here is enough
            keeps = not _ignores_result(task, options)
            task.backend.mark_as_revoked(task_id, why, request=_request_of(call, options), store_result=keeps)
        return EagerResult(task_id, TaskRevokedError(why), states.REVOKED, name=task.name)
    if is_lost:
        return EagerResult(other, ResultLost(str(task.name), other), states.FAILURE, name=task.name)
    return task.AsyncResult(other)


def _request_of(call: TaskCall, options: Mapping[str, Any]) -> Any:
    """Return the request of a call that is not published, for the columns of an extended result."""
    about = {name: options[name] for name in ("argsrepr", "kwargsrepr") if options.get(name)}
    reprs = {"argsrepr": saferepr(call.args), "kwargsrepr": saferepr(call.kwargs)}
    return Context(reprs | about, task=call.task_name, id=options["task_id"], args=call.args, kwargs=call.kwargs)


def _ignores_result(task: Any, options: Mapping[str, Any]) -> bool:
    return bool(options.get("ignore_result", task.ignore_result))


def skipped(task_name: str, first: str) -> str:
    """Return the reason in the result of a duplicate that ``on_conflict="skip"`` has skipped."""
    return f"skipped: {DuplicateTask(task_name, first)}"


def _report_duplicate(task: Any, task_id: str, other: str, dedup: Dedup) -> None:
    logger.info("Task %s[%s] is a duplicate of %s: %s", task.name, task_id, other, dedup.on_conflict)
    duplicate_dropped.send(task.name, event=DuplicateDropped(task_id, task.name, other, dedup.on_conflict))
    if task.app.conf.task_send_sent_event:
        with task.app.events.default_dispatcher() as events:
            # A group of our own, because monitors read each event that begins with "task-" as a state of the task.
            events.send("throttle-duplicate", uuid=task_id, existing=other, name=task.name, verdict=dedup.on_conflict)
