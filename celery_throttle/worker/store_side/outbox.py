"""The rows that a worker sends to the store of one group with its next call."""

from __future__ import annotations

from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.core.contents import stored_id
from celery_throttle.core.facts import Facts, Message
from celery_throttle.store.exchange import Delivery, DeliveryChange, Exchange
from celery_throttle.store.portions import MOST_ROWS, Portion, take_messages, take_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.core.facts import Result
    from celery_throttle.store.exchange_reply import Reply
    from celery_throttle.worker.runs import Permit, Run

__all__ = ["MOST_BYTES", "Batch", "Outbox", "others", "returning"]

#: The most bytes of messages in one call: a slow network moves these while another worker's hint is still of use.
MOST_BYTES = 1 << 20

#: Seconds after which a permit that no run has taken goes back with the next call: in a busy worker the next run comes
#: sooner. And seconds after which no run may take it, because the worker was stopped, and the lease may be over.
_IDLE, _STALE = 0.005, 0.2
#: The most characters of the reason for which a record cannot be read.
_LONGEST_WHY = 500


class Batch:
    """One call: its rows, and the runs that arrived, for which it has answers."""

    def __init__(self, exchange: Exchange, arrived: list[Run]) -> None:
        self.exchange, self.arrived = exchange, arrived

    @classmethod
    def empty(cls) -> Batch:
        """Return a call without rows."""
        return cls(Exchange(), [])

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.exchange.changed) + len(self.exchange.gone) + len(self.arrived)

    def halves(self) -> list[Batch]:
        """Return two calls with these rows, in their order.

        The first has all ``unacked`` rows, because it confirms the other acknowledgements; they alone are halved, too.
        """
        rows = self.rows()
        unacked = sum(row.event == "unacked" for row in self.exchange.changed)
        middle = max(len(rows) // 2, unacked % len(rows))
        return [self._joined(rows[:middle], self.exchange.errors), self._joined(rows[middle:], 0)]

    def rows(self) -> list[Batch]:
        """Return a call for each row: the ``unacked`` rows first, the others in their order."""
        sent = self.exchange
        changed = sorted(sent.changed, key=lambda row: row.event != "unacked")
        return [
            *(Batch(Exchange(clock=sent.clock, changed=[row]), []) for row in changed),
            *(Batch(Exchange(clock=sent.clock, gone=[row]), []) for row in sent.gone),
            *(
                Batch(Exchange(clock=sent.clock, arrived=[row]), [run])
                for row, run in zip(sent.arrived, self.arrived, strict=True)
            ),
        ]

    def _joined(self, rows: list[Batch], errors: int) -> Batch:
        exchange = Exchange(
            clock=self.exchange.clock,
            errors=errors,
            arrived=[row for each in rows for row in each.exchange.arrived],
            changed=[row for each in rows for row in each.exchange.changed],
            gone=[row for each in rows for row in each.exchange.gone],
        )
        return Batch(exchange, [run for each in rows for run in each.arrived])

    def fits(self, reply: Reply) -> None:
        """Raise ValueError unless the reply has an answer for each of its rows."""
        if len(reply.arrived) != len(self.arrived):
            raise ValueError("it has not as many answers as the call has rows")


def returning(runs: list[Run]) -> list[Run]:
    """Return the runs that go back in line."""
    return [run for run in runs if run.pause is not None]


def others(runs: list[Run]) -> list[Run]:
    """Return the runs that ask to start, or are to be parked."""
    return [run for run in runs if run.pause is None]


class Outbox:
    """Gathers the rows of the next call.

    Permits that pass from run to run here are reported with the calls that are due anyway: see `spare`.

    Attributes:
        arrived: runs that want to start; runs to be parked, with their parcels; and runs that go back in line, with
            their parcels and pauses.
    """

    def __init__(self) -> None:
        self.arrived: list[Run] = []
        self._changed: list[DeliveryChange] = []
        self._gone: list[tuple[str, ...]] = []
        self._acknowledging: list[Run] = []  # since the last call
        self._unacked: list[Delivery] = []
        self._maybe_acked: list[Run] = []  # of rows that name a message as not acknowledged
        self._errors = 0
        self._late = False  # whether the last call had no room for all changes
        self._refused = False  # whether the last call was refused
        self._spare: dict[str, list[Permit]] = {}
        self._passed: dict[Permit, None] = {}

    @property
    def urgent(self) -> bool:
        """Whether there are rows that have to be sent at once."""
        return bool(self.arrived) or self.reports

    @property
    def reports(self) -> bool:
        """Whether there are urgent rows that a full store takes, too."""
        if self._gone or self._unacked or self._late:
            return True
        urgent = any(row.event in ("ended", "began") for row in self._changed)
        return urgent or any(run.at_broker for run in self._acknowledging)

    @property
    def lazy(self) -> bool:
        """Whether there are rows that can wait for a moment."""
        return bool(self._spare or self._passed or self._changed) or not all(run.at_broker for run in self._maybe_acked)

    def ended(self, delivery: Delivery, facts: Facts, needs: str = "") -> None:
        """Report that a run has ended, and that the permits of ``needs`` are free."""
        self._changed.append(DeliveryChange("ended", *delivery, facts, needs))

    def ended_unacked(self, run: Run, facts: Facts) -> None:
        """Report the end of a run whose message Celery acknowledges soon; that is reported when it is done."""
        self._changed.append(DeliveryChange("ended", *run.delivery, facts, run.needs.text, unacked=True))
        self._maybe_acked.append(run)

    def began(self, delivery: Delivery) -> None:
        """Report that a task begins which is acknowledged early, so that the store deletes its message."""
        self._changed.append(DeliveryChange("began", *delivery))

    def acknowledging(self, run: Run) -> None:
        """Note a run that was parked with the last call, and whose broker message is being acknowledged.

        The next call confirms all these acknowledgements to the store, but for the deliveries in its ``unacked`` rows.
        Whether the broker has a message is read when that call is built: there may be no connection to the broker. A
        message of these rows that is acknowledged later gets a row ``acked``. The store has a run that the broker keeps
        until ``acked`` as unacknowledged already.
        """
        if not run.keeps:
            self._acknowledging.append(run)

    def disconnected(self) -> None:
        """Report messages that were acknowledged since the last call as unacknowledged, because the connection is gone.

        The broker may have put them back before the acknowledgement came, even if Celery has seen no error. Messages
        that an earlier call confirmed count as acknowledged.
        """
        self._unacked += [run.delivery for run in self._acknowledging]
        self._acknowledging.clear()
        self._maybe_acked.clear()

    def acked(self, delivery: Delivery) -> None:
        """Report that the broker's message of a task that was parked as unacknowledged is acknowledged now."""
        self._changed.append(DeliveryChange("acked", *delivery))

    def revoked(self, tasks: Iterable[str]) -> None:
        """Have revoked tasks leave their lines."""
        self._gone += [("revoked", stored_id(task)) for task in tasks]

    def never(self, identity: str, task: object, first: str) -> None:
        """Report that a task will never run: its lock is free, and it does not wait for the outcome of its first."""
        self._gone.append(("never", stored_id(task), identity, stored_id(first) if first else ""))

    def unread(self, task: str, why: str) -> None:
        """Have the store set a granted task aside, because its record cannot be read."""
        self._gone.append(("unread", stored_id(task), why[:_LONGEST_WHY]))

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
                self.ended(holder.delivery, facts, holder.needs)

    def forget_arrivals(self) -> list[Run]:
        """Drop the runs that want to start or to be parked, and return them."""
        dropped, self.arrived = others(self.arrived), returning(self.arrived)
        return dropped

    def forget_returning(self) -> list[Run]:
        """Drop the runs that go back in line, and return them."""
        dropped, self.arrived = returning(self.arrived), others(self.arrived)
        return dropped

    def next_batch(self, slots: int, most_bytes: int = MOST_BYTES) -> Batch:
        """Take out the rows that fit in one call, with ``most_bytes`` of messages, or with one larger message."""
        self.unspare(_IDLE)
        self._report_acked()
        # A run that was refused, and is to be parked, came before runs that are parked without a question.
        self.arrived.sort(key=attrgetter("came"))
        portion = self._portion()
        changed = self._take_changed(portion)
        arrived = self._take_arrived(portion, most_bytes)
        self._late = bool(self._changed)
        errors, self._errors = self._errors, 0
        clock = monotonic()  # one timestamp for all, so that a stalled worker keeps the order of its tasks
        exchange = Exchange(
            slots=slots,
            clock=clock,
            errors=errors,
            arrived=[run.arrived_at(clock) for run in arrived],
            changed=changed,
            gone=take_rows(self._gone, portion.of(self._gone)),
        )
        return Batch(exchange, arrived)

    def has_bytes(self, fewest: int) -> bool:
        """Return whether the next batch may have ``fewest`` bytes of messages or more, which take long to send."""
        return sum(len(run.parcel) for run in self.arrived[:MOST_ROWS]) >= fewest

    def _take_changed(self, portion: Portion) -> list[DeliveryChange]:
        ends = portion.of([row for row in self._changed[:MOST_ROWS] if row.event == "ended"])
        taken = 0
        for row in self._changed[:MOST_ROWS]:
            ends -= row.event == "ended"
            if ends < 0:
                break
            taken += 1
        changed = take_rows(self._changed, taken)
        if not self._lacks_holders:
            for permit in list(self._passed)[: MOST_ROWS - len(changed)]:
                changed += self._passed_on(permit)
        over = {row.nonce for row in changed if row.event == "ended"}
        if over:  # a run that has ended needs no `began` row
            changed = [row for row in changed if row.event != "began" or row.nonce not in over]
        # All of them, without a bound: the store takes the others as acknowledged.
        at_broker = [run for run in self._acknowledging if run.at_broker]
        unacked = self._unacked + [run.delivery for run in at_broker]
        self._maybe_acked += at_broker
        self._acknowledging.clear()
        self._unacked.clear()
        return changed + [DeliveryChange("unacked", *delivery) for delivery in unacked]

    def _report_acked(self) -> None:
        """Report the messages that were acknowledged after their ``unacked`` rows, once the store has these rows."""
        if not self._unacked:
            for run in [run for run in self._maybe_acked if not run.at_broker]:
                self._maybe_acked.remove(run)
                self.acked(run.delivery)

    @property
    def _lacks_holders(self) -> bool:
        """Whether the store does not have all holders of permits that were passed on, even after this call."""
        return any(row.event == "passed" for row in self._changed)

    def _take_arrived(self, portion: Portion, most_bytes: int) -> list[Run]:
        # A full store refuses a call with messages. After that the other rows go first, alone.
        refused, self._refused = self._refused, False
        ready = self.arrived
        if refused:
            ready = [run for run in ready if not run.parcel]
        elif self._lacks_holders:
            ready = others(ready)
        taken = take_messages(ready, portion.of(ready), most_bytes, lambda run: len(run.parcel))
        if ready is not self.arrived:
            self.arrived = [run for run in self.arrived if run not in taken]
        return taken

    def _portion(self) -> Portion:
        changed = self._changed[:MOST_ROWS]
        passed = len(self._passed) + sum(row.event == "passed" for row in changed)
        return Portion(
            [run.needs.text for run in self.arrived[:MOST_ROWS]],
            [row.needs for row in changed if row.event == "ended"],
            ("" for _ in self._gone[:MOST_ROWS]),
            others=min(passed, MOST_ROWS),
        )

    def settle(self, permit: Permit) -> None:
        """Report that a permit was passed on, if it was, before any row about its new holder."""
        self._changed += self._passed_on(permit)

    def _passed_on(self, permit: Permit) -> list[DeliveryChange]:
        if permit not in self._passed:
            return []
        del self._passed[permit]
        row = permit.passed()
        return [row] if row is not None else []

    def put_back(self, batch: Batch, *, copied: bool) -> None:
        """Requeue the rows of a refused call that must not be lost: all but the runs that asked or were to be parked.

        ``copied``: the call was sent more than once, so an earlier copy may still be carried out. Its messages were not
        acknowledged, so they are reported as unacknowledged; permits that it may get are given back.
        """
        exchange, self._refused = batch.exchange, True
        if copied:
            self._unacked += [run.delivery for run in batch.arrived if run.parcel]
            for run in batch.arrived:
                if not run.parcel:
                    self.ended(run.delivery, Facts(began=False, message=Message.BROKER))
        self._unacked[:0] = [Delivery(*row[1:5]) for row in exchange.changed if row.event == "unacked"]
        self._changed[:0] = [row for row in exchange.changed if row.event != "unacked"]
        self._gone[:0] = exchange.gone
        self._errors += exchange.errors
        self.arrived[:0] = returning(batch.arrived)
