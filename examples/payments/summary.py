"""The figures of one run of the example, computed from the books of the shop and of the provider."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from examples.payments import ledger, provider

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from examples.payments.customers import Answer
    from examples.payments.ledger import Run


@dataclass(frozen=True)
class Cut:
    """The interruption of a worker: its time, the runs, and the orders whose money had moved by then."""

    worker: str
    at: float
    runs: tuple[Run, ...]
    moved: frozenset[int]

    def __str__(self) -> str:
        moved = ", ".join(f"#{order_id}" for order_id in sorted(self.moved)) or "none"
        return ", ".join(f"#{run.order_id}" for run in self.runs) + f" (money moved: {moved})"

    @property
    def orders(self) -> set[int]:
        """The orders of the interrupted runs."""
        return {run.order_id for run in self.runs}

    def refused(self) -> set[tuple[int, int]]:
        """Return the runs that went on and were refused a write, as order and token."""
        late = {(run.order_id, run.fence) for run in ledger.runs() if run.outcome == "refused"}
        return (late | provider.refusals()) & {(run.order_id, run.fence) for run in self.runs}


@dataclass(frozen=True)
class Summary:
    """The figures."""

    orders: int
    clicks: int
    webhooks: int
    #: POSTs that were not answered with a task id
    turned_away: int
    #: orders whose clicks were answered with more than one task id
    orders_with_two_task_ids: int
    runs: int
    killed_before_the_money_moved: int
    killed_after_the_money_moved: int
    frozen_before_the_money_moved: int
    frozen_after_the_money_moved: int
    #: runs beyond one for each order and one for each interrupted run
    needless_runs: int
    #: calls of the provider that were answered with an earlier charge
    repeats_answered: int
    late_writes_refused: int
    charges: int
    orders_charged_twice: int
    orders_not_charged: int
    amount_due: int
    amount_charged: int
    #: task ids, of clicks and webhooks, whose outcome is not the id of their order's charge
    task_ids_with_another_outcome: int
    #: from the interruption to the last charge of an interrupted order, among orders with a waiting webhook
    copy_took_over_after: float | None
    #: the same, among the other orders
    delivered_again_after: float | None

    @property
    def frozen(self) -> int:
        """Number of frozen runs."""
        return self.frozen_before_the_money_moved + self.frozen_after_the_money_moved

    @property
    def ok(self) -> bool:
        """Whether every order was charged once, without a needless run, and every task id has that outcome."""
        wrong = (
            self.turned_away,
            self.orders_with_two_task_ids,
            self.needless_runs,
            self.orders_charged_twice,
            self.orders_not_charged,
            self.task_ids_with_another_outcome,
        )
        return not any(wrong) and self.amount_charged == self.amount_due and self.late_writes_refused == self.frozen

    def as_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""
        figures = {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return {**figures, "ok": self.ok}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield label and figure of each row, for people."""
        asked = f"{self.clicks} clicks, {self.webhooks} webhooks"
        interrupted = self.killed_before_the_money_moved + self.killed_after_the_money_moved + self.frozen
        yield "asked to charge", f"{asked} for {self.orders} orders, turned away: {self.turned_away}"
        yield "orders with two task ids", str(self.orders_with_two_task_ids)
        yield "runs", f"{self.runs}, interrupted: {interrupted}, needless: {self.needless_runs}"
        yield "killed before the money moved", f"{self.killed_before_the_money_moved}"
        yield "killed after the money moved", f"{self.killed_after_the_money_moved}"
        yield "frozen", f"{self.frozen}, writes refused when they went on: {self.late_writes_refused}"
        yield "charges", f"{self.charges}, repeated calls answered with the first: {self.repeats_answered}"
        yield "orders charged twice, not at all", f"{self.orders_charged_twice}, {self.orders_not_charged}"
        yield "amount due, charged", f"{self.amount_due}, {self.amount_charged}"
        yield "task ids with another outcome", str(self.task_ids_with_another_outcome)
        yield "taken over by a waiting copy after", _seconds(self.copy_took_over_after)
        yield "delivered again, charged after", _seconds(self.delivered_again_after)


def summarize(
    amounts: Mapping[int, int],
    shown: Sequence[Mapping[str, Any]],
    clicks: Sequence[Answer],
    webhooks: Sequence[Answer],
    outcomes: Mapping[str, object],
    killed: Cut,
    frozen: Cut,
    waited: Collection[int],
) -> Summary:
    """Compute the figures.

    Args:
        amounts: the amount due for each order.
        shown: the shop's data of each order.
        clicks: the answers to the clicks.
        webhooks: the answers to the webhooks.
        outcomes: the outcome of each task that succeeded, by its id.
        killed: the interruption by the kill.
        frozen: the interruption by the freeze.
        waited: the orders that got a webhook while they were interrupted.
    """
    runs, charges = ledger.runs(), provider.charges()
    charged = {order["order_id"]: order["charge_id"] for order in shown if order["state"] == "charged"}
    answers = [*clicks, *webhooks]
    recovered = {
        run.order_id: run.ended - cut.at
        for cut in (killed, frozen)
        for run in runs
        if run.outcome == "charged" and run.ended and run.order_id in cut.orders
    }
    return Summary(
        orders=len(amounts),
        clicks=len(clicks),
        webhooks=len(webhooks),
        turned_away=sum(answer.task_id is None for answer in answers),
        orders_with_two_task_ids=_more_than_one({(answer.order_id, answer.task_id) for answer in clicks}),
        runs=len(runs),
        killed_before_the_money_moved=len(killed.runs) - len(killed.moved),
        killed_after_the_money_moved=len(killed.moved),
        frozen_before_the_money_moved=len(frozen.runs) - len(frozen.moved),
        frozen_after_the_money_moved=len(frozen.moved),
        needless_runs=len(runs) - len({run.order_id for run in runs}) - len(killed.runs) - len(frozen.runs),
        repeats_answered=sum(charge.repeated for charge in charges),
        late_writes_refused=len(frozen.refused()),
        charges=len(charges),
        orders_charged_twice=_more_than_one((charge.order_id, charge.charge_id) for charge in charges),
        orders_not_charged=len(amounts.keys() - charged.keys()),
        amount_due=sum(amounts.values()),
        amount_charged=sum(charge.amount for charge in charges),
        task_ids_with_another_outcome=sum(
            outcomes.get(answer.task_id or "") != charged.get(answer.order_id) for answer in answers
        ),
        copy_took_over_after=max((recovered[order] for order in recovered.keys() & set(waited)), default=None),
        delivered_again_after=max((recovered[order] for order in recovered.keys() - set(waited)), default=None),
    )


def _more_than_one(pairs: Iterable[tuple[int, object]]) -> int:
    """Return the number of orders that occur more than once."""
    return sum(count > 1 for count in Counter(order_id for order_id, _ in pairs).values())


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
