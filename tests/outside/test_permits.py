"""Permits outside of tasks, alone: threads, asyncio, processes that die."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_throttle import (
    ConfigurationError,
    LeaseLost,
    Limit,
    NotAcquired,
    Permit,
    StoreUnavailable,
    ThrottleControl,
    Throttled,
    signals,
)
from celery_throttle.core.reserved import ReservedStart
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.permits import permit as permits
from celery_throttle.permits.line import Batch
from celery_throttle.permits.outside import Outside
from celery_throttle.permits.registry import outside_of
from celery_throttle.store.exchange import Arrival
from celery_throttle.tasks.publish import HEADER
from tests.failures.tools import script_calls
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, always, until
from tests.support.workers import close


@pytest.fixture
def state(redis: Redis) -> State:
    return State.at(redis)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """The threads of other callers."""
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def shop(own_server: EmbeddedServer) -> Iterator[Celery]:
    """An app with a store of its own, to freeze and to fill."""
    yield from closed_after("shop", own_server.url)


@pytest.fixture
def own_state(own_server: EmbeddedServer) -> State:
    """That of the store of `shop`."""
    return State(lambda: own_server.url)


@pytest.fixture
def relay(own_server: EmbeddedServer) -> Iterator[Relay]:
    """In front of the store of `shop`."""
    with Relay(own_server.port) as between:
        yield between


@pytest.fixture
def far(relay: Relay) -> Iterator[Celery]:
    """An app that reaches the store of `shop` through the relay."""
    yield from closed_after("far", relay.url)


def closed_after(name: str, url: str) -> Iterator[Celery]:
    """Yield an app with this broker, and close it."""
    made = Celery(name, broker=url, set_as_current=False)
    yield made
    close(made)


def test_no_more_permits_than_the_limit_has(gpu: Limit, app: Celery, state: State) -> None:
    with gpu.acquire(app=app) as permit:
        assert isinstance(permit, Permit)
        assert state.used == {"gpu": 1}
        with pytest.raises(NotAcquired, match="no permit of limit 'gpu' is free"):
            gpu.acquire(0, app=app)
        with pytest.raises(NotAcquired, match="came in time"):
            gpu.acquire(0.05, app=app)
        assert state.count == 0, "a caller that gives up leaves the line"
    assert state.is_empty()
    assert permit.release(), "again: the same answer"


def test_full_line_is_reported_at_once(app: Celery, state: State, pool: ThreadPoolExecutor) -> None:
    gpu = Limit("gpu", 1, max_parked=1)

    async def one_more() -> None:
        await gpu.acquire_async(app=app)

    with gpu.acquire(app=app):
        waiting = pool.submit(gpu.acquire, app=app)
        state.wait_parked(1)
        with pytest.raises(NotAcquired, match="limit 'gpu' has as many parked tasks as max_parked allows"):
            gpu.acquire(HANGS_AFTER, app=app)
        with pytest.raises(NotAcquired, match="max_parked"):
            asyncio.run(asyncio.wait_for(one_more(), HANGS_AFTER))
        assert state.count == 1
    waiting.result(HANGS_AFTER).release()
    state.wait_empty()


def test_for_asyncio(gpu: Limit, app: Celery, state: State) -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def want(number: int) -> None:
            async with gpu.acquire_async(HANGS_AFTER, app=app):
                order.append(number)

        permit = await gpu.acquire_async(app=app)
        wanted = [asyncio.ensure_future(want(number)) for number in range(3)]
        await asyncio.to_thread(state.wait_parked, len(wanted))
        wanted[1].cancel()
        await asyncio.wait([wanted[1]])
        with pytest.raises(NotAcquired):
            await gpu.acquire_async(0.01, app=app)
        with pytest.raises(NotAcquired):
            await gpu.acquire_async(0, app=app)
        await asyncio.to_thread(permit.release)
        await asyncio.gather(wanted[0], wanted[2])
        return order

    assert sorted(asyncio.run(main())) in ([0, 2], [1, 2], [0, 1])
    state.wait_empty()


def test_a_loop_gives_back_while_all_its_threads_wait(gpu: Limit, app: Celery, state: State) -> None:
    def work() -> bool:
        return gpu.acquire(10, app=app).release()

    async def main() -> list[bool]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))
        async with gpu.acquire_async(app=app):
            waiting = [loop.run_in_executor(None, work) for _ in range(2)]
            state.wait_parked(2)
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == [True, True]


def test_leaving_loop_reports_a_lost_permit(gpu: Limit, app: Celery, state: State) -> None:
    async def main() -> None:
        async with gpu.acquire_async(app=app) as permit:
            permit._lose()

    with pytest.raises(LeaseLost):
        asyncio.run(main())
    state.wait_empty()


@pytest.mark.parametrize(("error", "raised"), [(None, StoreUnavailable), (ZeroDivisionError, ZeroDivisionError)])
def test_leaving_loop_reports_a_store_that_is_away(
    error: type[Exception] | None,
    raised: type[Exception],
    gpu: Limit,
    app: Celery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Unless its block has raised something itself."""

    release = Outside.release

    def unanswered(outside: Outside, arrival: Arrival) -> Future[None]:
        release(outside, arrival)  # or its thread would renew it for the tests to come
        return Future()

    async def main() -> None:
        async with gpu.acquire_async(app=app):
            monkeypatch.setattr(Outside, "release", unanswered)
            monkeypatch.setattr(permits, "_ANSWER", 0.1)
            if error is not None:
                raise error

    with pytest.raises(raised):
        asyncio.run(main())
    assert ("cannot release 'gpu'" in caplog.text) == (error is not None)


def test_result_of_acquire_async_is_for_one_block(gpu: Limit, app: Celery, state: State) -> None:
    """Or each that leaves would give back the permit of another, and the first would be kept."""

    async def main() -> None:
        acquiring = gpu.acquire_async(5, app=app)
        async with acquiring:
            with pytest.raises(ConfigurationError, match="each time"):
                async with acquiring:
                    pass
            assert state.used == {"gpu": 1}

    asyncio.run(main())
    state.wait_empty()


def until_its_loop_is_closed(gpu: Limit, app: Celery, *, holds: bool) -> Any:
    loop = asyncio.new_event_loop()
    entered = loop.create_future()

    async def want() -> None:
        async with gpu.acquire_async(app=app):
            entered.set_result(None)
            await asyncio.sleep(600)

    task = loop.create_task(want())
    loop.run_until_complete(entered if holds else asyncio.sleep(0))
    loop.close()
    return task


def holds_in_asyncio(gpu: Limit, app: Celery) -> Any:
    return until_its_loop_is_closed(gpu, app, holds=True)


def waits_in_asyncio(gpu: Limit, app: Celery) -> Any:
    with gpu.acquire(app=app):
        return until_its_loop_is_closed(gpu, app, holds=False)


def holds_in_a_generator(gpu: Limit, app: Celery) -> Any:
    def hold() -> Iterator[object]:
        with gpu.acquire(app=app):
            yield itself

    itself: list[Any] = []
    itself.append(hold())  # which makes it garbage for the collector
    assert next(itself[0]) is itself
    return itself[0]


@pytest.mark.parametrize("somebody", [waits_in_asyncio, holds_in_asyncio, holds_in_a_generator])
def test_collected_permit_is_given_back(
    somebody: Callable[[Limit, Celery], Any],
    gpu: Limit,
    app: Celery,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though any thread may collect it, at any moment: also one in the middle of giving back something else."""
    gc.disable()
    try:
        gone = weakref.ref(somebody(gpu, app))
        end = Batch.end

        def collect(*args: Any) -> Future[None]:
            monkeypatch.setattr(Batch, "end", end)
            assert gone() is not None
            gc.collect()
            return end(*args)

        monkeypatch.setattr(Batch, "end", collect)
        other = threading.Thread(target=lambda: Limit("other", 1).acquire(app=app).release(), daemon=True)
        other.start()
        until(lambda: not other.is_alive())
        assert gone() is None
        state.wait_empty()
    finally:
        gc.enable()


def test_each_key_has_its_own_and_a_cost_takes_many(app: Celery, state: State) -> None:
    tenant = Limit("tenant", 2, key="tenant_id")
    with tenant.acquire(key="a", cost=2, app=app), tenant.acquire(key="b", app=app):
        assert state.used == {"tenant[a]": 2, "tenant[b]": 1}
        with pytest.raises(NotAcquired):
            tenant.acquire(0, key="a", app=app)
    state.wait_empty()


def test_a_permit_is_renewed_while_it_is_held(gpu: Limit, app: Celery, state: State) -> None:
    app.conf.throttle_lease = lease = 3.0
    with gpu.acquire(app=app) as permit:
        first = state.lease_end(permit.owner)
        until(lambda: state.lease_end(permit.owner) >= first + lease)
        assert not permit.lost
        assert 0 < permit.lease_left <= lease


def test_a_permit_that_lapsed_before_its_loop_went_on_is_lost(
    gpu: Limit, brief: Celery, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outside, "hold", lambda *_: None)  # else it is renewed at once, if it is still free

    async def main() -> bool:
        acquiring = gpu.acquire_async(app=brief)
        wanted = asyncio.ensure_future(acquiring.__aenter__())
        await asyncio.sleep(0)
        until(lambda: state.used)
        time.sleep(1.1)  # noqa: ASYNC251 - longer than the lease
        permit = await wanted
        return permit.lost and not permit.release()

    assert asyncio.run(main())
    state.wait_empty()


def acquired_and_released(limit: Limit, app: Celery) -> bool:
    try:
        limit.acquire(0, app=app).release()
    except NotAcquired:
        return False
    return True


def test_a_renewal_that_another_call_overtook_does_not_count(
    gpu: Limit, brief: Celery, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The permit lapsed before, and the store does not put back a permit that the other call may have ended."""
    monkeypatch.setattr(Outside, "_renew_all", lambda self: setattr(self, "_renewed_at", time.monotonic()))
    permit = gpu.acquire(app=brief)
    until(lambda: permit.lost)
    until(lambda: acquired_and_released(gpu, brief))  # clears ended leases; a waiting call is not renewed
    monkeypatch.setattr(outside_of(brief, None), "_number", 1)
    with pytest.raises(LeaseLost):
        permit.renew()
    monkeypatch.undo()
    assert not permit.release()
    state.wait_empty()


def test_renewal_after_a_release_puts_nothing_back(
    gpu: Limit, app: Celery, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    permit = gpu.acquire(app=app)
    renew = Outside.renew

    def renew_late(*args: Any) -> bool:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(permit.release).result()
        return renew(*args)

    monkeypatch.setattr(Outside, "renew", renew_late)
    with pytest.raises(LeaseLost, match="was released"):
        permit.renew()
    assert state.is_empty()


def test_lost_permit_reports_it(gpu: Limit, brief: Celery, redis: Redis, state: State) -> None:
    def newcomer() -> Celery:
        """Return one that is new to the data, so it does not wait for holders that may put themselves back."""
        made = Celery("newcomer", broker=brief.conf.broker_url)
        made.conf.throttle_lease = brief.conf.throttle_lease
        return made

    def take_over() -> Permit | None:
        redis.flushall()
        with suppress(NotAcquired):  # the holder was faster, and has put itself back
            return gpu.acquire(0, app=newcomer())
        return None

    def lose() -> None:
        with gpu.acquire(app=brief) as permit:
            other = until(take_over)
            until(lambda: permit.lost)
            assert other
            other.release()

    with pytest.raises(LeaseLost, match="'gpu' is not held by"):
        lose()

    def cleared() -> bool:
        gpu.acquire(app=brief).release()  # each call clears ended leases
        return state.is_empty()

    until(cleared)


def test_caller_of_an_emptied_store_first_puts_back_its_permits(
    gpu: Limit, app: Celery, redis: Redis, state: State
) -> None:
    """No connection broke, and another caller came first."""
    newcomer = Celery("newcomer", broker=app.conf.broker_url)
    with gpu.acquire(app=app):
        redis.flushall()
        Limit("other", 1).acquire(app=newcomer).release()
        with pytest.raises(NotAcquired):
            gpu.acquire(0, app=app)
        assert state.used == {"gpu": 1}


def test_idle_holder_puts_its_permit_back_before_new_grants(
    gpu: Limit, shop: Celery, far: Celery, own_state: State
) -> None:
    """Though its lease is long, and it has nothing to say to the store."""
    Limit("other", 1).acquire(app=far).release()  # which is connected to the store, too
    with own_state.client() as client, gpu.acquire(app=shop) as held:
        client.flushall()
        with pytest.raises(NotAcquired):
            gpu.acquire(6, app=far)
        assert not held.lost
        assert own_state.used == {"gpu": 1}


def test_waiting_callers_line_up_again_in_an_emptied_store(
    gpu: Limit, app: Celery, redis: Redis, state: State, pool: ThreadPoolExecutor
) -> None:
    held = gpu.acquire(app=app)
    got = pool.submit(gpu.acquire, HANGS_AFTER, app=app)
    state.wait_parked(1)
    redis.flushall()
    state.wait_parked(1)
    held.release()
    assert got.result(HANGS_AFTER).release()
    state.wait_empty()


def test_a_process_that_is_killed_gives_way(gpu: Limit, app: Celery, state: State, process: Callable[[], Any]) -> None:
    """One that holds, and one that waits: within one lease of theirs."""
    with process() as holder:
        assert [holder.stdout.readline() for _ in range(2)] == ["asks\n", "holds\n"]
        with process() as waiter:
            assert waiter.stdout.readline() == "asks\n"
            state.wait_parked(1)
            waiter.kill()
            waiter.wait()
            holder.kill()
            holder.wait()
            with gpu.acquire(HANGS_AFTER, app=app):
                assert state.used == {"gpu": 1}

    def cleared() -> bool:
        gpu.acquire(app=app).release()  # each call clears ended leases, as the beat task does
        return state.count == 0

    until(cleared)
    state.wait_empty()


def test_reclaimed_permit_is_logged_counted_and_signalled(
    gpu: Limit, app: Celery, process: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As by a worker: the first process that notices the end of a lease reports it."""
    seen: list[str] = []

    def receive(event: signals.PermitReclaimed, **_: object) -> None:
        seen.append(event.task_id)

    signals.permit_reclaimed.connect(receive)
    with process() as holder:
        assert [holder.stdout.readline() for _ in range(2)] == ["asks\n", "holds\n"]
        (held,) = ThrottleControl(app).limit(gpu).holders()
        holder.kill()
        holder.wait()
        gpu.acquire(20, app=app).release()
    assert seen == [held.task_id]
    assert f"Permit of limit gpu reclaimed from task {held.task_id}: worker" in caplog.text
    until(lambda: ThrottleControl(app).limit(gpu).history().total.reclaimed == 1)


def test_a_rate_waits_for_its_start(app: Celery) -> None:
    mail = Limit("mail", rate="20/s")
    with mail.acquire(app=app), mail.acquire(HANGS_AFTER, app=app):
        pass
    slow = Limit("slow", rate="1/d")
    with slow.acquire(app=app), pytest.raises(NotAcquired):
        slow.acquire(0.05, app=app)


def test_a_start_is_booked_in_advance(app: Celery) -> None:
    mail = Limit("mail", rate="1/m", burst=2)
    starts = [mail.reserve(app=app) for _ in range(4)]
    apart = [round((late - early).total_seconds(), 3) for early, late in pairwise(starts[1:])]
    assert apart == [pytest.approx(60, abs=1), 60.0]
    with pytest.raises(NotAcquired, match="more than 5 s away"):
        mail.reserve(max_wait=5, app=app)
    with pytest.raises(ConfigurationError, match="no rate to book"):
        Limit("gpu", 1).reserve(app=app)


def test_task_reports_that_its_start_was_booked(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(app, "send_task", lambda *args, **options: sent.append(options))
    mail = Limit("mail", rate="1/m")

    @app.task(shared=False, base=Throttled, limit=mail)
    def send() -> None: ...

    start = mail.reserve(app=app)
    assert isinstance(start, ReservedStart)
    send.apply_async(eta=start)
    send.apply_async()
    assert [options["headers"][HEADER].get("reserved") for options in sent] == ["mail", None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": -1}, "timeout must be seconds"),
        ({"cost": 0}, "Limit 'gpu': cost must be"),
        ({"key": "a"}, "Limit 'gpu': got key='a': it has no keys, leave key out"),
    ],
)
def test_impossible_calls_are_refused(gpu: Limit, app: Celery, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        gpu.acquire(**options, app=app)
    with pytest.raises(ConfigurationError, match="name the key of the permit"):
        Limit("tenant", 1, key="k").acquire(app=app)


def acquire(limit: Limit, app: Celery, timeout: float | None, *, how: str) -> Any:
    async def main() -> Any:
        return await limit.acquire_async(timeout, app=app)

    return asyncio.run(main()) if how == "asyncio" else limit.acquire(timeout, app=app)


@pytest.mark.parametrize("how", ["threads", "asyncio"])
@pytest.mark.parametrize(("action", "timeout"), [("fail", None), ("hold", 0), ("hold", 0.3), ("run", 0)])
def test_without_a_store_it_does_as_tasks_do(
    how: str, action: str, timeout: float | None, app: Celery, gpu: Limit, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.update(throttle_url="redis://127.0.0.1:1/0", throttle_on_store_error=action)
    if action == "run":
        permits = [acquire(gpu, app, timeout, how=how) for _ in range(3)]
        assert [permit.release() for permit in permits] == [True] * 3
        assert caplog.text.count("permits of limit gpu are not counted while the store is out of reach") == 1
    else:
        with pytest.raises(StoreUnavailable, match="did not answer"):
            acquire(gpu, app, timeout, how=how)


@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_held_until_the_store_is_back(
    how: str, gpu: Limit, far: Celery, relay: Relay, pool: ThreadPoolExecutor
) -> None:
    relay.refuse()
    got = pool.submit(acquire, gpu, far, None, how=how)
    until(lambda: len(relay.attempts) > 1)
    assert not got.done()
    relay.accept()
    assert got.result(HANGS_AFTER).release()


def test_a_store_that_is_away_is_asked_twice_a_second(
    gpu: Limit, shop: Celery, far: Celery, relay: Relay, own_state: State, pool: ThreadPoolExecutor
) -> None:
    with gpu.acquire(app=shop):
        got = pool.submit(gpu.acquire, app=far)
        own_state.wait_parked(1)
        known = len(relay.attempts)
        relay.refuse()
        asked = until(lambda: relay.attempts[known:][4:] and relay.attempts[known:])
        assert asked[4] - asked[1] > 0.75, "three pauses"
        relay.accept()
    assert got.result(HANGS_AFTER).release()


@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_caller_stuck_in_line_gets_a_store_error(
    how: str,
    gpu: Limit,
    shop: Celery,
    own_server: EmbeddedServer,
    own_state: State,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gpu.acquire(app=shop):
        wanted = pool.submit(acquire, gpu, shop, 1.5, how=how)
        own_state.wait_parked(1)
        with monkeypatch.context() as patch:
            patch.setattr(permits, "_ANSWER", 0.3)
            own_server.freeze()
            assert type(wanted.exception(HANGS_AFTER)) is StoreUnavailable
        own_server.thaw()


@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_permit_without_a_waiting_caller_is_given_back(
    how: str,
    gpu: Limit,
    shop: Celery,
    far: Celery,
    relay: Relay,
    own_state: State,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permits, "_ANSWER", 0.3)
    with gpu.acquire(app=shop):
        wanted = pool.submit(acquire, gpu, far, 3, how=how)
        own_state.wait_parked(1)
        until(lambda: relay.quiet_for(0.3))  # it has the answer
        relay.hold_replies()
    until(lambda: own_state.used == {"gpu": 1} and not own_state.count, describe="It does not look.")
    assert type(wanted.exception(HANGS_AFTER)) is StoreUnavailable
    relay.pass_replies()
    own_state.wait_empty()


def test_user_without_a_right_to_hints_looks_now_and_then(
    gpu: Limit, shop: Celery, own_server: EmbeddedServer, own_state: State, pool: ThreadPoolExecutor
) -> None:
    mute = Celery("mute", broker=f"redis://mute:any@127.0.0.1:{own_server.port}/0", set_as_current=False)
    with own_state.client() as client:
        client.execute_command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "resetchannels")
        with gpu.acquire(app=shop):
            got = pool.submit(gpu.acquire, HANGS_AFTER, app=mute)
            own_state.wait_parked(1)
            calls = script_calls(client)
            always(lambda: script_calls(client) - calls < 10, seconds=1)
        assert got.result(HANGS_AFTER).release()
    close(mute)


def test_a_full_store_takes_back_permits_at_once(
    gpu: Limit, shop: Celery, own_state: State, pool: ThreadPoolExecutor
) -> None:
    """Though it has no room for callers in the same process that want to get in line."""
    enough = 12
    released: list[bool] = []

    def work() -> None:
        while len(released) < enough:
            try:
                permit = gpu.acquire(0.01, app=shop)
            except (StoreUnavailable, NotAcquired):
                continue
            released.append(permit.release())

    with own_state.client() as client:
        with gpu.acquire(app=shop):
            client.config_set("maxmemory", 1)
            with pytest.raises(StoreUnavailable, match="maxmemory"):
                gpu.acquire(0.1, app=shop)
        for worked in [pool.submit(work) for _ in range(4)]:
            worked.result(HANGS_AFTER)
        assert own_state.is_empty()
        assert all(released)
        with gpu.acquire(0, app=shop):
            client.config_set("maxmemory", 0)


@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_a_permit_is_for_one_block(how: str, gpu: Limit, app: Celery, state: State) -> None:
    """Every block's end releases it, so that the rest of an outer one, or a second one, would hold nothing."""

    async def main() -> None:
        permit = await gpu.acquire_async(app=app)
        with permit:
            with pytest.raises(ConfigurationError, match="'gpu' is in a with block already"), permit:
                pytest.fail("inner")
            assert state.used == {"gpu": 1}
        with pytest.raises(LeaseLost, match="was released, and is not held in this block: acquire it again"), permit:
            pytest.fail("second")

    if how == "asyncio":
        asyncio.run(main())
    else:
        permit = gpu.acquire(app=app)
        permit.release()
        with pytest.raises(LeaseLost, match="was released"), permit:
            pytest.fail("released")
    state.wait_empty()


def test_a_lost_permit_begins_no_block(gpu: Limit, app: Celery) -> None:
    permit = gpu.acquire(app=app)
    permit._lose()
    with pytest.raises(LeaseLost, match="not held"), permit:
        pytest.fail("lost")


def test_coroutine_never_awaited_is_warned_of(gpu: Limit, app: Celery, state: State) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"acquire_async\(\) was never awaited, so no permit was taken: write async"
    ):
        gpu.acquire_async(app=app)
    assert state.is_empty()


_FORKS = """
import os, sys
from celery import Celery
from celery_throttle import ConfigurationError, Limit
app = Celery(broker=sys.argv[1])
gpu = Limit("gpu", 1)
def enter():
    with other: print("runs without a permit", flush=True)
other = Limit("other", 1).acquire(app=app)
with gpu.acquire(app=app) as permit:
    child = os.fork()
    if not child:
        for use in (permit.release, permit.renew, enter):
            try:
                use()
            except ConfigurationError as error:
                print(error, flush=True)
if not child:
    print("left the block", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("released", flush=True)
"""


def test_a_permit_stays_with_the_process_that_took_it(server: EmbeddedServer, state: State) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FORKS, server.url], capture_output=True, text=True, timeout=HANGS_AFTER, check=False
    )
    said = ran.stdout.splitlines()
    assert [line.partition(" belongs to process ")[0] for line in said[:3]] == [
        "This permit of 'gpu'", "This permit of 'gpu'", "This permit of 'other'",
    ], ran  # fmt: skip
    assert said[3:] == ["left the block", "released"], ran
    state.wait_empty()


_ENDS = """
import sys, threading
from celery import Celery
from celery_throttle import Limit
app = Celery(broker=sys.argv[1])
permit = Limit("gpu", 1).acquire(app=app)
threading.Thread(target=lambda: Limit("gpu", 1).acquire(app=app), daemon=True).start()
sys.stdin.readline()
sys.exit(sys.argv[2])
"""


def test_normal_end_of_a_program_gives_back_its_permits(server: EmbeddedServer, state: State) -> None:
    """And its places in line; both would last for a lease."""
    command = [sys.executable, "-c", _ENDS, server.url, "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as program:
        state.wait_parked(1)
        program.communicate("\n")
    assert state.is_empty()


def test_a_program_ends_though_its_store_is_away(own_server: EmbeddedServer, own_state: State) -> None:
    command = [sys.executable, "-c", _ENDS, own_server.url, "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as program:
        own_state.wait_parked(1)
        own_server.freeze()
        program.communicate("\n", timeout=HANGS_AFTER)
        own_server.thaw()


_GOES_ON = """
import sys, threading
from celery import Celery
from celery_throttle import Limit
app = Celery(broker=sys.argv[1])
began = threading.Event()
def use() -> None:
    while True:
        with Limit("gpu", 1).acquire(app=app):
            began.set()
threading.Thread(target=use, daemon=True).start()
began.wait()
"""


def test_permit_that_no_thread_has_taken_goes_back_at_the_end(shop: Celery, own_state: State) -> None:
    outside = outside_of(shop, None)
    asking = outside.ask("1:gpu", ("gpu", "1"), waits=False)
    assert asking.permit.result(HANGS_AFTER)
    outside.end()
    until(lambda: outside.is_idle)
    outside.hold(asking.arrival, weakref.WeakMethod(_Caller().renewed))
    assert own_state.is_empty()


class _Caller:
    def renewed(self, began: float | None) -> None:
        """Take no notice."""


def test_thread_gets_no_permit_at_the_end_of_its_program(server: EmbeddedServer, state: State) -> None:
    subprocess.run([sys.executable, "-c", _GOES_ON, server.url], capture_output=True, check=True)
    assert state.is_empty()
