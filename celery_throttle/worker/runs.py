"""One delivery of one task on its way through the gate."""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.core.dedup import fenced
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.policy import NOTHING
from celery_throttle.store.exchange import Arrival, Delivery, Succession
from celery_throttle.tasks.publish import HEADER
from celery_throttle.worker.lock_plans import header_of

if TYPE_CHECKING:
    from celery_throttle.core.policy import Needs

__all__ = ["UNDECIDED", "WHY", "Permit", "Run", "State"]

#: More than any task has retries: what `replace` sends begins to count them anew.
_REPLACED = 1 << 20


class State(Enum):
    """Where a run is. It occupies a slot of the pool while it is ``ASKING`` or ``RUNNING``."""

    WAITING = auto()  #: for a slot; the store knows nothing of it
    ASKING = auto()  #: has a slot, and the store is asked for its permits
    UNSURE = auto()  #: the same, but the connection was lost during the call; it has no slot
    PARKING = auto()  #: the store is told to set it aside
    MAYBE_PARKED = auto()  #: the same, but the connection was lost during the call
    STORE_AWAY = auto()  #: the store is out of reach, and has not been asked
    STORE_REFUSES = auto()  #: the store refuses calls (it is full, say)
    BACKEND_AWAY = auto()  #: the result backend is out of reach
    CROWDED = auto()  #: as many are parked as may be
    SAVING = auto()  #: parked; the broker keeps its message until that is safe
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
    State.SAVING: "not safe yet",
}


class Permit:
    """What the store counts as held here, and who runs with it.

    Attributes:
        told: the holder, as the store knows it.
        run: who runs with it now; another one than the store knows if it was passed on; None when nobody does.
        result: of the run that the store knows, once it has ended.
        lost: whether the store said that its lease was lost.
        goes_back: whether its run was told to slow down, so that a call says that it is not held any more.
        idle_since: when nobody had it any more, on the clock of ``time.monotonic``.
    """

    __slots__ = ("goes_back", "idle_since", "lost", "result", "run", "told")

    def __init__(self, run: Run) -> None:
        self.told = run.arrival
        self.run: Run | None = run
        self.result: Result | None = None
        self.lost = self.goes_back = False
        self.idle_since = 0.0

    def spare(self, result: Result) -> None:
        """A run has ended with it, and nobody has it now."""
        if self.run is not None and self.run.nonce == self.told.nonce:
            self.result = result
        self.run, self.idle_since = None, monotonic()

    def pass_to(self, run: Run) -> None:
        """Another one runs with it."""
        self.run = run

    def succession(self) -> Succession | None:
        """Return what the store has to hear if it was passed on; from then on the store knows who has it now."""
        if self.run is None or self.result is None:
            return None
        said = Succession(self.told.task, self.told.nonce, self.result, self.run.arrival, self.told.attempt)
        self.told, self.result = said.to, None
        return said

    def go_back(self) -> None:
        """A call will say that its run goes back in line."""
        self.goes_back = True

    def renewed(self, *, lost: bool) -> None:
        """The store has said whether its lease goes on."""
        self.lost = lost


class Run:
    """A request, and what the gate knows of it.

    Attributes:
        request: Celery's request.
        came: when it came here, on the clock of ``time.monotonic``.
        code: which task it is, as the store keeps it.
        epoch: the broker connection that delivered it, counted.
        queue: that it was taken from.
        group: of its limits.
        needs: what it takes of its limits.
        lock: what it does with its identity lock, as the store wants it; "" if it needs none.
        nonce: names this delivery as a holder.
        stored: whether the store keeps the message, because it was parked and resumed.
        state: see `State`.
        permit: what it holds; None if nothing, or not yet.
        held_since: when it got its permit, on the clock of ``time.monotonic``.
        job: what the pool made of it.
        keeps: whether the broker keeps its message until what is parked is safe.
        asks: whether it asks for its permits also where there is a line, since a full store cannot park it.
        told_begun: whether the store was told that it has begun, before it did.
        requeue: whether the task was rejected to be delivered again.
        refusals: how often it could not be parked, because as many wait as may.
        waited: how many seconds it waited in line.
        parcel: its message as it is parked; b"" until it is.
    """

    __slots__ = (
        "asks",
        "came",
        "code",
        "epoch",
        "group",
        "held_since",
        "job",
        "keeps",
        "lock",
        "needs",
        "nonce",
        "parcel",
        "permit",
        "queue",
        "refusals",
        "request",
        "requeue",
        "state",
        "stored",
        "told_begun",
        "waited",
    )

    def __init__(
        self,
        request: Any,
        *,
        epoch: int,
        queue: str = "",
        group: str = "",
        needs: Needs = NOTHING,
        nonce: str = "",
        code: str = "",
        stored: bool = False,
    ) -> None:
        self.request, self.epoch, self.queue, self.group = request, epoch, queue, group
        self.needs, self.nonce, self.code, self.stored = needs, nonce, code, stored
        self.came = monotonic()
        self.lock = ""
        self.state = State.WAITING
        self.permit: Permit | None = None
        self.held_since = 0.0
        self.job: Any = None
        self.asks = self.requeue = self.keeps = self.told_begun = False
        self.refusals = 0
        self.waited = 0.0
        self.parcel = b""

    @property
    def guarded(self) -> bool:
        """Whether it needs the store's word to run."""
        return bool(self.needs.text) or bool(self.lock)

    @property
    def attempt(self) -> int:
        """Which message of this task id it is; tells a retry, or what `replace` sent, from a second delivery."""
        sent = self.request.request_dict
        return int(sent.get("replaced_task_nesting") or 0) * _REPLACED + int(sent.get("retries") or 0)

    @property
    def arrival(self) -> Arrival:
        """What the store has to know of it."""
        return Arrival(
            self.request.id,
            self.needs.text,
            self.queue,
            self.attempt,
            self.lock,
            self.nonce,
            self.parcel,
            self.needs.turn,
            self.needs.wait_ms,
            unacked=self.keeps and self.at_broker,
            code=self.code,
        )

    def parked_at(self, now: float) -> Arrival:
        """Return the same of one that is to be parked: with how long ago it came."""
        return self.arrival._replace(age=now - self.came)

    @property
    def delivery(self) -> Delivery:
        """Which delivery it is, in the store."""
        return Delivery(self.request.id, self.attempt, self.nonce)

    @property
    def redelivered(self) -> bool:
        """Whether the broker says that it has delivered the message before."""
        info = self.request.delivery_info or {}
        return bool(info.get("redelivered"))

    def fence(self, token: int) -> None:
        """It has its lock: let the body see the fencing token, and a retry keep the lock, whoever sent the message.

        The token is in the plan, too, should the lock have to be put back.
        """
        self.lock, carried = fenced(self.lock, token)
        about = self.request.request_dict
        about["fencing_token"] = token
        about[HEADER] = {**header_of(self.request), **carried}

    def facts(self, result: Result, *, began: bool, epoch: int) -> Facts:
        """Return the facts of its end, in this epoch."""
        if self.requeue:  # it is to run again, whatever else was said of it
            result = Result.NOTHING
        return Facts(began, self._message(result, epoch), result)

    @property
    def told(self) -> Facts:
        """The facts of its end if it does not run, and something was said of it instead.

        Whoever had the message before and is gone may have parked it with a call that is on its way: that must not run.
        """
        if self.redelivered:
            return Facts(began=False, message=Message.BROKER, result=Result.FAILURE)
        return Facts(began=False, message=Message.NOBODY)

    @property
    def at_broker(self) -> bool:
        """Whether the broker still has the message: Celery only logs it if it cannot be acknowledged."""
        return not self.stored and not self.request.message.acknowledged

    def _message(self, result: Result, epoch: int) -> Message:
        request = self.request
        if self.requeue:
            return Message.TAIL if self.stored else Message.BROKER
        if not request.acknowledged:
            return Message.PLACE if self.stored else Message.BROKER
        # On a connection that is gone it may have been acknowledged too late, whether we have heard of that or not; and
        # whoever had it before and is gone may have parked it with a call that is still on its way. Where nothing came
        # of the run one more does no harm, but nobody may wait for that, since it need not come.
        late = not self.stored and self.epoch != epoch
        comes_again = late or self.at_broker or self.redelivered
        return Message.BROKER if comes_again and result is not Result.NOTHING else Message.NOBODY
