"""Text of any kind by every way into the store: it is taken, or is a mistake of the caller, and stops no worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_throttle import ConfigurationError, DuplicateTask, Limit, NotAcquired, ThrottleControl, Throttled
from celery_throttle.clients import store_client
from celery_throttle.core.facts import Facts, Message
from celery_throttle.core.storable import storable
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import Counter, FairSemaphore, IdentityLock, RateLimiter
from celery_throttle.store.exchange import Arrival, Delivery, Exchange
from celery_throttle.store.exchange_reply import read_exchanged
from celery_throttle.store.scripts import Call, Script
from celery_throttle.worker.store_side.outbox import Outbox
from tests.support.workers import close

#: Each is another text, for the store, too. Some would be one if what cannot be encoded were only escaped or dropped.
ODD = [
    "bad\ud800id", "bad\udfffid", "bad\\ud800id", "bad?id", "badid", "\udc00\ud800", "\ud83d\ude00", "\U0001f600", "\0",
    "a\0b", "", " ", "\n", "\x1d", "\x1f", '"', "\\", "{}*?[]", "\u202e\u2028", "'", "x" * 1001, "x" * 100_000,
    "\ud800" * 2000,
]  # fmt: skip


@pytest.fixture
def app(server: EmbeddedServer, redis: Redis) -> Iterator[Celery]:  # noqa: ARG001 - which is empty
    made = Celery("texts", broker=server.url, set_as_current=False)

    @made.task(base=Throttled, name="once", limit=2, singleton=True, shared=False)
    def once(value: str) -> None:
        """Never runs."""

    yield made
    close(made)


GPU = Limit("gpu", 5, key="tenant")
MAIL = Limit("mail", rate="1000/m", key="tenant")


def permits(app: Celery, text: str) -> None:
    with GPU.acquire(timeout=30, key=text, app=app):
        pass
    MAIL.reserve(key=text, app=app)


def names(app: Celery, text: str) -> None:
    with Limit(text, 1).acquire(timeout=30, app=app):
        pass


def tasks(app: Celery, text: str) -> None:
    once = app.tasks["once"]
    with suppress(DuplicateTask):
        once.apply_async((text,), task_id=text)


def looks(app: Celery, text: str) -> None:
    control = ThrottleControl(app)
    control.explain(text)
    control.runnable(text)
    control.metrics(queues=[text])
    control.limit("gpu").keys(find=text)
    control.limit(GPU, key=text).status()
    control.limit(GPU, key=text).history()


def authors(app: Celery, text: str) -> None:
    control = ThrottleControl(app)
    with GPU.acquire(timeout=30, key="a", app=app):
        limit = control.limit(GPU)
        limit.pause(by=text, why=text)
        limit.resume(by=text, why=text)
        limit.once(text).override(4, by=text, why=text)
        limit.drop(by=text, why=text)
    control.audit()


def keys(app: Celery, text: str) -> None:
    with GPU.acquire(timeout=30, key=text, app=app):
        ThrottleControl(app).limit(GPU, key=text).pause(by="ana", why="to see")


def ids(app: Celery, text: str) -> None:
    control = ThrottleControl(app)
    control.drop(text, by="ana", why=text)
    control.unlock(text, task_name=text, by=text, why=text)
    control.limit(text).status()


def locks(app: Celery, text: str) -> None:
    held = IdentityLock(Redis.from_url(app.conf.broker_url)).acquire(text)
    assert held is not None
    held.release()


def semaphores(app: Celery, text: str) -> None:
    held = FairSemaphore(Redis.from_url(app.conf.broker_url), text, 2).acquire()
    assert held is not None
    held.release()


def rates(app: Celery, text: str) -> None:
    RateLimiter(Redis.from_url(app.conf.broker_url), text, "1000/m").acquire(call_id=text)
    RateLimiter(Redis.from_url(app.conf.broker_url), "mail", "1000/m").acquire(call_id=text)


def counters(app: Celery, text: str) -> None:
    Counter(Redis.from_url(app.conf.broker_url), text).add(1)


def call_ids(app: Celery, text: str) -> None:
    Counter(Redis.from_url(app.conf.broker_url), "n").add(1, call_id=text)


def holders(app: Celery, text: str) -> None:
    held = FairSemaphore(Redis.from_url(app.conf.broker_url), "s", 2).acquire(holder=text)
    assert held is not None
    held.release()


def owners(app: Celery, text: str) -> None:
    held = IdentityLock(Redis.from_url(app.conf.broker_url)).acquire("x", owner=text)
    if held:
        held.release()


WAYS = [permits, names, tasks, looks, authors, keys, ids, locks, semaphores, rates, counters, call_ids, holders, owners]


def failures_of(texts: Iterable[Any], call: Callable[[Any], object]) -> dict[str, str]:
    """Return the errors of a call by their texts; a mistake of the caller is none."""
    found = {}
    for text in texts:
        try:
            call(text)
        except (ConfigurationError, NotAcquired):
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is
            found[ascii(text)[:30]] = f"{type(error).__name__}: {error}"[:200]
    return found


@pytest.mark.parametrize("way", WAYS, ids=[each.__name__ for each in WAYS])
def test_any_text(app: Celery, way: Callable[[Celery, str], None]) -> None:
    assert failures_of(ODD, partial(way, app)) == {}
    with GPU.acquire(timeout=30, key="next", app=app):
        """The next one has its turn."""


NUMBERS = count(1)


def exchanged(app: Celery, outbox: Outbox, queues: tuple[str, ...]) -> Any:
    """Send the rows of an outbox to the store; return its reply."""
    client = store_client(app)
    (birth, *_) = client.ask(client.store.declarations("", [("gpu", '{"permits":5}')], worker="w/1/a")[0])
    call = client.store.exchange("w/1/a", next(NUMBERS), queues, outbox.next_batch(0).exchange, birth.decode())
    return read_exchanged(client.ask(call))


def reports(outbox: Outbox, text: Any) -> None:
    outbox.revoked([text])
    outbox.never("i" * 40, text, text)
    outbox.unread(text, str(text))
    outbox.ended(Delivery(text, 0, text, text), Facts(began=False, message=Message.BROKER), str(text))
    outbox.began(Delivery(text, 0, text, text))
    outbox.acked(Delivery(text, 0, text, text))


def test_rows_of_a_worker(app: Celery) -> None:
    def report(text: Any) -> None:
        outbox = Outbox()
        reports(outbox, text)
        assert exchanged(app, outbox, (text,) if isinstance(text, str) else ("q",)) is not None

    assert failures_of([*ODD, b"\xff", 7, None], report) == {}


def test_arrivals(app: Celery) -> None:
    client = store_client(app)
    (birth, *_) = client.ask(client.store.declarations("", [("gpu", '{"permits":5}')], worker="w/1/a")[0])
    numbers = count(1)

    def park(text: str) -> None:
        number, row = next(numbers), Arrival("t", "1:gpu", text, nonce="w:1", code=text, publication=text, message=b"m")
        rows = [row._replace(turn=(text, text, 1), wait_ms=1)]
        call = client.store.exchange("w/1/a", number, ("q",), Exchange(arrived=rows), birth.decode())
        assert read_exchanged(client.ask(call)) is not None
        client.ask(client.store.renew("w/1/a", number, [row], [text], birth.decode()))

    assert failures_of(ODD, park) == {}


def test_texts_that_are_not_one_stay_apart() -> None:
    sent = {Call(Script.of("x", ""), (text,)).packed() for text in ODD}
    rows = {Delivery(storable(text), 0, "n") for text in ODD}
    assert len(sent) == len(rows) == len(ODD)
