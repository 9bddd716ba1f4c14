"""The numbered calls of one worker to the store of one group: one at a time, each until it is answered.

The store keeps what came of a worker's last call, so a call whose reply was lost is sent again, unchanged, and gets the
same answer: nothing has to be compared or guessed after a lost connection.
"""

from __future__ import annotations

import itertools
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import NoPermissionError, ResponseError

from celery_throttle.core.history import Place
from celery_throttle.core.limits import described
from celery_throttle.errors import StoreUnavailable
from celery_throttle.signals import tell_reclaimed
from celery_throttle.store import replies
from celery_throttle.store.calls import take_rows
from celery_throttle.store.reclaimed import reclaimed_text
from celery_throttle.store.replies import Answer, ParkAnswer
from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.worker.store_side.declaring import declare_in_pages
from celery_throttle.worker.store_side.link import NoAnswer
from celery_throttle.worker.store_side.outbox import MOST_BYTES, Outbox
from celery_throttle.worker.store_side.renewals import judge, renewals
from celery_throttle.worker.store_side.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_throttle.core.task_codes import TaskNames
    from celery_throttle.store.calls import Store
    from celery_throttle.store.replies import Grant, Reply, Withdrawn
    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.held_back.saving import Saving
    from celery_throttle.worker.runs import Permit, Run
    from celery_throttle.worker.store_side.link import Link
    from celery_throttle.worker.store_side.listener import Listener
    from celery_throttle.worker.store_side.outbox import Batch

__all__ = ["Calls", "Decisions"]

logger = logging.getLogger(__name__)

#: Bytes of messages that a call may always have, and how long the longest silence after one may be.
_FEWEST_BYTES, _MOST_PATIENCE = 1 << 16, 16 * TIMEOUT
#: A store that takes so long each time is trusted in the end, or nothing would start at all.
_LATE_MOST = 3


class Decisions(Protocol):
    """What the gate hears."""

    def granted(self, run: Run, fencing_token: int) -> None:
        """It has its permits, and its lock if it needs one."""

    def refused(self, run: Run) -> None:
        """It has to be parked."""

    def parked(self, run: Run) -> None:
        """The store has its message: the broker's can be acknowledged, as soon as that is safe."""

    def has_run(self, run: Run) -> None:
        """The store knows that the task has run: the broker's message can be acknowledged."""

    def saved(self, run: Run) -> None:
        """What was parked is safe, or nobody needs it any more: the broker's message can be acknowledged."""

    def lost(self, run: Run) -> None:
        """The store has lost what was parked, and the broker's message is here still."""

    def keep(self, more: int) -> None:
        """So many messages more are kept unacknowledged, which must not keep others from coming."""

    def crowded(self, run: Run) -> None:
        """It was not parked: as many wait for its limit as may."""

    def sent_back(self, run: Run) -> None:
        """The store has the message of a task that had begun, and its permits."""

    def put_off(self, runs: list[Run], calls: Calls) -> None:
        """The store is there but refused a call, which had no effect: ask again after a while."""

    def resumed(self, grant: Grant, calls: Calls) -> None:
        """A parked task starts here."""

    def withdrawn(self, each: Withdrawn) -> None:
        """A revoked task has left its line."""

    def answered(self, reply: Reply, calls: Calls) -> None:
        """After all of the above, what else a reply said."""

    def hint(self, text: str, calls: Calls) -> None:
        """Somebody says that a queue has something to start, or that a bucket has a line."""

    def store_up(self, calls: Calls) -> None:
        """The store answers (again)."""

    def store_lost(self, error: Exception, calls: Calls) -> None:
        """The connection broke."""

    def store_unreachable(self, error: Exception, calls: Calls) -> None:
        """Connecting failed."""


class Calls:
    """Sends what the gate has to say; all on the loop.

    Args:
        group: the name of the group.
        store: builds the calls.
        worker: names this worker in the store.
        declared: what this worker declares of each limit of the group, by name.
        gate: hears what came of it.
        connect: makes the connections for calls and for hints, given who hears of what they bring.
        names: of the app's tasks, for the log.
        saving: what is parked stays at the broker until it is safe; None if it need not.

    Attributes:
        saving: as given.
        outbox: what is to be said next.
        tally: what is counted, and told now and then.
        queues: the queues whose tasks this worker starts.
        held: the permits that the store counts as held here, by the nonce that it knows.
        number: of the last call.
        offered: slots that the call under way offers to parked tasks.
        hungry: whether there may be something to start, so that the gate looks when it has a slot.
        look_at: when the store said that something may change, on the clock of ``time.monotonic``.
        paused: whether nothing is sent, since the store answers, but refuses.
        freed: runs that ended since the last call and whose bucket has a line.
        lazy_since: when there first was something to say that can wait.
        asked_at: when a call was sent last, on the clock of ``time.monotonic``; None if none was.
        took: how many seconds the last answer took.
        errors: how often the store was lost or never reached, which counts once until it is back, or refused a call.
    """

    def __init__(
        self,
        group: str,
        store: Store,
        worker: str,
        declared: Mapping[str, str],
        gate: Decisions,
        connect: Callable[[Calls], tuple[Link, Listener]],
        names: TaskNames,
        saving: Saving | None = None,
    ) -> None:
        self._names = names
        self.saving = saving
        self.group, self.store, self.worker, self.declared, self._gate = group, store, worker, declared, gate
        self.outbox = Outbox()
        self.tally = Tally()
        self.queues: tuple[str, ...] = ()
        self.held: dict[str, Permit] = {}
        self.number = self.offered = self.freed = 0
        self.hungry = True
        self.paused = False
        self.look_at: float | None = None
        self.lazy_since: float | None = None
        self.asked_at: float | None = None
        self.took: float | None = None
        self.errors = 0
        self._nonces = itertools.count(1)
        self._under_way: tuple[Batch, Call] | None = None
        self._sent = 0  # how often it was sent
        self._late = 0  # how often its reply was too late
        self._most_bytes = MOST_BYTES  # of the messages in a call
        self._slow = False  # whether the last call had large messages, and offered no slots for that
        self._patience = TIMEOUT  # seconds of silence after which a call is sent again
        self._ready = False  # the store knows this worker's limits
        self._unheard = False  # it refused to hear them
        self._birth = ""
        self._away_since: float | None = None  # the connection broke
        self._lost = False  # it was lost, or never reached, which has been counted
        self._mute = False  # the store's user may not publish hints, so none arrive
        self._no_hints = False  # which has been logged, or that it may not receive them
        self._uncounted = False  # the store refused to count, which has been said
        self.link, self._listener = connect(self)

    @property
    def free(self) -> bool:
        """Whether a call can be sent now."""
        return self._open and not self.paused

    @property
    def _open(self) -> bool:
        return self._under_way is None and self._ready and self.link.up

    @property
    def has_to_send(self) -> bool:
        """Whether there may be something to say, and a call can be sent."""
        return self.free and (self.hungry or self.outbox.lazy or self.outbox.urgent)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent or answered."""
        return self._under_way is None and not self.outbox.urgent and not self.outbox.lazy

    @property
    def answered(self) -> bool:
        """Whether no call is under way."""
        return self._under_way is None

    @property
    def hears_hints(self) -> bool:
        """Whether hints come here."""
        return self._listener.subscribed and not self._mute

    def nonce(self) -> str:
        """A new name for one delivery."""
        return f"{self.worker}:{next(self._nonces):x}"

    def send(self, slots: int) -> None:
        """Send what was gathered, with so many slots for parked tasks. Only while `free`."""
        self.number += 1
        # A slot is kept from plain tasks for as long as the call that offers it takes; not in two large calls in a row.
        self._slow = bool(slots) and not self._slow and self.outbox.has_bytes(_FEWEST_BYTES)
        self.hungry = self._slow or (self.hungry and not slots)
        slots = 0 if self._slow else slots
        batch = self.outbox.next_batch(slots, self._most_bytes)
        self.offered, self.freed, self.lazy_since = slots, 0, None
        self._under_way = batch, self._call_of(batch)
        self._sent = self._late = 0
        self._ask()

    def _call_of(self, batch: Batch) -> Call:
        return self.store.exchange(self.worker, self.number, self.queues, batch.said, self._birth)

    def _ask(self) -> None:
        """Send the call under way, or send it again."""
        if self._under_way is not None:
            self.asked_at = monotonic()
            self._sent += 1
            told = self._counts() if self.tally.due(self.asked_at) else []
            self.link.send(self._under_way[1], self._heard, *told, patience=self._patience)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to report, but for requeues that the store refuses."""
        return self._under_way is None and not (self.outbox.reports or self.outbox.lazy or self._requeues)

    @property
    def _requeues(self) -> bool:
        return bool(self.outbox.back) and not self.paused

    def hurry(self) -> None:
        """The worker stops: connect and send now, not after a pause."""
        self.paused = False  # a store that refuses to park still takes what is given back
        self.link.hurry()
        if self.saving is not None:
            self.saving.hurry()

    def keep_back(self) -> list[Run]:
        """Send nobody back in line any more; return those of whom the store has not said that it has them."""
        unheard = self._under_way[0].back if self._under_way is not None else []
        return [*unheard, *self.outbox.forget_back()]

    def leave(self) -> None:
        """Deregister the worker, if nothing is left to report.

        The store then treats its parked messages as acknowledged. A connection that is closed with a reply unread may
        lose what was sent last, so wait for `left`.
        """
        if not self.link.up:
            return
        for call, callback in self._counts():
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
        """Hang up."""
        self.link.close()
        self._listener.close()
        if self.saving is not None:
            self.saving.link.close()

    # -- what the link says ---------------------------------------------------------------------------------------

    def up(self) -> None:
        """The connection stands: say first what the limits are, then go on with the call under way."""
        self._ready = self._unheard = self._mute = False
        away = 0.0 if self._away_since is None else monotonic() - self._away_since + self._patience
        pages = self.store.declarations(self._birth, self.declared.items(), away=away, worker=self.worker)
        declare_in_pages(self.link, pages, self.up, self._declared)

    def broken(self, error: Exception) -> None:
        """The connection broke; what became of the call under way is unknown until it is sent again."""
        self._ready = self._unheard = False
        self._away_since = self._away_since or monotonic()
        self._count_lost()
        self.offered = 0
        self.outbox.unspare()  # by the time the store hears of them their leases may have ended
        # It hears nothing of a server that is frozen or cut off, and the next one may be another.
        self._listener.start_over(error)
        self._gate.store_lost(error, self)

    def hint(self, text: str) -> None:
        """Somebody published a hint."""
        kind, _, birth = text.partition(" ")
        if kind != "birth":
            self._gate.hint(text, self)
        elif birth != self._birth and self._ready and self._under_way is None:  # else the answer tells, or the next one
            self.up()

    def subscribed(self) -> None:
        """Hints begin to arrive; some may have been missed before."""
        self.hungry = True
        if self._no_hints and not self._mute:
            self._no_hints = False
            logger.info("celery_throttle: hints arrive again")

    def no_hints(self, error: Exception | None = None) -> None:
        """The store refused to send hints, or to publish them; all goes on without them."""
        if self._no_hints:
            return
        self._no_hints = True
        fix = "trying again"
        if error is None or isinstance(error, NoPermissionError):
            fix = "give the store's user the right, see the ACL line in docs/howto/redis.md"
        logger.warning(
            "celery_throttle: the store refuses hints (%s), so tasks that others let start wait for up to some "
            "seconds: %s", error or "its user may not publish them", fix,
        )  # fmt: skip

    def unreachable(self, error: Exception) -> None:
        """Connecting failed."""
        self._count_lost()
        self._gate.store_unreachable(error, self)

    def _declared(self, raw: Any) -> None:
        if isinstance(raw, StoreUnavailable):
            return
        if isinstance(raw, Exception):
            # The call under way may have been carried out before: it is sent again once this is answered.
            self._unheard = True
            self._pause(raw, [])
            return
        self._away_since, self._lost = None, False
        known = self._birth
        self._birth, *changed = replies.read(_texts, raw)
        if self._under_way is not None and known != self._birth:  # it was for the data that is lost
            batch, _ = self._under_way
            self._under_way = batch, self._call_of(batch)
        _tell_changes(self.declared, changed)
        self._renew()
        self._ready = True
        self._ask()
        self._gate.store_up(self)

    def _renew(self) -> None:
        """Before anything else is asked: a store that was emptied has to know what is held here."""
        for permits, call in renewals(self.store, self.worker, self.number, self.held.values()):
            self.link.send(call, partial(_renewed, permits))

    def _heard(self, raw: Any) -> None:
        if isinstance(raw, NoAnswer):
            self._was_too_much()
        if isinstance(raw, StoreUnavailable) or self._under_way is None or self.asked_at is None:
            return  # under way still, for all we know
        self.took = monotonic() - self.asked_at
        if self.took < self._patience / 4:
            self._was_little()
        if isinstance(raw, Exception):
            self._refused(raw)
            return
        try:
            reply = replies.exchanged(raw)
        except replies.Overtaken as later:
            self._go_on_after(later)
            return
        if reply is None:  # the store was emptied
            self.up()
            return
        replies.read(self._under_way[0].fits, reply)
        if self.took > self.store.lease / 3 and self._late < _LATE_MOST:
            # This worker was stopped, and what it was granted may have been given to others since.
            self._late += 1
            self._ask()
            return
        (batch, _), self._under_way, self.offered = self._under_way, None, 0
        for each in reply.reclaimed:
            self.tally.add(each.needs, Place.RECLAIMED)
            logger.warning("%s", reclaimed_text(each, self._names))
            tell_reclaimed(each.task, each.needs)
        self._tell(batch, reply)

    def _was_too_much(self) -> None:
        """A call may have had more bytes than the network moves in time: wait for its answer longer, and say less."""
        self._most_bytes = max(self._most_bytes // 2, _FEWEST_BYTES)
        self._patience = min(self._patience * 2, _MOST_PATIENCE)

    def _was_little(self) -> None:
        self._most_bytes = min(self._most_bytes * 2, MOST_BYTES)
        self._patience = max(self._patience / 2, TIMEOUT)

    def _go_on_after(self, later: replies.Overtaken) -> None:
        """What the store keeps of this worker's calls is not what was sent: this one comes after that, whatever it is.

        It may have been carried out before, and does no harm twice: each row names its delivery.
        """
        if self._under_way is None:
            return
        logger.error("celery_throttle: %s, which sent no more than %d: going on after it", later, self.number)
        batch, _ = self._under_way
        self.number = later.number + 1
        self._under_way = batch, self._call_of(batch)
        self._ask()

    def _counts(self) -> list[tuple[Call, Callable[[Any], None]]]:
        """Return the calls that tell what was counted: calls of their own, since a full store refuses them."""
        counts = self.tally.take()
        told: list[tuple[Call, Callable[[Any], None]]] = []
        while counts:
            told.append((self.store.count(take_rows(counts)), self._counted))
        return told

    def _counted(self, raw: Any) -> None:
        if isinstance(raw, ResponseError) and not self._uncounted:
            self._uncounted = True
            logger.warning("celery_throttle: the store keeps no history of this worker's counts: %s", raw)

    def _refused(self, error: Exception) -> None:
        """The store refused a call, which had no effect: out of memory, say, or no primary any more."""
        runs: list[Run] = []
        if self._under_way is not None:
            (batch, _), self._under_way, self.offered = self._under_way, None, 0
            self.outbox.put_back(batch, copied=self._sent > 1)
            runs = batch.asked + batch.parked
        self._pause(error, runs)

    def _pause(self, error: Exception, runs: list[Run]) -> None:
        logger.warning("celery_throttle: the store refused a call: %s", error)
        self._count_error()
        before, self.paused = self.paused, True
        if runs or not before:  # else it is tried again already
            self._gate.put_off(runs, self)

    def _count_lost(self) -> None:
        if not self._lost:
            self._lost = True
            self._count_error()

    def _count_error(self) -> None:
        self.errors += 1
        self.outbox.erred()

    def go_on(self) -> None:
        """The store may not refuse any more."""
        self.paused = False
        if self._unheard and self.link.up:
            self.up()

    def _tell(self, batch: Batch, reply: Reply) -> None:
        """Say what became of each, one by one: an error with one must not keep the others from hearing."""
        gate = self._gate
        hears = {
            ParkAnswer.CROWDED: gate.crowded,
            ParkAnswer.PARKED: gate.parked,
            ParkAnswer.HAS_RUN: gate.has_run,
        }
        for run, answer in zip(batch.asked, reply.asked, strict=True):
            if answer == Answer.MUST_PARK:
                _safely(gate.refused, run)
            elif answer == Answer.KNOWN:
                _safely(gate.parked, run)
            elif answer == Answer.HAS_RUN:
                _safely(gate.has_run, run)
            else:
                _safely(gate.granted, run, answer if answer > max(Answer) else 0)
        for run, answer in zip(batch.parked, reply.parked, strict=True):
            _safely(hears[ParkAnswer(answer)], run)
        for run in batch.back:
            _safely(gate.sent_back, run)
        for grant in reply.grants:
            _safely(gate.resumed, grant, self)
        self._unread(reply)
        for each in reply.withdrawn:
            _safely(gate.withdrawn, each)
        if not reply.hints:
            self._mute = True
            self.no_hints()
        self._gate.answered(reply, self)

    def _unread(self, reply: Reply) -> None:
        for task, why in reply.unread:
            logger.error("celery_throttle: the record of parked task %s cannot be read, it is set aside: %s", task, why)
            self.outbox.unread(task, why)


def _renewed(permits: list[Permit], raw: Any) -> None:
    if not isinstance(raw, Exception):
        judge(permits, replies.read(lambda answers: [int(each) for each in answers[0]], raw))


def _texts(raw: Any) -> list[str]:
    return [each.decode() for each in raw]


def _safely(function: Callable[..., None], *args: Any) -> None:
    try:
        function(*args)
    except Exception:
        logger.exception("celery_throttle: error in %r", function)


def _tell_changes(ours: Mapping[str, str], changed: list[str]) -> None:
    for limit, before in zip(changed[::2], changed[1::2], strict=True):
        logger.warning(
            "celery_throttle: limit %r was declared as %s and is %s from now on, as this worker has it: "
            "if this is no new release, give all workers the same",
            limit, described(before), described(ours[limit]),
        )  # fmt: skip
