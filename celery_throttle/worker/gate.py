"""The gate: where a task gets its permits and a slot of the pool, or is parked.

Every request of the worker passes here, throttled or not, because the gate has to count the pool's free slots: a
permit may only go to a task that starts now. A plain task just takes its slot. Everything happens on one loop; no call
here waits.
"""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.history import Place
from celery_throttle.worker.acknowledging import Acknowledging
from celery_throttle.worker.admission import Admission
from celery_throttle.worker.blocked import Blocked
from celery_throttle.worker.celery_side.broker import Broker
from celery_throttle.worker.celery_side.revocation import Reserved, Revoked, Withdrawing
from celery_throttle.worker.held_back.backend_away import BackendAway
from celery_throttle.worker.held_back.held_back import HeldBack
from celery_throttle.worker.held_back.outage import Outage
from celery_throttle.worker.held_back.put_off import PutOff
from celery_throttle.worker.reported.notices import Notices
from celery_throttle.worker.reported.signals_and_events import report_parked
from celery_throttle.worker.resuming import Resuming
from celery_throttle.worker.running import Running
from celery_throttle.worker.runs import Permit, State
from celery_throttle.worker.store_side.avoided_queues import AvoidedQueues
from celery_throttle.worker.store_side.closed_buckets import ClosedBuckets
from celery_throttle.worker.store_side.decisions import PAUSE
from celery_throttle.worker.store_side.stray_permits import end_strays
from celery_throttle.worker.store_side.withdrawing import WithdrawingFrom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.core.dedup import LockPlan
    from celery_throttle.core.settings import Settings
    from celery_throttle.store.exchange_reply import Grant, Reply, Withdrawn
    from celery_throttle.worker.celery_side.autoscale import Autoscaling
    from celery_throttle.worker.celery_side.slots import Slots
    from celery_throttle.worker.celery_side.tasks import Tasks
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.calls import Calls
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["LOOK_EVERY", "Gate"]

logger = logging.getLogger(__name__)

#: Seconds between two looks of a worker on its own, when no hint comes.
LOOK_EVERY = 5.0


class Gate:
    """Admits, parks and resumes the requests of one worker.

    Args:
        slots: the slots of Celery's pool.
        tasks: the throttled tasks: their limits and locks.
        settings: the settings of the app.
        loop: the loop that everything happens on.
        timekeeper: calls functions later.
        groups: the names of the groups of limits.
        make_calls: makes the calls of a group, given the group's name, this gate, and the held runs.
        autoscaling: Celery's autoscaler, which learns of parked tasks here.
        log: for lines about a store that is away.

    Attributes:
        groups: the calls of each group.
        held: the runs that wait here.
        running: the runs that the pool has.
        blocked: checks that leases are renewed in time.
    """

    def __init__(
        self,
        slots: Slots,
        tasks: Tasks,
        settings: Settings,
        loop: Loop,
        timekeeper: Timekeeper,
        groups: Iterable[str],
        make_calls: Callable[[str, Gate, HeldBack], Calls],
        autoscaling: Autoscaling,
        log: PacedLog,
    ) -> None:
        self._slots, self._tasks, self._loop, self._timekeeper = slots, tasks, loop, timekeeper
        self._autoscaling = autoscaling
        self._closing = False
        self._broker = broker = Broker(settings.broker_code)
        self._closed = ClosedBuckets()
        self.held = held = HeldBack(loop, timekeeper, broker.prefetch.let_in)
        self._groups = {name: make_calls(name, self, held) for name in groups}
        self.groups = tuple(self._groups.values())
        self._notices = Notices(loop, timekeeper)
        self.blocked = Blocked(slots.name if slots.in_main_process else "", settings.lease)
        free_lock = lambda run: self.never_runs(run.request.task, run.request)  # noqa: E731
        self._backend = backend = BackendAway(held, broker, self._stops, free_lock, log)
        self.running = running = Running(
            slots, tasks, loop, self._groups, self._notices, backend.fail_over, self.blocked, broker, self._closed, held
        )
        start = partial(backend.attempt, running.execute)
        self._outages = {
            name: Outage(name, settings.on_store_error, held, start, backend.fail, log) for name in self._groups
        }
        self._admission = Admission(
            slots, tasks, self._groups, broker, self._closed, held, backend, running, self._outages, loop,
            self._stops,
        )  # fmt: skip
        self._acknowledging = Acknowledging(running, broker, loop, self._groups, held)
        self._avoided = AvoidedQueues(loop, timekeeper, self._serve_queues)
        self._resuming = Resuming(running, broker, loop, timekeeper, self._notices, self._avoided)
        self._revoked, self._reserved, self._withdrawing = Revoked(), Reserved(), Withdrawing(loop, timekeeper)
        self._withdrawing_from = [WithdrawingFrom(calls) for calls in self.groups]
        self._not_parked = PutOff(held, self._notices)
        loop.every_turn(self.tick)

    # -- what Celery calls ---------------------------------------------------------------------------------------

    def arrive(self, request: Any) -> None:
        """Take a request that the consumer would give to the pool."""
        self._loop.call(self._admission.arrive, request)

    def connected(self, consumer: Any) -> None:
        """Serve the consumer's queues: the worker consumes (again), or its queues have changed."""
        self._broker.connected(consumer)
        self._revoked.connected()
        self._admission.timer_ended()
        self._serve_queues()

    def timer_lost(self) -> None:
        """Note that the loop has another hub, with another timer."""
        self._admission.timer_ended()

    def _serve_queues(self) -> None:
        if self._broker.queues is None:
            return
        for calls in self.groups:
            calls.queues = self._avoided.others(self._broker.queues.names)
            calls.hungry = True

    def disconnected(self) -> None:
        """Drop all runs that are not acknowledged, because the broker delivers them again on its next connection."""
        self._broker.disconnected()
        for calls in self.groups:
            calls.outbox.disconnected()
        self._drop_undecided()
        self._admission.timer_ended()
        self.running.discarded()

    def close(self) -> None:
        """Start nothing more; runs in the pool go on, and give their permits back when they end."""
        self._closing = True
        self._notices.close()
        self._drop_undecided(State.SAVING)
        self.running.close()
        for calls in self.groups:
            calls.hurry()

    def flushed(self) -> None:
        """Give back the permits of jobs that the pool dropped before any process began them; the pool stops next."""
        self.running.discarded()

    def finish(self) -> None:
        """Give back all permits after the pool has stopped."""
        self._resuming.finish()
        self.running.finish()
        self._admission.forget()
        for calls in self.groups:
            calls.outbox.unspare()
            calls.hurry()

    def keep_back(self) -> None:
        """End the runs that raised `RateLimited` and that the store has not taken back."""
        for calls in self.groups:
            for run in calls.keep_back():
                self.running.not_sent_back(run)

    def never_runs(self, task: Any, context: Any) -> None:
        """Free the lock of a task that was revoked or has expired."""
        if (plan := self._tasks.plan_of(context, task)) is not None:
            self.free_lock(plan, context.id)

    def free_lock(self, plan: LockPlan, task_id: object) -> None:
        """Free the lock of a task that never runs; ``plan``: with its group."""
        calls = self._groups.get(plan.group or "")
        if calls is not None:
            calls.outbox.never(plan.identity, task_id, plan.first)
        else:
            self._tasks.free_lock(plan, task_id)

    def withdraw_revoked(self) -> None:
        """Take the tasks that were revoked since the last call out of their lines, before their turn comes."""
        if self._broker.requests is None:  # no result can be stored for them
            return
        new = self._revoked.new()
        for each in self._withdrawing_from:
            each.withdraw(new)
        decided = {run.request for run in (*self.running.runs, *self._admission.decided)}
        self._reserved.end(
            new,
            self._broker.requests.consumer,
            lambda request: self._tasks.runs_once(request) and request not in decided,
        )

    def tend_pool(self) -> None:
        """Look for lost children while a run has a permit that could be freed."""
        if self._closing:  # the pool replaces no child, or its owner is asleep
            self.running.lost()
        elif any(run.permit is not None for run in self.running.runs):
            self._slots.tend()

    def look_soon(self) -> None:
        """Ask the store soon for parked tasks that can start, and end permits that no run here has any more."""
        known = {*self.running.runs, *self._admission.granted, *self._resuming.waiting}
        for calls in self.groups:
            calls.look()
            end_strays(calls, known, self._broker.epoch)

    def _stops(self) -> bool:
        if not self._closing and self._slots.gone:
            self.close()
        return self._closing

    def _drop_undecided(self, *but: State) -> None:
        for calls in self.groups:
            calls.outbox.forget_arrivals()
        self.held.forget(*but)  # a call under way may still grant these; `granted` gives that back
        self._admission.forget()

    def tick(self) -> None:
        """Hand out free slots, send the calls that are due, and let the pool go on."""
        try:
            for calls in self.groups:
                calls.keep_declared()
            if self._stops():
                self._send_rest()
            else:
                self._admission.hand_out()
        finally:
            if not self._loop.threaded:
                self._slots.pass_on(self._loop.hub)

    def _send_rest(self) -> None:
        for calls in self.groups:
            if calls.free and not calls.idle:
                calls.send(0)

    # -- decisions of the store ----------------------------------------------------------------------------------

    def granted(self, run: Run, fencing_token: int) -> None:
        """See `Decisions`."""
        had_slot = run.state is State.ASKING
        if not self.held.release(run, State.GRANTED):
            # Its broker connection was lost during the call, so it is delivered again; or it runs without a permit.
            facts = run.facts(Result.NOTHING, began=False, epoch=self._broker.epoch)
            self._groups[run.group].outbox.ended(run.delivery, facts)
            return
        if fencing_token:
            run.fence(fencing_token)
        self.running.hold_permit(run, Permit(run))
        (self._admission.start if had_slot else self._admission.start_later)(run)

    def refused(self, run: Run) -> None:
        """See `Decisions`."""
        if run in self.held:
            self._admission.park(run)

    def broke(self, run: Run, error: Exception) -> None:
        """See `Decisions`."""
        if run.permit is not None:
            self.running.cannot_start(run, error)
            return
        if not self.held.release(run, State.GONE):  # the store has granted it permits
            facts = run.facts(Result.NOTHING, began=False, epoch=self._broker.epoch)
            self._groups[run.group].outbox.ended(run.delivery, facts)
        self._backend.fail(run, error)

    def broke_off(self, grant: Grant, group: str, error: Exception) -> None:
        """See `Decisions`."""
        self._groups[group].held.pop(grant.nonce, None)
        if self._broker.requests is not None:
            self._resuming.fail(grant, self._groups[group], self._broker.requests, error)

    def parked(self, run: Run) -> None:
        """See `Decisions`."""
        self._acknowledging.parked(run)
        calls = self._groups[run.group]
        calls.tally.add(run.needs.text, Place.PARKED)
        self._notices.parked(run, calls)
        report_parked(run)

    def is_copy(self, run: Run, *, has_run: bool) -> None:
        """See `Decisions`."""
        self._notices.dropped(run.request, has_run=has_run)
        (self._acknowledging.has_run if has_run else self._acknowledging.parked)(run)

    def saved(self, run: Run) -> None:
        """See `Decisions`."""
        self._acknowledging.saved(run)

    def lost(self, run: Run) -> None:
        """See `Decisions`."""
        if not self._stops():
            logger.warning("Task %s[%s] was parked, and the store has lost it: again", run.request.name, run.request.id)
            self._admission.line_up(run)

    def not_parked(self, run: Run, why: State) -> None:
        """See `Decisions`."""
        if why is State.CROWDED and not run.refusals:
            self._groups[run.group].tally.add(run.needs.text, Place.REFUSED)
        if run in self.held:
            self._not_parked.hold(run, why, self._admission.line_up)

    def resumed(self, grant: Grant, group: str) -> None:
        """See `Decisions`."""
        calls = self._groups[group]
        requests = self._broker.requests
        if self._closing or self._broker.queues is None or requests is None:
            calls.outbox.ended(grant.delivery, Facts(began=False, message=Message.PLACE))
        elif (run := self._resuming.run_of(grant, calls, requests)) is not None:
            self._autoscaling.resumed(run.request)
            self._admission.resume(run)

    def sent_back(self, run: Run) -> None:
        """See `Decisions`."""
        self.running.forget_permit(run)
        self._acknowledging.parked(run)

    def withdrawn(self, each: Withdrawn) -> None:
        """See `Decisions`."""
        if self._broker.requests is not None:
            self._withdrawing.report(each, self._broker.requests)

    def put_off(self, runs: list[Run]) -> None:
        """See `Decisions`."""
        again = [run for run in runs if run in self.held]
        for run in again:
            run.asks = True
        self.held.pause(again, State.STORE_REFUSES, PAUSE, self.held.wait_first)

    def answered(self, reply: Reply, group: str) -> None:
        """See `Decisions`."""
        calls = self._groups[group]
        # After the rows of this reply: the runs refused in it came before the runs that wait here for a slot.
        self._closed.open(reply.open)
        for bucket in reply.closed:
            self._admission.close(bucket, calls)
        if reply.more:
            self._more_waits(calls)
        self._look_after(reply.wait, calls)

    def _look_after(self, seconds: float, calls: Calls) -> None:
        at = monotonic() + seconds
        if seconds and (calls.look_at is None or at < calls.look_at or calls.look_at < monotonic()):
            calls.look_at = at
            self._timekeeper.later(seconds, lambda: self._loop.post(self._look_now, at, calls))

    def hint(self, text: str, group: str) -> None:
        """See `Decisions`."""
        calls = self._groups[group]
        kind, _, name = text.partition(" ")
        if (kind == "ready" and name in calls.queues) or (kind == "site" and self._tasks.sites.has(name)):
            self._more_waits(calls)
        elif kind == "line":
            self._admission.close(self._tasks.sites.bind(name), calls)
        elif kind == "due" and name.isdecimal():  # any client may publish
            self._look_after(max(int(name[:9]), 1) / 1000, calls)

    def _more_waits(self, calls: Calls) -> None:
        calls.hungry = True
        if self.running.free_slots <= 0 and not self._stops():
            self._autoscaling.grow()

    def _look_now(self, at: float, calls: Calls) -> None:
        if calls.look_at != at:
            return
        calls.look_at = None
        calls.hungry = True
        # Maybe no other worker asks now: by this call the store sends a hint to workers with a free slot.
        calls.hint_due = self.running.free_slots <= 0

    def store_lost(self, error: Exception, group: str) -> None:
        """See `Decisions`."""
        self._outages[group].begin(error, set(self._groups[group].outbox.forget_arrivals()))

    def store_unreachable(self, error: Exception, group: str) -> None:
        """See `Decisions`."""
        self._outages[group].unreachable(error)

    def store_up(self, group: str) -> None:
        """See `Decisions`."""
        self._outages[group].over()
        self._groups[group].look()
