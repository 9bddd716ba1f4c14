"""The figures of one run of the sale."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from examples.flash_sale.ledger import Order
    from examples.flash_sale.load import Load

SOLD, NO_STOCK = "201", "409"


@dataclass(frozen=True)
class Sale:
    """One load, for an item of its own."""

    requests: int
    at_once: int
    stock: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    sold: int
    refused_no_stock: int
    #: any other answer, or none: an error, a timeout
    turned_away: int
    stock_taken: int
    ledger_rows: int
    #: rows in the ledger beyond the stock
    oversold: int
    #: orders in an answer but not in the ledger, or the other way round
    orders_astray: int
    recorded_after: float

    @property
    def ok(self) -> bool:
        """Whether every buyer got a unit while there was stock, and the three counts agree."""
        due = min(self.requests, self.stock)
        return (
            self.sold == self.stock_taken == self.ledger_rows == due
            and self.refused_no_stock == self.requests - due
            and self.turned_away == self.oversold == self.orders_astray == 0
        )


@dataclass(frozen=True)
class Summary:
    """The whole run."""

    sales: tuple[Sale, ...]
    writers_limit: int
    most_writers_at_once: int

    @property
    def ok(self) -> bool:
        """Whether every sale was right and the database was protected."""
        return all(sale.ok for sale in self.sales) and self.most_writers_at_once <= self.writers_limit

    def as_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {**_rounded(asdict(self)), "sales": [_rounded(asdict(sale)) for sale in self.sales], "ok": self.ok}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each figure, with a column for each sale."""
        yield "requests, at a time", *(f"{sale.requests}, {sale.at_once}" for sale in self.sales)
        yield "requests/s", *(f"{sale.requests_per_second:.0f}" for sale in self.sales)
        yield "answer, p50", *(f"{sale.p50_ms:.0f} ms" for sale in self.sales)
        yield "answer, p99", *(f"{sale.p99_ms:.0f} ms" for sale in self.sales)
        yield "sold", *(f"{sale.sold} of {sale.stock}" for sale in self.sales)
        yield "refused: no stock", *(str(sale.refused_no_stock) for sale in self.sales)
        yield "refused: anything else", *(str(sale.turned_away) for sale in self.sales)
        yield "stock taken", *(str(sale.stock_taken) for sale in self.sales)
        yield "rows in the ledger", *(str(sale.ledger_rows) for sale in self.sales)
        yield "oversold", *(str(sale.oversold) for sale in self.sales)
        yield "all recorded after", *(f"{sale.recorded_after:.1f} s" for sale in self.sales)
        yield "most writers at once", f"{self.most_writers_at_once} (limit {self.writers_limit})"


def summarize(load: Load, at_once: int, stock: int, asked: int, rows: Sequence[Order], recorded_after: float) -> Sale:
    """Compute the figures of one sale from the buyers' answers, the counter in Redis and the ledger."""
    answers = sum(load.statuses.values())
    sold, refused = load.statuses.get(SOLD, 0), load.statuses.get(NO_STOCK, 0)
    return Sale(
        requests=answers,
        at_once=at_once,
        stock=stock,
        requests_per_second=answers / load.seconds,
        p50_ms=_percentile(load.milliseconds, 0.5),
        p99_ms=_percentile(load.milliseconds, 0.99),
        sold=sold,
        refused_no_stock=refused,
        turned_away=answers - sold - refused,
        stock_taken=min(asked, stock),
        ledger_rows=len(rows),
        oversold=sum(row.unit > stock for row in rows),
        orders_astray=len({row.order_id for row in rows} ^ set(load.orders)),
        recorded_after=recorded_after,
    )


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def _rounded(figures: dict[str, object]) -> dict[str, object]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
