"""Tasks that were parked, and whose message the broker may have all the same: they do not run twice."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Delivery
from celery_throttle.store.exchange_reply import Answer
from tests.store.caller import Caller, ended, held_by, started
from tests.store.peek import KEY, lapse, peek


def run_elsewhere(worker: Caller, peer: Caller, one: Limit, how: str = "done") -> None:
    """Park a task with a worker that then stays silent; another one runs it."""
    worker.put("t", one)
    (grant,) = peer.look().grants
    peer.release(grant, how)


@pytest.mark.parametrize("how", ["done", "failed", "retry"])
def test_task_of_a_lost_worker_that_ran_elsewhere_has_run(worker: Caller, peer: Caller, one: Limit, how: str) -> None:
    """The worker was killed before it acknowledged the message: the broker delivers it again."""
    run_elsewhere(worker, peer, one, how)
    assert peer.ask("t", one)[0] == Answer.HAS_RUN
    assert peer.put("t", one).parked == (Answer.HAS_RUN,)


def test_replaced_task_has_given_its_id_to_another(worker: Caller, peer: Caller, one: Limit) -> None:
    """`self.replace` ignores the task; the last of a chain that comes instead has its id, and its attempt."""
    run_elsewhere(worker, peer, one, "ignored")
    peer.take("t", one)


def test_its_retry_runs(worker: Caller, peer: Caller, one: Limit) -> None:
    """That is another attempt."""
    run_elsewhere(worker, peer, one, "retry")
    peer.take("t", one, attempt=1)


def test_retry_is_on_record_though_its_first_attempt_comes_again(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The worker was killed before it acknowledged either of them."""
    worker.put("t", one, attempt=1)
    (grant,) = peer.look().grants
    peer.release(grant)
    assert peer.put("t", one).parked == (Answer.PARKED,)
    assert peer.put("t", one, attempt=1).parked == (Answer.HAS_RUN,)
    assert peek(redis).records["t"].attempt == 0


def test_it_is_forgotten_when_its_worker_calls_again(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """It has acknowledged its parked message; the same id may be published again."""
    run_elsewhere(worker, peer, one)
    assert "0 t" in peek(redis).finished
    worker.look()
    assert not peek(redis).finished
    assert "records:t" not in peek(redis).sets["ends"]
    peer.take("t", one)


def test_run_is_forgotten_when_its_worker_signs_off(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """Before that it has reported its unacknowledged messages."""
    run_elsewhere(worker, peer, one)
    worker.leave()
    assert not peek(redis).finished


def test_run_after_the_next_call_of_its_worker_leaves_no_trace(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    worker.put("t", one)
    worker.look(0)
    (grant,) = peer.look().grants
    peer.release(grant)
    assert not peek(redis).finished


def test_unacknowledged_task_is_on_record_for_any_later_run(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The broker's connection broke in between: reported with the next call, it is kept."""
    worker.put("t", one)
    worker.exchange(unacked=worker.parcelled("t"))
    (grant,) = peer.look().grants
    peer.release(grant)
    assert "0 t" in peek(redis).finished
    assert peer.ask("t", one)[0] == Answer.HAS_RUN


def test_unacknowledged_task_run_by_its_own_worker_is_on_record(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Its next call reports both: the broker has it still, and it has ended; a full store refused one before."""
    (grant,) = worker.put("t", one, slots=1).grants
    worker.number += 1
    worker.exchange(unacked=worker.parcelled("t"), ended=[ended(grant)])
    assert "0 t" in peek(redis).finished
    assert peer.put("t", one).parked == (Answer.HAS_RUN,)


def test_unacknowledged_task_that_has_run_is_on_record(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    run_elsewhere(worker, peer, one)
    worker.exchange(unacked=worker.parcelled("t"))
    assert "0 t" in peek(redis).finished
    worker.look()
    assert peer.ask("t", one)[0] == Answer.HAS_RUN


def test_own_run_of_a_worker_before_its_acknowledgement(worker: Caller, one: Limit, redis: Redis) -> None:
    """The call that reports the run also confirms all earlier acknowledgements."""
    (grant,) = worker.put("t", one, slots=1).grants
    worker.release(grant)
    assert not peek(redis).finished


def test_task_that_never_began_has_not_run_when_it_comes_again(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    worker.put("t", one)
    (grant,) = peer.look().grants
    peer.release(grant, Facts(began=False, message=Message.BROKER))
    assert not peek(redis).finished
    peer.take("t", one)


def test_outcome_is_on_record_until_its_message_is_acknowledged(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """That it was revoked, is a duplicate, has expired: it must not run when it comes again."""
    worker.put("t", one)
    (grant,) = peer.look().grants
    peer.release(grant, "never")
    assert peer.ask("t", one)[0] == Answer.HAS_RUN
    peer.look()
    worker.look()
    assert not peek(redis).finished


def test_a_run_whose_message_the_broker_has_is_not_repeated(worker: Caller, peer: Caller, one: Limit) -> None:
    """It could not be acknowledged: its connection was gone when it ended."""
    held = worker.take("t", one)
    worker.release(held, Facts(True, Message.BROKER, Result.SUCCESS))
    assert peer.ask("t", one)[0] == Answer.HAS_RUN


def test_a_run_that_came_to_nothing_is_repeated(worker: Caller, peer: Caller, one: Limit) -> None:
    held = worker.take("t", one)
    worker.release(held, "again")
    peer.take("t", one)


def test_run_is_forgotten_after_a_day(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    run_elsewhere(worker, peer, one)
    store = peek(redis)
    assert store.sets["ends"]["records:t"] == pytest.approx(store.now + 86_400_000, abs=60_000)
    lapse(redis, "records:t")
    peer.reap()
    assert not peek(redis).finished


def test_parked_task_of_a_forgotten_worker(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """It was killed, and a day has passed: nothing is to come of it any more."""
    worker.put("t", one)
    redis.hdel(KEY["workers"], worker.name)
    (grant,) = peer.look().grants
    peer.release(grant)
    assert started(peer.look()) == ()


def test_a_call_that_parks_and_is_sent_again_confirms_nothing(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The repeated call is identical: its parked messages are not acknowledged yet."""
    run_elsewhere(worker, peer, one)
    worker.again()
    assert "0 t" in peek(redis).finished


def test_delivery_parked_beside_a_run_is_on_record_too(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """The second delivery was parked by a worker that never came back, and ran after the first had died."""
    held = worker.take("t", one)
    peer.put("t", one)
    (second,) = worker.release(held, "again", slots=1).grants
    worker.release(second)
    assert "0 t" in peek(redis).finished
    assert worker.ask("t", one)[0] == Answer.HAS_RUN


def test_needless_delivery_is_on_record_until_acknowledged(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The worker that parked it may have been killed before that."""
    held = worker.take("t", one)
    peer.put("t", one)
    worker.release(held)
    assert worker.ask("t", one)[0] == Answer.HAS_RUN
    for each in (worker, peer):
        each.look(0)
    assert not peek(redis).finished


def test_task_sent_back_twice_by_a_refused_call_runs_once(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The copy was on its way when the store refused the call for lack of memory, and came when it had some again."""
    held = worker.take("t", one)
    worker.send_back(held, 0.0)
    (grant,) = peer.look().grants
    peer.release(grant)
    back = held._replace(message=b"again", pause=(0.0, held.needs))
    assert not worker.exchange(slots=1, unacked=[Delivery("t", 0, held.nonce)], back=[back]).grants
    assert "t" not in peek(redis).records


def test_task_that_was_sent_back_and_ran_leaves_no_trace(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    worker.send_back(worker.take("t", one), 0.0)
    (grant,) = peer.look().grants
    peer.release(grant)
    assert "0 t" in peek(redis).finished  # its worker may have died before it acknowledged the message
    worker.look(0)
    assert not peek(redis).finished


def test_return_covers_no_message_parked_by_another(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """Which has not acknowledged the message yet."""
    worker.put("t", one)
    (grant,) = peer.look().grants
    peer.send_back(held_by(grant), 0.0)
    (again,) = peer.look().grants
    peer.release(again)
    assert "0 t" in peek(redis).finished
    worker.look(0)
    assert not peek(redis).finished


def test_unacknowledged_delivery_beside_a_run_is_on_record(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """The retry of a task whose end the store does not have yet; it is not the run that was not acknowledged."""
    held = worker.take("t", one)
    peer.put("t", one, attempt=1)
    peer.exchange(unacked=peer.parcelled("t"))
    (grant,) = worker.release(held, "retry", slots=1).grants
    worker.release(grant)
    assert peek(redis).finished.keys() == {"1 t"}
    assert peer.ask("t", one, attempt=1)[0] == Answer.HAS_RUN


def test_unacknowledged_second_delivery_is_on_record(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """It goes on, since nothing came of the first one."""
    held = worker.take("t", one)
    peer.put("t", one)
    peer.exchange(unacked=peer.parcelled("t"))
    (grant,) = worker.release(held, "ignored", slots=1).grants
    worker.release(grant)
    assert peek(redis).finished.keys() == {"0 t"}


def test_attempt_with_a_retry_does_not_come_again(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """An attempt that could not be acknowledged, and of which there was another delivery that has run."""
    worker.take("first", one)
    worker.put("t", one)
    peer.put("t", one, attempt=1)
    worker.exchange(unacked=worker.parcelled("t"))
    assert peek(redis).finished.keys() == {"0 t"}
    assert not peek(redis).records["t"].unacked


def test_attempt_with_a_retry_is_kept_by_the_broker(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    worker.take("first", one)
    worker.put("t", one, unacked=True)
    peer.put("t", one, attempt=1, unacked=True)
    assert peek(redis).finished.keys() == {"0 t"}
    assert peek(redis).records["t"].unacked == {each.nonce for each in peer.parcelled("t")}
    worker.exchange(acked=worker.parcelled("t"))
    assert not peek(redis).finished


def test_attempt_with_a_retry_was_acknowledged_before(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.take("first", one)
    worker.put("t", one)
    worker.put("t", one, attempt=1)
    assert not peek(redis).finished


def test_attempt_with_a_retry_beside_a_run_is_kept_by_the_broker(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    held = worker.take("t", one)
    worker.put("t", one, unacked=True)
    peer.put("t", one, attempt=1, unacked=True)
    assert peek(redis).finished.keys() == {"0 t"}
    (grant,) = worker.release(held, "retry", slots=1).grants
    worker.release(grant)
    assert peer.ask("t", one)[0] == Answer.HAS_RUN
    assert peer.ask("t", one, attempt=1)[0] == Answer.HAS_RUN


def test_only_tasks_parked_with_the_last_call_are_acknowledged(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """Another copy of the message ran elsewhere, and its own delivery of it the broker has taken back."""
    worker.put("t", one)
    peer.withdraw("t")
    peer.release(peer.take("t", one), Facts(began=True, message=Message.BROKER, result=Result.SUCCESS))
    assert worker.put("t", one).parked == (Answer.HAS_RUN,)
    assert "0 t" in peek(redis).finished


@pytest.mark.parametrize("asks", [True, False])
def test_first_parking_covers_no_other_delivery(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, asks: bool
) -> None:
    """Whose worker is killed before it acknowledges that message: the broker delivers it again."""
    first = worker.take("first", one)
    worker.put("t", one)
    answer = peer.ask("t", one)[0] if asks else peer.put("t", one).parked[0]
    assert answer == Answer.PARKED
    (grant,) = worker.release(first, slots=1).grants
    worker.release(grant)
    worker.look(0)
    assert worker.put("t", one).parked == (Answer.HAS_RUN,)
    worker.look(0)
    assert peek(redis).finished
    peer.look(0)
    assert not peek(redis).finished


@pytest.mark.parametrize("attempt", [0, 1])
def test_delivery_beside_a_run_covers_no_other_delivery(worker: Caller, peer: Caller, one: Limit, attempt: int) -> None:
    """The same, or one of an attempt that it has taken the place of."""
    held = worker.take("t", one)
    worker.put("t", one, attempt=attempt)
    peer.put("t", one)
    (grant,) = worker.release(held, "retry" if attempt else "again", slots=1).grants
    worker.release(grant)
    worker.look(0)
    assert worker.put("t", one).parked == (Answer.HAS_RUN,)


def test_two_deliveries_beside_a_late_run_cover_only_themselves(worker: Caller, peer: Caller, one: Limit) -> None:
    """One was parked and one waited beside its run, which went back; and a third delivery runs since long ago."""
    peer.put("t", one)
    (grant,) = worker.look().grants
    worker.put("t", one)
    worker.release(grant, "return")
    third = worker.arrival("t", one)
    assert worker.renew(third) == [2]
    worker.release(third)
    worker.look(0)
    assert worker.put("t", one).parked == (Answer.HAS_RUN,)


@pytest.mark.parametrize("asks", [True, False])
def test_delivery_of_a_finished_task_is_on_record_for_a_call(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, asks: bool
) -> None:
    """Its worker gets the outcome, and is killed before it acknowledges that message."""
    run_elsewhere(worker, peer, one)
    answer = peer.ask("t", one)[0] if asks else peer.put("t", one).parked[0]
    assert answer == Answer.HAS_RUN
    worker.look(0)
    assert worker.put("t", one).parked == (Answer.HAS_RUN,)
    worker.look(0)
    peer.look(0)
    assert not peek(redis).finished
