"""The HTTP clients of the shop: customers that click three times, a webhook that is sent three times."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ANSWER_TIMEOUT = 20.0


@dataclass(frozen=True)
class Answer:
    """The answer to one POST; ``task_id`` is None if the shop did not accept the payment."""

    order_id: int
    task_id: str | None


def post(url: str, path: str, amounts: Mapping[int, int], times: int) -> list[Answer]:
    """Send the payment of each order ``times`` times, all at the same time."""
    return asyncio.run(_post(url, path, amounts, times))


def look(url: str, order_ids: Iterable[int]) -> list[dict[str, Any]]:
    """Return the shop's data of these orders."""
    with httpx.Client(base_url=url, timeout=ANSWER_TIMEOUT) as client:
        return [client.get(f"/orders/{order_id}").raise_for_status().json() for order_id in order_ids]


async def _post(url: str, path: str, amounts: Mapping[int, int], times: int) -> list[Answer]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_TIMEOUT, limits=limits) as client:

        async def send(order_id: int, amount: int) -> Answer:
            answer = await client.post(path, json={"order_id": order_id, "amount": amount})
            return Answer(order_id, answer.json()["task_id"] if answer.status_code == httpx.codes.ACCEPTED else None)

        pairs = [pair for pair in amounts.items() for _ in range(times)]
        return await asyncio.gather(*(send(*pair) for pair in pairs))
