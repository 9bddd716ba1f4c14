"""The end of a run: for all facts together, the script follows the table in facts_table.py."""

from __future__ import annotations

import json
from itertools import product
from typing import NamedTuple

import pytest
from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Grant
from tests.store.caller import message_of
from tests.store.facts_table import LockOutcome, comes_back, lock_outcome, second_goes_on
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import Snapshot, check, let_come_due, peek
from tests.store.steering import Steering
from tests.store.terms_caller import terms

MAIL = Limit("mail", 9, rate="1/d", burst=2)
PLAN = plan_of(remember=600.0)
#: The end of the lock of this plan, which was claimed once more while its task ran.
STATES = {
    LockOutcome.SUCCESS: "done",
    LockOutcome.FAILURE: None,
    LockOutcome.WAITS: "queued",
    LockOutcome.LOST: "queued",
    LockOutcome.NOTHING: None,
}


class Case(NamedTuple):
    """The state of the store beside the run."""

    stored: bool
    second: int | None
    locked: bool


CASES = [Case(*each) for each in product((False, True), (None, 0, 1), (False, True))]


@pytest.mark.parametrize("result", Result)
@pytest.mark.parametrize("message", Message)
@pytest.mark.parametrize("began", [False, True])
def test_end_follows_the_table(redis: Redis, began: bool, message: Message, result: Result) -> None:
    facts = Facts(began, message, result)
    for case in CASES:
        redis.flushall()
        ends(redis, facts, case)


def ends(redis: Redis, facts: Facts, case: Case) -> None:
    """Start a run, end it with these facts, and look at the state then."""
    worker, peer = LockCaller(redis, "aaaaaaaa", "q"), LockCaller(redis, "bbbbbbbb", "q2")
    mail, spec = terms(MAIL).same, PLAN.spec if case.locked else ""
    run: Arrival | Grant
    if case.locked:
        worker.claim("t", PLAN)
    if case.stored:
        (run,) = worker.put("t", mail, lock=spec, slots=1).grants
    else:
        run = worker.arrival("t", mail, lock=spec)
        worker.exchange(asked=[run])
    worker.look(0)  # its parked messages are acknowledged
    if case.second is not None:
        peer.put("t", mail, attempt=case.second, lock=spec)
        peer.look(0)
    if case.locked:
        worker.claim("t", PLAN)
    worker.release(run, facts)
    store = peek(redis)
    check(store)
    assert (store.used, store.leases) == ({}, {}), case
    assert Steering(redis).stands(MAIL).next_start_in == 0, case
    assert ("by" in rates(store)) == facts.began, f"{case}: the start is free again"
    follows(store, facts, case)


def follows(store: Snapshot, facts: Facts, case: Case) -> None:
    back = comes_back(facts, stored=case.stored)
    goes_on = not back and case.second is not None and second_goes_on(facts, later_attempt=case.second > 0)
    if back:
        assert (store.messages, store.parked["t"].attempt) == ({"t": message_of("t")}, 0), case
        assert (case.second is not None) == ("t" in store.seconds), case
    elif goes_on:
        assert case.second is not None
        assert store.messages == {"t": message_of("t", case.second)}, case
        assert (store.parked["t"].queue, store.seconds) == ("q2", {}), case
    else:
        assert (store.records, store.messages, store.seconds) == ({}, {}, {}), case
    ran = not back and facts.message is Message.BROKER and facts.result is not Result.NOTHING
    assert ("0 t" in store.finished) == ran, case
    if case.locked:
        lock = store.live_lock()
        outcome = LockOutcome.WAITS if back else lock_outcome(facts, goes_on=goes_on)
        assert (lock["state"] if lock else None) == STATES[outcome], (case, outcome)


def rates(store: Snapshot) -> str:
    return store.hashes["rates"]["mail"].decode()


def test_stored_message_keeps_the_place_in_it(redis: Redis) -> None:
    """Its own, behind all others, or before them; only begun tasks count as delivered."""
    gpu = Limit("gpu", 1)
    cases = {
        Facts(True, Message.PLACE): (["t", "u"], 1),
        Facts(False, Message.PLACE): (["t", "u"], 0),
        Facts(True, Message.LOST): (["t", "u"], 1),
        Facts(True, Message.TAIL): (["u", "t"], 1),
        Facts(True, Message.HEAD): (["t", "u"], 0),
    }
    for facts, (order, deliveries) in cases.items():
        redis.flushall()
        worker = LockCaller(redis, "aaaaaaaa", "q")
        (run,) = worker.put("t", gpu, slots=1).grants
        worker.put("u", gpu)
        worker.release(run, facts)
        let_come_due(redis, "task")
        worker.look(0)
        store = peek(redis)
        assert (store.waiting("gpu"), store.parked["t"].deliveries) == (order, deliveries), facts


@pytest.mark.parametrize("message", [Message.PLACE, Message.TAIL, Message.LOST])
def test_begun_task_pauses_before_each_begin_and_is_set_aside_after_the_last(redis: Redis, message: Message) -> None:
    """After 1 s, 2 s, 4 s and 8 s, whatever brought it back; its lock is free then."""
    worker = LockCaller(redis, "aaaaaaaa", "q")
    mail = terms(Limit("mail", 9)).same
    worker.claim("t", PLAN)
    grants = worker.put("t", mail, lock=PLAN.spec, slots=1).grants
    pauses = []
    for begun in range(1, 6):
        (run,) = grants
        worker.release(run, Facts(True, message))
        store = peek(redis)
        check(store)
        assert not worker.look(1).grants
        if begun < 5:
            assert store.parked["t"].deliveries == begun
            pauses.append((store.due("task")["t"] - store.now) / 1000)
            let_come_due(redis, "task")
            grants = worker.look(1).grants

    assert pauses == [pytest.approx(pause, abs=0.9) for pause in (1, 2, 4, 8)]
    assert (store.records, store.used, store.live_lock()) == ({}, {}, None)
    assert store.messages == {"t": message_of("t")}
    assert json.loads(store.hashes["aside"]["t"])["why"] == "begun 5 times without an outcome"


def test_task_that_has_not_begun_goes_back_without_a_pause(redis: Redis) -> None:
    worker = LockCaller(redis, "aaaaaaaa", "q")
    grants = worker.put("t", terms(Limit("mail", 9)).same, slots=1).grants
    for _ in range(9):
        (run,) = grants
        worker.release(run, Facts(False, Message.PLACE))
        grants = worker.look(1).grants
