"""The rows that a worker sends to the store of one group with its next call."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.core.facts import Facts, Message
from celery_throttle.store.exchange import Back, Ended, Exchange, Succession
from celery_throttle.store.portions import MOST_ROWS, Portion, take_messages, take_rows

if TYPE_CHECKING:
    from celery_throttle.core.facts import Result
    from celery_throttle.store.exchange import Delivery
    from celery_throttle.store.exchange_reply import Reply
    from celery_throttle.worker.runs import Permit, Run

__all__ = ["MOST_BYTES", "Batch", "Outbox"]

#: The most bytes of messages in one call: a slow network moves these while another worker's hint is still of use.
MOST_BYTES = 1 << 20

#: Seconds after which a permit that no run has taken goes back with the next call: in a busy worker the next run comes
#: sooner. And seconds after which no run may take it, because the worker was stopped, and the lease may be over.
_IDLE, _STALE = 0.005, 0.2


class Batch:
    """One call: its rows, and the runs that its answers are for."""

    def __init__(self, exchange: Exchange, asked: list[Run], parked: list[Run], back: list[Run]) -> None:
        self.exchange, self.asked, self.parked, self.back = exchange, asked, parked, back

    def fits(self, reply: Reply) -> None:
        """Raise ValueError unless the reply has an answer for each of its rows."""
        if len(reply.asked) != len(self.asked) or len(reply.parked) != len(self.parked):
            raise ValueError("it has not as many answers as the call has rows")


class Outbox:
    """Gathers the rows of the next call.

    Permits that pass from run to run here are reported with the calls that are due anyway: see `spare`.

    Attributes:
        asked: runs that want to start.
        parked: runs to be parked, with their parcels.
        back: runs that go back in line with their messages, each with the seconds to pause, and the buckets to pause,
            as needs.
    """

    def __init__(self) -> None:
        self._ended: list[Ended] = []
        self._began: list[tuple[str, str]] = []
        self._acknowledging: list[Run] = []
        self._acknowledged: list[Delivery] = []  # since the last call
        self._unacked: list[Delivery] = []
        self._acked: list[Delivery] = []
        self._revoked: list[str] = []
        self._never: list[tuple[str, str, str]] = []
        self._unread: list[tuple[str, str]] = []
        self.asked: list[Run] = []
        self.parked: list[Run] = []
        self.back: list[tuple[Run, float, str]] = []
        self._errors = 0
        self._refused = False  # whether the last call was refused
        self._spare: dict[str, list[Permit]] = {}
        self._passed: dict[Permit, None] = {}
        self._successions: list[Succession] = []

    @property
    def urgent(self) -> bool:
        """Whether there are rows that have to be sent at once."""
        return bool(self.reports or self.asked or self.parked or self.back)

    @property
    def reports(self) -> bool:
        """Whether there are urgent rows that a full store takes, too."""
        return bool(self._ended or self._not_acknowledged() or self._revoked or self._never or self._unread)

    @property
    def lazy(self) -> bool:
        """Whether there are rows that can wait for a moment."""
        return bool(self._spare or self._passed or self._began or self._successions or self._acked)

    def ended(self, task: str, nonce: str, facts: Facts, attempt: int = 0, needs: str = "") -> None:
        """Report that a run has ended, and that the permits of ``needs`` are free."""
        self._ended.append(Ended(task, nonce, facts, attempt, needs))

    def began(self, task: str, nonce: str) -> None:
        """Report that a task begins which is acknowledged early, so that the store deletes its message."""
        self._began.append((task, nonce))

    def acknowledging(self, run: Run) -> None:
        """Note a run that was parked with the last call, and whose broker message is being acknowledged.

        The next call confirms all these acknowledgements to the store, but for the runs in its ``unacked`` rows.
        Whether the broker has a message is read when that call is built: there may be no connection to the broker.
        """
        self._acknowledging.append(run)

    def _not_acknowledged(self) -> list[Delivery]:
        for run in self._acknowledging:
            if not run.at_broker:
                self._acknowledged.append(run.delivery)
            elif not run.keeps:
                self._unacked.append(run.delivery)
        self._acknowledging.clear()
        return self._unacked

    def disconnected(self) -> None:
        """Report messages that were acknowledged since the last call as unacknowledged, because the connection is gone.

        The broker may have put them back before the acknowledgement came, even if Celery has seen no error. Messages
        that an earlier call confirmed count as acknowledged.
        """
        self._unacked += [run.delivery for run in self._acknowledging if not run.keeps] + self._acknowledged
        self._acknowledging.clear()
        self._acknowledged.clear()

    def acked(self, delivery: Delivery) -> None:
        """Report that the broker's message of a task that was parked as unacknowledged is acknowledged now."""
        self._acked.append(delivery)

    def revoked(self, tasks: list[str]) -> None:
        """Have revoked tasks leave their lines."""
        self._revoked += tasks

    def never(self, identity: str, task: str, first: str) -> None:
        """Report that a task will never run: its lock is free, and it does not wait for the outcome of its first."""
        self._never.append((identity, task, first))

    def unread(self, task: str, why: str) -> None:
        """Have the store set a granted task aside, because its record cannot be read."""
        self._unread.append((task, why))

    def erred(self) -> None:
        """Count a loss of the store, or a refused call; the count is sent with the next call."""
        self._errors += 1

    def spare(self, permit: Permit, result: Result) -> None:
        """Keep the permit of a run that has ended for the next run with the same needs."""
        permit.spare(result)
        self._spare.setdefault(permit.holder.needs, []).append(permit)

    def take(self, run: Run) -> Permit | None:
        """Pass an idle permit on to a run; return None if there is none."""
        spare = self._spare.get(run.needs.text)
        if not spare or monotonic() - spare[-1].idle_since > _STALE:
            return None
        permit = spare.pop()
        if not spare:
            del self._spare[run.needs.text]
        permit.pass_to(run)
        self._passed[permit] = None
        return permit

    def unspare(self, idle: float = 0.0) -> None:
        """Give back the permits that have been idle for ``idle`` seconds."""
        before = monotonic() - idle
        spare, self._spare = self._spare, {}
        for permit in [permit for several in spare.values() for permit in several]:
            if permit.idle_since > before:
                self._spare.setdefault(permit.holder.needs, []).append(permit)
            elif permit.result is not None:
                holder = permit.holder
                self._passed.pop(permit, None)
                facts = Facts(True, Message.NOBODY, permit.result)
                self._ended.append(Ended(holder.task, holder.nonce, facts, holder.attempt, holder.needs))

    def forget_arrivals(self) -> list[Run]:
        """Drop the runs that want to start or to be parked, and return them."""
        dropped = self.asked + self.parked
        self.asked, self.parked = [], []
        return dropped

    def forget_back(self) -> list[Run]:
        """Drop the runs that raised `RateLimited`, and return them."""
        dropped, self.back = [run for run, _, _ in self.back], []
        return dropped

    def next_batch(self, slots: int, most_bytes: int = MOST_BYTES) -> Batch:
        """Take out the rows that fit in one call, with ``most_bytes`` of messages, or with one larger message."""
        self.unspare(_IDLE)
        for permit in list(self._passed):
            self.settle(permit)
        # A full store refuses a call with rows that need memory. After that the other rows go first, alone.
        refused, self._refused = self._refused, False
        passed = take_rows(self._successions)
        known = not self._successions  # else the rest waits for a call: the store may not have its holders yet
        portion = self._portion(len(passed))
        asked = take_rows(self.asked, portion.of(self.asked))
        back = self._take_back(portion, most_bytes) if known and not refused else []
        left = most_bytes - sum(len(run.parcel) for run, _, _ in back)
        parked = [] if refused or left < 0 else self._take_parked(portion, left)
        errors, self._errors = self._errors, 0
        clock = monotonic()  # one timestamp for all, so that a stalled worker keeps the order of its tasks
        # All of them, without a bound: the store takes the others as acknowledged.
        unacked, self._unacked = self._not_acknowledged(), []
        self._acknowledged.clear()
        ended = take_rows(self._ended, portion.of(self._ended)) if known else []
        over = {row.nonce for row in ended}  # a run that has ended needs no `began` row
        began = [row for row in take_rows(self._began) if row[1] not in over] if self._began else []
        exchange = Exchange(
            slots=slots,
            clock=clock,
            errors=errors,
            ended=ended,
            passed=passed,
            began=began,
            unacked=unacked,
            acked=take_rows(self._acked),
            revoked=take_rows(self._revoked, portion.of(self._revoked)),
            never=take_rows(self._never, portion.of(self._never)),
            unread=take_rows(self._unread),
            asked=[run.arrival for run in asked],
            parked=[run.parked_at(clock) for run in parked],
            back=[Back(run.arrival, pause, about) for run, pause, about in back],
        )
        return Batch(exchange, asked, parked, [run for run, _, _ in back])

    def has_bytes(self, fewest: int) -> bool:
        """Return whether the next batch may have ``fewest`` bytes of messages or more, which take long to send."""
        waiting = (*(run for run, _, _ in self.back[:MOST_ROWS]), *self.parked[:MOST_ROWS])
        return sum(len(run.parcel) for run in waiting) >= fewest

    def _take_back(self, portion: Portion, most_bytes: int) -> list[tuple[Run, float, str]]:
        return take_messages(self.back, portion.of(self.back), most_bytes, lambda row: len(row[0].parcel))

    def _take_parked(self, portion: Portion, most_bytes: int) -> list[Run]:
        return take_messages(self.parked, portion.of(self.parked), most_bytes, lambda run: len(run.parcel))

    def _portion(self, passed: int) -> Portion:
        asked = [run.needs.text for run in self.asked[:MOST_ROWS]]
        parked = [run.needs.text for run in self.parked[:MOST_ROWS]]
        back = [run.needs.text for run, _, _ in self.back[:MOST_ROWS]]
        ended = [row.needs for row in self._ended[:MOST_ROWS]]
        others = ("" for _ in (*self._revoked[:MOST_ROWS], *self._never[:MOST_ROWS]))
        return Portion(asked, parked, back, ended, others, others=passed)

    def settle(self, permit: Permit) -> None:
        """Report that a permit was passed on, if it was, before any row about its new holder."""
        if permit not in self._passed:
            return
        del self._passed[permit]
        if (exchange := permit.succession()) is not None:
            self._successions.append(exchange)

    def put_back(self, batch: Batch, *, copied: bool) -> None:
        """Requeue the rows of a refused call that must not be lost: all but the runs that asked or were to be parked.

        ``copied``: the call was sent more than once, so an earlier copy may still be carried out. Its messages were not
        acknowledged, so they are reported as unacknowledged.
        """
        exchange, self._refused = batch.exchange, True
        if copied:
            self._unacked += [run.delivery for run in batch.parked + batch.back]
        self._ended[:0], self._began[:0], self._unacked[:0] = exchange.ended, exchange.began, exchange.unacked
        self._revoked[:0], self._never[:0], self._successions[:0] = exchange.revoked, exchange.never, exchange.passed
        self._acked[:0], self._unread[:0] = exchange.acked, exchange.unread
        self._errors += exchange.errors
        self.back[:0] = [(run, row.pause, row.about) for run, row in zip(batch.back, exchange.back, strict=True)]
