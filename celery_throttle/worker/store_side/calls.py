"""The numbered calls of one worker to the store of one group: one at a time, each until it is answered.

The store keeps the answer to a worker's last call. So a call whose reply was lost is sent again, unchanged, and gets
the same answer: after a lost connection there is nothing to compare or to guess.
"""

from __future__ import annotations

import itertools
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.core.history import Place
from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.exchange_reply import Overtaken, read_exchanged
from celery_throttle.store.reading import read
from celery_throttle.worker.store_side.decisions import PAUSE, blame, deliver, set_aside
from celery_throttle.worker.store_side.declaring import Declaring, declare_in_pages
from celery_throttle.worker.store_side.link import NoAnswer
from celery_throttle.worker.store_side.outbox import Outbox, others, returning
from celery_throttle.worker.store_side.patience import FEWEST_BYTES, Patience
from celery_throttle.worker.store_side.renewals import renewals
from celery_throttle.worker.store_side.sifting import Sifting
from celery_throttle.worker.store_side.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.calls import Store
    from celery_throttle.store.exchange_reply import Reply
    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.held_back.saving import Saving
    from celery_throttle.worker.reported.lease_reports import LeaseReports
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.runs import Permit, Run
    from celery_throttle.worker.store_side.decisions import Decisions
    from celery_throttle.worker.store_side.declaring import Code
    from celery_throttle.worker.store_side.link import Link
    from celery_throttle.worker.store_side.listener import Listener
    from celery_throttle.worker.store_side.outbox import Batch

__all__ = ["Calls"]

logger = logging.getLogger(__name__)

#: How often a late answer is asked for again. After that it is used, or with a slow store nothing would start.
_LATE_MOST = 3


class Calls:
    """Sends the rows of the gate to the store, and the answers to the gate; all on the loop.

    Args:
        group: the name of the group.
        store: builds the calls.
        worker: the name of this worker in the store.
        code: the tasks of this worker, with their limits.
        gate: takes the store's decisions.
        connect: makes the connections for calls and for hints, given this object for their callbacks.
        lease_reports: reports leases that are lost or have ended.
        log: for lines about a store that refuses.
        saving: holds parked runs until their copies are safe; None if they are not waited for.

    Attributes:
        lease_reports, saving: as given.
        outbox: the rows of the next call.
        sifting: the rows of refused calls, which go first.
        tally: counts, which are sent now and then.
        queues: the queues whose tasks this worker starts.
        held: the permits that the store counts as held here, by the nonce in the store.
        birth: when the store's data began, as of the last declaration; "" before the first.
        number: the number of the last call.
        offered: the slots that the call under way offers to parked tasks.
        hungry: whether there may be parked tasks to start, so that the gate asks when it has a slot.
        hint_due: whether the gate asks also without a slot, so that the store sends the hints that are due.
        look_at: when a parked task may become ready by time alone, on the clock of ``time.monotonic``.
        freed: the number of runs that ended since the last call and whose bucket has a line.
        lazy_since: when the first row came that can wait.
        asked_at: when a call was sent last, on the clock of ``time.monotonic``; None before the first.
        took: the seconds that the last answer took.
        errors: the number of refused calls and of outages: a lost or unreachable store counts once until it is back.
    """

    def __init__(
        self,
        group: str,
        store: Store,
        worker: str,
        code: Code,
        gate: Decisions,
        connect: Callable[[Calls], tuple[Link, Listener]],
        lease_reports: LeaseReports,
        log: PacedLog,
        saving: Saving | None = None,
    ) -> None:
        self.lease_reports, self._log, self.saving = lease_reports, log, saving
        self.group, self.worker, self._gate, self._declaring = group, worker, gate, Declaring(code, group, store)
        self.store = self._declaring.store
        self.outbox, self.sifting, self.tally = Outbox(), Sifting(), Tally()
        self.queues: tuple[str, ...] = ()
        self.held: dict[str, Permit] = {}
        self.number = self.offered = self.freed = self.errors = 0
        self._read = 0  # the number of the last call whose answer was read
        self.hungry, self.hint_due, self._slow = True, False, False  # slow: it had large messages, and no slots
        self._paused_until = 0.0  # after the store refused a call
        self.look_at: float | None = None
        self.lazy_since: float | None = None
        self.asked_at: float | None = None
        self.took: float | None = None
        self._nonces, self._patience = itertools.count(1), Patience()
        self._under_way: tuple[Batch, Call] | None = None
        self._sent = self._late = 0  # how often the call under way was sent, and how often its reply came too late
        self._ready = self._declaration_refused = False  # whether the store has the limits, or refused them
        self.birth, self._lost = "", False  # lost: the present outage was counted
        self._away_since: float | None = None  # when the connection broke
        self.link, self._listener = connect(self)

    @property
    def paused(self) -> bool:
        """Whether no calls are sent for a while, because the store refused one."""
        return monotonic() < self._paused_until

    @property
    def free(self) -> bool:
        """Whether a call can be sent now."""
        return self._open and not self.paused

    @property
    def _open(self) -> bool:
        return self._under_way is None and self._ready and self.link.up and self._declaring.is_current

    @property
    def has_to_send(self) -> bool:
        """Whether there may be rows to send or tasks to ask for, and a call can be sent."""
        return self.free and (self.hungry or self.outbox.lazy or self.outbox.urgent or self.sifting.pending)

    @property
    def idle(self) -> bool:
        """Whether no row waits to be sent, and no call to be answered."""
        return self.answered and not (self.outbox.urgent or self.outbox.lazy or self.sifting.pending)

    @property
    def answered(self) -> bool:
        """Whether no call is under way."""
        return self._under_way is None

    @property
    def gets_hints(self) -> bool:
        """Whether hints arrive."""
        return self._listener.subscribed

    def nonce(self) -> str:
        """Return a new name for one delivery."""
        return f"{self.worker}:{next(self._nonces):x}"

    def send(self, slots: int) -> None:
        """Send the rows of the outbox, and offer some slots to parked tasks. Only while `free`."""
        self.number, self.hint_due = self.number + 1, False
        # An offered slot is kept from plain tasks until the answer. So a large call, which takes long, offers none, but
        # the call after it does.
        self._slow = bool(slots) and not self._slow and self.outbox.has_bytes(FEWEST_BYTES)
        self.hungry = self._slow or (self.hungry and not slots)
        slots = 0 if self._slow else slots
        if self.sifting.pending:
            batch, self.hungry = self.sifting.next(), self.hungry or slots > 0
        else:
            batch = self.outbox.next_batch(slots, self._patience.most_bytes)
            self.freed, self.lazy_since = 0, None
        try:
            call = self._call_of(batch)
        except Exception:
            logger.exception("celery_throttle: a call cannot be written")
            self.sifting.unwritten(batch, self._call_of, partial(blame, self._gate))
            return
        self.offered, self._under_way = batch.exchange.slots, (batch, call)
        self._sent = self._late = 0
        self._ask()

    def _call_of(self, batch: Batch) -> Call:
        return self.store.exchange(self.worker, self.number, self.queues, batch.exchange, self.birth, self._read)

    def _ask(self) -> None:
        """Send the call under way, or send it again."""
        if self._under_way is not None:
            self.asked_at = monotonic()
            self._sent += 1
            counted = self.tally.calls_or_none(self.store) if self.tally.due(self.asked_at) else []
            self.link.send(self._under_way[1], self._answered, *counted, patience=self._patience.seconds)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to report, except for rows that the store refuses."""
        refusable = not self.paused and (self.sifting.pending or bool(returning(self.outbox.arrived)))
        return self._under_way is None and not (self.outbox.reports or self.outbox.lazy or refusable)

    def hurry(self) -> None:
        """Connect and send now, not after a pause, because the worker stops."""
        self._paused_until = 0.0  # a store that refuses to park still takes permits back
        self.link.connect()
        if self.saving is not None:
            self.saving.hurry()

    def keep_back(self) -> list[Run]:
        """Stop requeueing; return the runs whose requeue the store has not confirmed."""
        unconfirmed, _ = self.returning, self.outbox.forget_returning()
        return unconfirmed

    @property
    def returning(self) -> list[Run]:
        """The runs that go back in line and keep their permits until the store has confirmed that."""
        under_way = self._under_way[0].arrived if self._under_way is not None else []
        return returning([*under_way, *self.sifting.arrived, *self.outbox.arrived])

    def leave(self) -> None:
        """Deregister the worker, if nothing is left to report.

        The store then treats its parked messages as acknowledged. A connection that is closed with a reply unread may
        lose the bytes that were sent last, so wait for `left`.
        """
        if not self.link.up:
            return
        for call, callback in self.tally.calls_to_send(self.store):
            self.link.send(call, callback)
        if self.idle:
            self.link.send(self.store.leave(self.worker), lambda raw: None)

    @property
    def left(self) -> bool:
        """Whether the store has answered everything, or there is no connection to it."""
        return self.link.answered or not self.link.up

    def connect(self) -> None:
        """Connect in the background."""
        self.link.connect()
        self._listener.connect()
        if self.saving is not None:
            self.saving.link.connect()

    def close(self) -> None:
        """Close the connections."""
        self.link.close()
        self._listener.close()
        if self.saving is not None:
            self.saving.link.close()

    # -- callbacks of the link and the listener ------------------------------------------------------------------

    def up(self) -> None:
        """Declare the limits on a new connection, before the call under way is sent again."""
        self._ready = self._declaration_refused = False
        self._listener.published(allowed=True)
        away = 0.0 if self._away_since is None else monotonic() - self._away_since + self._patience.seconds
        pages = self._declaring.calls(self.birth, away, self.worker)
        self.store = self._declaring.store
        declare_in_pages(self.link, pages, self.up, self._declared)

    def tend(self) -> None:
        """Go on after a refused declaration, or after an error kept an answer from having its effect."""
        if self._declaration_refused and not self.paused:
            self.up()
        elif not self.paused and (self._under_way is not None or not self._ready):
            self.link.start_over(StoreUnavailable("an answer of the store had no effect"), slowly=True)

    def keep_declared(self) -> None:
        """Declare the limits again if the worker has learned of tasks, before any of these asks for a permit."""
        if self._ready and self.answered and not self._declaring.is_current:
            self.up()

    def broken(self, error: Exception) -> None:
        """Handle a lost connection; the outcome of the call under way is unknown until the call is sent again."""
        self._ready = self._declaration_refused = False
        self._away_since, self.offered = self._away_since or monotonic(), 0
        self._count_lost()
        self.outbox.unspare()  # their leases may end before the next call
        # The listener does not notice a server that is frozen or cut off, and the next server may be another one.
        self._listener.start_over(error)
        self._gate.store_lost(error, self.group)

    def hint(self, text: str) -> None:
        """Take a hint that a worker or a script has published."""
        kind, _, birth = text.partition(" ")
        if kind != "birth":
            self._gate.hint(text, self.group)
        elif birth != self.birth and self._ready and self._under_way is None:  # else an answer brings it
            self.up()

    def look(self) -> None:
        """Ask for parked tasks soon: hints begin to arrive, and some may have been missed before."""
        self.hungry = True

    def unreachable(self, error: Exception) -> None:
        """Count an outage if connecting failed, and pass the error to the gate."""
        self._count_lost()
        self._gate.store_unreachable(error, self.group)

    def _declared(self, raw: Any) -> None:
        if isinstance(raw, StoreUnavailable):
            return
        if isinstance(raw, Exception):
            # The call under way may have been carried out before, so it stays and is sent again after the declaration.
            self._declaration_refused = True
            self._pause(raw, [])
            return
        self._away_since, self._lost = None, False
        known = self.birth
        self.birth = self._declaring.read(raw)
        if self._under_way is not None and known != self.birth:  # the call was for the data that is lost
            self._under_way = self._under_way[0], self._call_of(self._under_way[0])
        self._renew()
        self._ready = True
        self._ask()
        self._gate.store_up(self.group)

    def _renew(self) -> None:
        """Renew all permits before other calls, because a store that was emptied has to get them back first."""
        for renewal in renewals(self.store, self.worker, self.number, self.held.values(), self.birth):
            self.link.send(renewal.call, partial(renewal.judge, self.held, self.lease_reports.lost))

    def _answered(self, raw: Any) -> None:
        if isinstance(raw, NoAnswer):
            self._patience.no_answer()
        if isinstance(raw, StoreUnavailable) or self._under_way is None or self.asked_at is None:
            return  # still under way, as far as this worker can see
        self.took = monotonic() - self.asked_at
        self._patience.answered(self.took)
        if isinstance(raw, Exception):
            self._refused(raw)
            return
        try:
            reply = read_exchanged(raw)
        except Overtaken as later:
            self._go_on_after(later)
            return
        if reply is None:  # the store was emptied
            self.up()
            return
        read(self._under_way[0].fits, reply)
        if self.took > self.store.lease / 3 and self._late < _LATE_MOST:
            # This worker was stopped, and its grants may have been given to others since.
            self._late += 1
            self._ask()
            return
        (batch, _), self._under_way, self.offered = self._under_way, None, 0
        self._read = self.number
        self._take_reply(batch, reply)

    def _take_reply(self, batch: Batch, reply: Reply) -> None:
        for each in reply.reclaimed:
            self.tally.add(each.needs, Place.RECLAIMED)
            self.lease_reports.reclaimed(each)
        deliver(self._gate, self.group, batch, reply)
        set_aside(self.outbox, reply)
        if not reply.hints:
            self._listener.published(allowed=False)
        if self.sifting.pending and (found := self.sifting.accepted()):
            blame(self._gate, *found)
        self._gate.answered(reply, self.group)

    def _go_on_after(self, later: Overtaken) -> None:
        """Send the call under way again with a new number, because the store has a larger one than was sent.

        The call may have been carried out before, and does no harm twice, because each row names its delivery.
        """
        if self._under_way is None:
            return
        self._log.error("celery_throttle: %s, which sent no more than %d: going on after it", later, self.number)
        self.number, (batch, _) = later.number + 1, self._under_way
        self._under_way = batch, self._call_of(batch)
        self._ask()

    def _refused(self, error: Exception) -> None:
        """Handle a call that the store refused: it had no effect. The store is full, say, or no primary any more."""
        runs: list[Run] = []
        if self._under_way is not None:
            (batch, _), self._under_way, self.offered = self._under_way, None, 0
            if self.sifting.refused(batch, error):
                self._log.warning("celery_throttle: the store refused a call, looking for the task: %s", error)
                self._count_error()
                return
            self.outbox.put_back(batch, copied=self._sent > 1)
            runs = others(batch.arrived)
        self._pause(error, runs)

    def _pause(self, error: Exception, runs: list[Run]) -> None:
        self._log.warning("celery_throttle: the store refused a call: %s", error)
        self._count_error()
        if runs or not self.paused:  # else the present pause goes on
            self._paused_until = monotonic() + PAUSE
            self._gate.put_off(runs)

    def _count_lost(self) -> None:
        if not self._lost:
            self._lost = True
            self._count_error()

    def _count_error(self) -> None:
        self.errors += 1
        self.outbox.erred()
