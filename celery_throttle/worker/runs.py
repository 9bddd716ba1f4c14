"""One delivery of one task on its way through the gate."""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.core.dedup import fenced
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.policy import NOTHING
from celery_throttle.store.exchange import Arrival, Delivery, DeliveryChange
from celery_throttle.tasks.publish import HEADER
from celery_throttle.worker.lock_plans import header_of

if TYPE_CHECKING:
    from celery_throttle.core.dedup import LockPlan
    from celery_throttle.core.policy import Needs

__all__ = ["UNDECIDED", "WHY", "Content", "Permit", "Run", "State"]


class State(Enum):
    """The state of a run; an ``ASKING`` or ``RUNNING`` run occupies a slot of the pool."""

    WAITING = auto()  #: waits for a slot; the store has no record of it
    ASKING = auto()  #: has a slot, and the store is asked for its permits
    UNSURE = auto()  #: the same, but the connection was lost during the call; it has no slot
    PARKING = auto()  #: a call to the store parks it
    MAYBE_PARKED = auto()  #: the same, but the connection was lost during the call
    STORE_AWAY = auto()  #: the store is out of reach, and no call has the run
    STORE_REFUSES = auto()  #: the store refuses calls (it is full, say)
    BACKEND_AWAY = auto()  #: the result backend is out of reach
    CROWDED = auto()  #: as many tasks are parked as ``max_parked`` allows
    ID_IN_USE = auto()  #: another publication of its task id goes first
    SAVING = auto()  #: parked; the broker keeps its message until the parked copy is safe
    GRANTED = auto()  #: has its permits, and waits for a slot
    RUNNING = auto()  #: given to the pool
    GONE = auto()  #: ended, parked, or left to the broker


#: A run that is held in such a state waits for the store's answer.
UNDECIDED = (State.ASKING, State.UNSURE, State.PARKING, State.MAYBE_PARKED)
#: The other reasons why a run is held, as an operator reads them.
WHY = {
    State.STORE_AWAY: "store away",
    State.STORE_REFUSES: "store refuses",
    State.BACKEND_AWAY: "result backend away",
    State.CROWDED: "max_parked",
    State.ID_IN_USE: "task id in use",
    State.SAVING: "not safe yet",
}


class Content(NamedTuple):
    """The content of a message, checked: see `celery_side/parsing.py`, which makes it.

    Attributes:
        id: the id of the task, as the store has it.
        attempt: a number that is larger for a retry, or a message sent by `replace`, and the same for a second
            delivery.
        needs: the permits and starts that the task takes of its limits.
        plan: the plan for its identity lock; None if it needs none, or the store's record has it.
        redelivered: whether the broker marked the message as delivered before.
        had_eta: whether it has an ETA, for which it was in this worker.
        rounds: how often it has gone back in line.
        publication: names the message among those of its task id, and is the same for a retry; "" if unknown.
        expires_ms: when it expires, in milliseconds since it came here; None if it does not.
    """

    id: str
    attempt: int = 0
    needs: Needs = NOTHING
    plan: LockPlan | None = None
    redelivered: bool = False
    had_eta: bool = False
    rounds: int = 0
    publication: str = ""
    expires_ms: int | None = None


class Permit:
    """The permits that the store counts as held by one holder here, and the run that has them.

    Attributes:
        holder: the holder in the store.
        run: the run that has the permit now: another one than the holder's if it was passed on; None when idle.
        result: the result of the holder's run, once that run has ended.
        lost: whether the last renewal found the lease lost.
        is_new: whether the permit was passed on to its holder after the last renewal.
        goes_back: whether its run raised `RateLimited`, so that a call puts the task back in line.
        lapsed: whether it is renewed no more, because its run has ended and the main process hangs.
        idle_since: when it became idle, on the clock of ``time.monotonic``.
    """

    __slots__ = ("goes_back", "holder", "idle_since", "is_new", "lapsed", "lost", "result", "run")

    def __init__(self, run: Run) -> None:
        self.holder = run.arrival
        self.run: Run | None = run
        self.result: Result | None = None
        self.lost = self.goes_back = self.is_new = self.lapsed = False
        self.idle_since = 0.0

    def spare(self, result: Result) -> None:
        """Make the permit idle after a run has ended."""
        if self.run is not None and self.run.nonce == self.holder.nonce:
            self.result = result
        self.run, self.idle_since = None, monotonic()

    def pass_to(self, run: Run) -> None:
        """Give the permit to another run."""
        self.run = run

    def passed(self) -> DeliveryChange | None:
        """Return the row that gives the store the new holder if the permit was passed on, else None.

        Afterwards ``holder`` is the new one.
        """
        if self.run is None or self.result is None:
            return None
        before, to = self.holder, self.run.arrival
        facts = Facts(began=True, message=Message.NOBODY, result=self.result)
        self.holder, self.result, self.is_new = to, None, True
        return DeliveryChange("passed", *before.delivery, facts, to=to)

    def go_back(self) -> None:
        """Note that a call puts the run's task back in line."""
        self.goes_back = True

    def lapse(self) -> None:
        """Note that the permit is renewed no more."""
        self.lapsed = True

    def renewed(self, *, lost: bool) -> None:
        """Store whether a renewal found the lease lost."""
        self.lost, self.is_new = lost, False


class Run:
    """A request, and its state at the gate.

    Attributes:
        request: Celery's request.
        content: the content of its message.
        id: the id of its task, as the store has it.
        came: when it came here, on the clock of ``time.monotonic``.
        code: the short code of its task in the store.
        epoch: the number of the broker connection that delivered it.
        queue: the queue that it was taken from.
        group: the group of its limits.
        needs: those of the content; once the run is to be parked, with its expiry.
        lock: its lock plan as text for the store; "" if it needs no identity lock.
        nonce: names this delivery as a holder.
        stored: whether the store keeps the message, because it was parked and resumed.
        state: see `State`.
        permit: the permit that it holds; None before, and if it holds none.
        held_since: when it got its permit, on the clock of ``time.monotonic``.
        body_ended: whether the pool has its outcome, which the loop may not know yet.
        job: the pool's job for it.
        keeps: whether the broker keeps its message until the parked copy is safe.
        asks: whether it asks for its permits even if there is a line, because a full store cannot park it.
        reported_begun: whether its begin was reported to the store before the body began.
        requeue: whether the task was rejected to be delivered again.
        refusals: how often it could not be parked, because of ``max_parked``.
        waited: how many seconds it waited in line.
        parcel: its message, if it is to be parked or goes back in line; else b"".
        pause: if it goes back in line: for how many seconds nothing starts, and on which buckets, as needs.
    """

    __slots__ = (
        "_end_seen_at",
        "asks",
        "body_ended",
        "came",
        "code",
        "content",
        "epoch",
        "group",
        "held_since",
        "id",
        "job",
        "keeps",
        "lock",
        "needs",
        "nonce",
        "parcel",
        "pause",
        "permit",
        "queue",
        "refusals",
        "reported_begun",
        "request",
        "requeue",
        "state",
        "stored",
        "waited",
    )

    def __init__(
        self,
        request: Any,
        content: Content,
        *,
        epoch: int,
        queue: str = "",
        group: str = "",
        nonce: str = "",
        code: str = "",
        stored: bool = False,
    ) -> None:
        self.request, self.content, self.epoch, self.queue, self.group = request, content, epoch, queue, group
        self.id, self.needs, self.nonce, self.code, self.stored = content.id, content.needs, nonce, code, stored
        self.came = monotonic()
        self.lock = content.plan.spec if content.plan is not None else ""
        self.state = State.WAITING
        self.permit: Permit | None = None
        self.held_since = 0.0
        self.job: Any = None
        self.asks = self.requeue = self.keeps = self.reported_begun = self.body_ended = False
        self._end_seen_at: float | None = None
        self.refusals = 0
        self.waited = 0.0
        self.parcel = b""
        self.pause: tuple[float, str] | None = None

    @property
    def guarded(self) -> bool:
        """Whether it needs permits or an identity lock to run."""
        return bool(self.needs.text) or bool(self.lock)

    @property
    def late(self) -> bool:
        """Whether it has waited here for longer than its ``start_deadline``."""
        return self.needs.wait_ms is not None and (monotonic() - self.came) * 1000 > self.needs.wait_ms

    @property
    def arrival(self) -> Arrival:
        """The run as a row for the store."""
        return Arrival(
            self.id,
            self.needs.text,
            self.queue,
            self.content.attempt,
            self.lock,
            self.nonce,
            self.parcel,
            self.needs.turn,
            self.needs.wait_ms,
            unacked=self.keeps and self.at_broker,
            code=self.code,
            pause=self.pause,
            publication=self.content.publication,
            expires_ms=self.content.expires_ms,
        )

    def arrived_at(self, now: float) -> Arrival:
        """Return the row of a run that asks, is to be parked or goes back; in the last two with the seconds here."""
        return self.arrival._replace(age=now - self.came) if self.parcel else self.arrival

    @property
    def delivery(self) -> Delivery:
        """The delivery of this run, as the store names it."""
        return Delivery(self.id, self.content.attempt, self.nonce, self.content.publication)

    def end_unread_for(self, *, ended: bool) -> float:
        """Note whether its body was seen to have ended; return for how many seconds that was so each time."""
        if not ended:
            self._end_seen_at = None
            return 0.0
        if self._end_seen_at is None:
            self._end_seen_at = monotonic()
        return monotonic() - self._end_seen_at

    def fence(self, token: int) -> None:
        """Give the body its fencing token, and the header a plan by which a retry keeps the lock.

        The token is in the plan, too, in case the lock has to be put back in an emptied store.
        """
        self.lock, carried = fenced(self.lock, token, self.request.id, self.group)
        about = self.request.request_dict
        about["fencing_token"] = token
        about[HEADER] = {**header_of(self.request), **carried}

    def facts(self, result: Result, *, began: bool, epoch: int) -> Facts:
        """Return the facts of its end, in this epoch."""
        if self.requeue:  # the task is to run again, so no other result counts
            result = Result.NOTHING
        return Facts(began, self._message(result, epoch), result)

    @property
    def facts_unrun(self) -> Facts:
        """The facts of its end if the task does not run, after its result was stored.

        A worker that had the message before, and is gone, may have parked it with a call that is still on its way. That
        copy must not run.
        """
        if self.content.redelivered:
            return Facts(began=False, message=Message.BROKER, result=Result.FAILURE)
        return Facts(began=False, message=Message.NOBODY)

    @property
    def at_broker(self) -> bool:
        """Whether the broker still has the message; if an acknowledgement fails Celery only logs that."""
        return not self.stored and not self.request.message.acknowledged

    @property
    def being_acknowledged(self) -> bool:
        """Whether Celery acknowledges the message later: in the next turn of the hub, or when its consumer pauses."""
        return self.at_broker and bool(self.request.acknowledged)

    def _message(self, result: Result, epoch: int) -> Message:
        request = self.request
        if self.requeue:
            return Message.TAIL if self.stored else Message.BROKER
        if not request.acknowledged:
            # Celery may fail to acknowledge a body that begins (a `shadow` that is no text): its result counts.
            settled = self.stored and result is not Result.NOTHING
            return Message.NOBODY if settled else Message.PLACE if self.stored else Message.BROKER
        # On a lost connection the acknowledgement may have come too late, even before this worker noticed the loss.
        # And a worker that had the message before, and is gone, may have parked it with a call that is still on its
        # way. After a run without a result one more run does no harm; but that delivery need not come, so nothing may
        # wait for it.
        late = not self.stored and self.epoch != epoch
        comes_again = late or self.content.redelivered
        return Message.BROKER if comes_again and result is not Result.NOTHING else Message.NOBODY
