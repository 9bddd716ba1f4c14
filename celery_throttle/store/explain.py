"""Explain the state of a task, in plain sentences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.naming import is_outside
from celery_throttle.core.sites import WORKER
from celery_throttle.core.wording import at, listed, one_line, signature, times
from celery_throttle.store.standing import refusals_of
from celery_throttle.store.unreadable import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from celery_throttle.store.audit import Change
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.reading import WaitEnd
    from celery_throttle.store.task_view import TaskView
    from celery_throttle.store.workers import LostRun

__all__ = ["LOCK_STATES", "Explanation", "TaskState", "dropped_before", "explained", "with_lost_run"]

TaskState = Literal[
    "held", "parked", "waiting for its identity lock", "ended without running", "set aside", "lost", "unknown"
]

#: The states of an identity lock, in words.
LOCK_STATES = {
    "queued": "which is queued or parked",
    "running": "which runs",
    "started": "which runs",
    "done": "done",
    "failed": "failed",
}
_VERDICTS = {
    "conclude": "It is a duplicate: its first has ended, and it ends with the same outcome.",
    "duplicate": "It is a duplicate: it fails with DuplicateTask.",
    "skip": "It is a duplicate: it is skipped, and ends in state REVOKED.",
    "replaced": "A newer call took its place: it ends as revoked.",
    "done": "It had succeeded before: it does not run again.",
}


@dataclass(frozen=True)
class Explanation:
    """The state of a task, and the reasons for it.

    Attributes:
        task_id: the id of the task.
        state: ``held`` (the task runs, or is about to), ``parked`` or ``waiting for its identity lock``.
            ``ended without running``: a worker only has to report the end. ``set aside``: the record is unreadable.
            ``lost``: the lease of a singleton has ended, and its run may go on. ``unknown``: no worker has seen the
            task yet, or the task has ended.
        reasons: sentences, the deciding one first.
        task_name: the name of the task, None if it is not known.
        limit: the limit in whose line the task waits, None if the task is in no line.
        key: the value of that limit's key, if it has one.
        place: the place in that line, 1 for the first; None if the task does not wait.
        queue: the queue whose workers can start the task, None if the task was never parked.
        limits: the status of each limit of which the task holds or needs permits.
        starts_in: the estimated seconds until the task starts: by the limit's rate if the rate alone decides, else by
            the present pace of the line. None if the task is in no line, or its line does not move. Also None for the
            line of a key unless a rate alone decides, because starts are not counted by key.
        eta: the time before which the task must not start; None if it has none, or the store lacks its message.
        wait_ends: the time after which the task does not start; None if it may wait for ever, or holds permits.
        wait_ends_by: ``start_deadline`` or ``expires``, whichever ends its wait; None as above.
        worker: the worker that runs the task or reports its end; None if the task waits.
        args: the positional arguments as text, as Celery logs them, cut after 1000 characters; None if the store lacks
            the message. They are not in ``repr()`` or JSON, because arguments may be secrets.
        kwargs: the keyword arguments, in the same form.
    """

    task_id: str
    state: TaskState
    reasons: tuple[str, ...]
    task_name: str | None = None
    limit: str | None = None
    key: str | None = None
    place: int | None = None
    queue: str | None = None
    limits: tuple[LimitStatus, ...] = ()
    starts_in: float | None = None
    eta: datetime | None = None
    wait_ends: datetime | None = None
    wait_ends_by: WaitEnd | None = None
    worker: str | None = None
    args: str | None = field(default=None, repr=False)
    kwargs: str | None = field(default=None, repr=False)

    @property
    def bucket(self) -> Bucket | None:
        """The limit (or its key) in whose line the task waits; as text ``tenant[acme]``."""
        return Bucket(self.limit, self.key) if self.limit is not None else None

    def __str__(self) -> str:
        eta = [f"Its ETA is {at(self.eta)}."] if self.eta else []
        return "\n".join([f"{self.task_name or 'Task'}[{self.task_id}]: {self.state}", *self.reasons, *eta])


def explained(task_id: str, view: TaskView) -> Explanation:
    """Return the explanation of a task, from a view of it."""
    state, reasons = _state(view), tuple(_reasons(task_id, view))
    if state in ("unknown", "set aside"):
        return Explanation(task_id, state, reasons)
    bucket = Bucket.parse(view.line) if state == "parked" and view.line and not view.again else None
    by, end = view.wait_ends if view.wait_ends and view.state == "parked" else (None, None)
    return Explanation(
        task_id,
        state,
        reasons,
        task_name=view.task_name,
        limit=bucket.name if bucket else None,
        key=bucket.key if bucket else None,
        place=1 + sum(each.count for each in view.ahead) if view.state == "parked" else None,
        queue=view.queue or None,
        limits=view.limits,
        eta=view.eta,
        wait_ends=end,
        wait_ends_by=by,
        worker=_worker(view) if view.state == "held" and not view.lent else None,
        args=view.args,
        kwargs=view.kwargs,
    )


def _state(view: TaskView) -> TaskState:
    if view.state == "held":
        return "ended without running" if view.dropped else "held"
    if view.state != "parked":
        return "set aside" if view.aside else "unknown"
    if view.line.startswith(("follow:", "next:")):
        return "waiting for its identity lock"
    return "parked" if view.line or not (view.verdict in _VERDICTS or view.expires_now) else "ended without running"


def _reasons(task_id: str, view: TaskView) -> Iterator[str]:
    state = _state(view)
    if state == "unknown":
        yield (
            "No worker has seen it yet, or it has ended: look at its queue, at its ETA, at the workers of that queue. "
            "It may also be kept by a worker because max_parked tasks are parked already, or not be throttled."
        )
    elif state == "set aside":
        yield (
            f"{reason_of(view.aside, 'It was', 'Its record in the store is')}, so it cannot start, and its line went "
            f"on without it: see ThrottleControl(app).set_aside()."
        )
    elif state == "held":
        yield from _held(view)
    elif state == "waiting for its identity lock":
        yield from _locked(view)
        yield from _unless_late(view)
    elif state == "ended without running":
        expired = f"Its {_wait_end(view, 'was')}: it ends as expired."
        yield f"{_dropped(view)}: it ends as revoked." if view.dropped else _VERDICTS.get(view.verdict, expired)
        if view.state == "held":
            yield f"Worker {_worker(view)} reports that now."
        else:
            yield f"That takes a worker with a free slot that consumes queue {view.queue!r}."
    else:
        yield from _parked(task_id, view)
        yield from _unless_late(view)
    if view.second:
        yield "Another delivery of the same task id waits for this one to end."


def _worker(view: TaskView) -> str:
    return view.nonce.partition(":")[0]


def _dropped(view: TaskView) -> str:
    when = f", at {at(view.dropped_at)}" if view.dropped_at else ""
    return f"It was {one_line(view.dropped)}{when}"


def dropped_before(explanation: Explanation, changes: Iterable[Change]) -> Explanation:
    """Return the explanation of a task that the store no longer has; if one of the changes dropped it, with that."""
    for each in changes:
        if each.action == "drop" and each.task_id == explanation.task_id:
            reason = f"It was dropped by {signature(each.by, each.why)}, at {at(each.at)}: it has ended as revoked."
            return replace(explanation, state="ended without running", reasons=(reason,))
    return explanation


def with_lost_run(explanation: Explanation, runs: Iterable[LostRun]) -> Explanation:
    """Return the explanation, with a run of the task whose lease has ended, if there is one."""
    run = next((each for each in runs if each.task == explanation.task_id), None)
    if run is None:
        return explanation
    if explanation.state != "unknown":
        also = f"It also runs on worker {run.worker}" if run.heard else f"It may also still run on worker {run.worker}"
        return replace(explanation, reasons=(*explanation.reasons, f"{also}, which {run.silence}."))
    reasons = [f"It ran on worker {run.worker}, which {run.silence}."]
    reasons += ["That worker has called since, so the run goes on."] if run.heard else []
    return replace(explanation, state="lost", reasons=(*reasons, _lock_of_lost(run)), worker=run.worker)


def _lock_of_lost(run: LostRun) -> str:
    if run.lock is None:
        return "Its identity lock is free: a second run may have begun, and ended."
    state, task, since, _ = run.lock
    if task == run.task:
        return f"Its identity lock waits for its next delivery, since {at(since)}: then a second run begins."
    return f"Task {task} has its identity lock ({LOCK_STATES[state]}, since {at(since)})."


def _held(view: TaskView) -> Iterator[str]:
    if view.lent:
        yield "The store is being drained: its message is on the way back to its queue."
        return
    holds = ", ".join(map(str, view.needs)) if view.counted and view.needs else "no permit"
    yield f"It runs, or is about to, on worker {_worker(view)}, and holds {holds}."
    if view.lease_left > 0:
        yield f"Its lease ends in {view.lease_left:.0f} s unless its worker renews it."
    else:
        yield (
            f"Its lease ended {-view.lease_left:.0f} s ago, so its worker is lost or cut off from the store; what it "
            f"holds is reclaimed when a worker or beat checks next."
        )


def _locked(view: TaskView) -> Iterator[str]:
    if view.lock is None:
        yield f"Its identity lock is free, and it waits for a worker of queue {view.queue!r} with a free slot."
        return
    state, task, since = view.lock
    until = "runs next" if view.line.startswith("next:") else "waits for its outcome"
    yield f"Task {task} has its identity lock ({LOCK_STATES[state]}, since {at(since)}): it {until}."


def _parked(task_id: str, view: TaskView) -> Iterator[str]:
    if view.settling:
        yield f"The store lost its data: nothing starts for another {view.settling:.1f} s, until holders are back."
    if view.again:
        yield (
            f"It has begun {times(view.deliveries)} without an outcome. It goes back in line after a pause, "
            f"at {at(view.again)}."
        )
        return
    refused = [each.sentence for each in refusals_of(task_id, view)]
    yield from refused
    if len(view.needs) > 1:
        yield f"It needs {listed([str(need) for need in view.needs])} at once, and waits in {_shown(view)}."
    yield from _line(view)
    if view.service:
        yield f"It belongs to a service with another broker, {view.service}: only workers of that broker can start it."
    if not refused and not view.settling:
        before = next((each for each in view.ahead if each.count and not each.passed_over), None)
        if view.lacking:
            tags = f"throttle_tags = {{{view.lacking!r}: ...}}"
            yield f"No live worker has the tag {view.lacking!r}: start one with {tags}."
        elif before is None:
            yield _needs_slot("It", view.queue, view.kind)
        else:
            yield _needs_slot("The first of them", before.queue, view.kind)
    if view.deliveries:
        yield f"It was started {times(view.deliveries)} before, by a worker that was lost or gave it back."


def _unless_late(view: TaskView) -> Iterator[str]:
    if view.wait_ends:
        yield f"Its {_wait_end(view, 'is')}: it does not start after that."


def _wait_end(view: TaskView, verb: str) -> str:
    name, end = view.wait_ends or ("wait", view.now)
    return f"{name} {verb} over at {at(end)}"


def _line(view: TaskView) -> Iterator[str]:
    for each in view.ahead:
        tasks = f"{each.count} task{'s are' if each.count > 1 else ' is'}"
        if each.count and each.passed_over:
            yield f"{tasks} before it, but passed over: no worker with a free slot consumes queue {each.queue!r}."
        elif each.count:
            yield f"{tasks} before it in {_shown(view)}, of queue {each.queue!r}."
    if any(each.passed_over and each.queue == view.queue for each in view.ahead):
        yield (
            f"Its queue {view.queue!r} has been passed over: it was offered a start, and no worker with a free slot "
            f"consumes it."
        )


def _needs_slot(it: str, queue: str, kind: str) -> str:
    if is_outside(queue):
        return f"{it} can start: it is a permit outside of tasks, which the process that waits for it has to take."
    if kind:
        where = "that" if kind == WORKER else f"on a {kind} that"
        return f"{it} waits for a worker with a free slot for queue {queue!r}, {where} has a permit free."
    return f"{it} can start: it waits for a worker with a free slot that consumes queue {queue!r}."


def _shown(view: TaskView) -> str:
    if not view.line:
        return "the line of the tasks that only wait for a slot"
    return f"the line of {Bucket.parse(view.line)}"
