"""Valid and invalid limits, and their sites: limits with ``per``, tags, and needs bound to the sites of a worker."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.declaration import described
from celery_throttle.core.limits import MOST_STEP, Limit
from celery_throttle.core.policy import Policy, limits_text, needs_text
from celery_throttle.core.sites import Sites, read_tags
from celery_throttle.errors import ConfigurationError
from tests.unit.refusals import message_of, rows

#: Control characters in a name separate the parts of a place in line.
REFUSED = rows(r"""
Limit() => Limit needs name: it takes name, permits, key, rate, burst, fair_by, weights, max_parked, group
Limit('', 1) => Limit name must be 1 to 200 printable characters, got '': write name='gpu'
Limit('n' * 201, 1) => Limit name must be 1 to 200 printable characters
Limit('a\0b', 1) => Limit name must be
Limit('a\n', 1) => Limit name must be
Limit(None, 1) => Limit name must be
Limit('gpu') => Limit 'gpu' has neither a number nor a rate: write Limit('gpu', 4) or Limit('gpu', rate=
Limit('gpu', '4') => Limit 'gpu': permits must be a whole number from 1 to 999999999, got '4': write permits=4
Limit('gpu', '100/m') => permits must be a whole number, got '100/m': write Limit('gpu', rate='100/m')
Limit('gpu', 1.0) => Limit 'gpu': permits must be a whole number from 1 to 999999999, got 1.0
Limit('gpu', 0) => Limit 'gpu': permits must be a whole number from 1 to 999999999, got 0
Limit('gpu', 10**9) => got 1000000000: write permits=4
Limit('gpu', True) => got True
Limit('gpu', 4, burst=3) => Limit 'gpu': burst needs a rate beside it: write rate='100/m', burst=10
Limit('gpu', rate='5/x') => Limit 'gpu': rate: A rate is text such as '100/m'
Limit('gpu', limit=4) => Limit 'gpu' takes no limit=4: write Limit('gpu', 4)
Limit('gpu', 4, 'order_id') => Limit 'gpu' takes 'order_id' by its name alone: write key='order_id'
Limit('gpu', 4, fairby='a') => Limit 'gpu' takes no fairby='a': did you mean fair_by=?
Limit('gpu', 4, cost=2) => takes no cost=2: set it on the task, @app.task(base=Throttled, limit=Limit(
Limit('gpu', 4, lease=60) => takes no lease=60: set throttle_lease
Limit('gpu', 4, colour=1) => takes no colour=1: it takes name, permits, key, rate
Limit('gpu', 4, group='a:b') => group must be text without colons, got 'a:b': write group='eu'
Limit('gpu', 4, key='a..b') => got 'a..b': write key='a.b'
# -- per, share
Limit('x', 2, per='') => Limit 'x': per must be 'host', 'worker' or the name of a tag, got '': write per='host'
Limit('x', 2, per=1) => got 1
Limit('x', 2, per='a b') => got 'a b'
Limit('x', 2, per='host', key='tenant') => cannot have key beside it: give the task two limits
Limit('x', 2, per='host', rate='1/s') => cannot have rate beside it
Limit('x', share=0.5) => share is of each worker's pool: write per='worker' beside it
Limit('x', share=0.5, per='host') => write per='worker' beside it
Limit('x', share=1.5, per='worker') => share must be a number above 0, 1 at most, got 1.5: write share=0.5
Limit('x', share=True, per='worker') => got True
Limit('x', share=0, per='worker') => got 0
Limit('x', 2, share=0.5, per='worker') => share=0.5 stands instead of a number: leave one out
Limit('x', per='host') => neither a number nor a rate
""")


@pytest.mark.parametrize(("code", "said"), REFUSED)
def test_a_limit_that_cannot_work_is_refused(code: str, said: str) -> None:
    assert said in message_of(lambda: eval(code))


def test_internal_error_is_not_reported_as_a_mistake() -> None:
    class Odd(Limit):
        @property
        def rates(self) -> Any:
            raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        Odd("gpu", 4)


@pytest.mark.parametrize("name", ["a b", "é", "{x}:*", "n" * 200])
def test_any_printable_name_will_do(name: str) -> None:
    assert Limit(name, 1).name == name


def test_equal_limits_are_the_same_limit_and_do_not_change() -> None:
    """Several tasks share it."""
    gpu = Limit("gpu", 4)
    assert {gpu, Limit("gpu", 4)} == {gpu}
    assert gpu != Limit("gpu", 5)
    with pytest.raises(FrozenInstanceError):
        gpu.permits = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (Limit("gpu", 4), "4"),
        (Limit("mail", rate="100/m"), "100/m (burst 1)"),
        (Limit("api", 8, rate=["10/s", "5000/h"], burst=[1, 500]), "8, 10/s (burst 1), 5000/h (burst 500)"),
        (Limit("few", 2, max_parked=9), "2, max_parked=9"),
        (Limit("gpu", 2, per="host"), "2 on each host"),
        (Limit("thumbs", share=0.5, per="worker"), "0.5 of each worker"),
    ],
)
def test_a_declaration_for_people(limit: Limit, said: str) -> None:
    assert described(limit.declared) == said


def test_the_limits_of_a_task_for_people() -> None:
    gpu, acme = Bucket("gpu"), Bucket("tenant", "acme")
    assert limits_text(needs_text([(acme, 1), (gpu, 2)], booked=gpu)) == "tenant[acme], gpu"
    assert limits_text("") == ""


@pytest.mark.parametrize(
    "weights",
    [{"a": 3, "b": 2}, {"a": 97, "b": 89, "c": 83, "d": 79, "e": 73, "f": 71, "g": 67, "h": 61, "i": 59}, {"a": 1000}],
)
def test_turns_are_in_proportion_to_weights(weights: dict[str, int]) -> None:
    limit = Limit("api", 1, fair_by="who", weights=weights)
    one = limit.step("another")
    assert one <= MOST_STEP
    for who, weight in weights.items():
        assert isinstance(limit.step(who), int)
        assert one / limit.step(who) == pytest.approx(weight, rel=0.005)


@pytest.mark.parametrize(("step", "carried"), [(1, True), (MOST_STEP, True), (MOST_STEP + 1, False), (0, False)])
def test_a_message_cannot_make_a_turn_too_long(step: int, carried: bool) -> None:
    """Else its worker computes the needs of the call itself."""
    assert (Policy((Limit("api", 1, fair_by="who"),)).carried({"fair": ["a", step]}) is not None) is carried


@pytest.mark.parametrize(
    "text",
    [
        "Limit('gpu', 4)",
        "Limit('mail', rate='100/m', burst=10)",
        "Limit('tenant', 2, key='tenant_id', max_parked=5, group='eu')",
        "Limit('api', 8, fair_by='tenant_id', weights={'gold': 3})",
    ],
)
def test_it_is_shown_as_it_is_written(text: str) -> None:
    assert repr(eval(text)) == text


# -- sites -------------------------------------------------------------------------------------------------------------

PER_HOST = Limit("gpu", 2, per="host")
HERE = Sites({"host": "a7", "worker": "w1@a7"})


def test_needs_are_bound_to_the_sites_of_a_worker() -> None:
    open_needs = Policy((PER_HOST, Limit("api", 8)), cost=2).same
    bound = open_needs.bound(HERE)
    assert bound.text == "2:gpu\x1f\x1dhost=a7\x012:api"
    assert bound.buckets == ("gpu\x1f\x1dhost=a7", "api")
    assert not bound.elsewhere
    assert bound.bound(HERE) == bound


def test_needs_without_a_site_here_wait_for_other_workers() -> None:
    needs = Policy((Limit("box", 1, per="gpu_box"),)).same.bound(HERE)
    assert needs.elsewhere
    assert needs.waits_in(frozenset())
    assert needs.lacks == "gpu_box"


def test_needs_of_other_limits_stay_as_they_are() -> None:
    needs = Policy((Limit("tenant", 1, key="t"),)).needs({"keys": {"tenant": "a=b"}})
    assert needs.bound(HERE) is needs


@pytest.mark.parametrize(
    ("bucket", "shown"),
    [
        (PER_HOST.bucket(None), "gpu[any host]"),
        (Bucket.parse("gpu\x1f\x1dhost=a7"), "gpu[host=a7]"),
        (Bucket("tenant", "acme"), "tenant[acme]"),
        (Bucket("api"), "api"),
    ],
)
def test_a_site_for_people(bucket: Bucket, shown: str) -> None:
    assert str(bucket) == shown


@pytest.mark.parametrize(
    ("hint", "counts"),
    [("host", True), ("host=a7", True), ("host=a8", False), ("gpu_box", False), ("worker=w1@a7", True)],
)
def test_hints_for_sites(hint: str, *, counts: bool) -> None:
    assert HERE.has(hint) is counts


def test_tags_as_text_and_as_a_dict() -> None:
    assert read_tags("THROTTLE_TAGS", "gpu_box=a7, rack = 3,") == {"gpu_box": "a7", "rack": "3"}
    assert read_tags("throttle_tags", {"host": "node-1"}) == {"host": "node-1"}
    assert read_tags("THROTTLE_TAGS", "") == {}


@pytest.mark.parametrize(
    "given", ["gpu_box", "gpu_box=", "=a7", "worker=w1", 5, {"a b": "x"}, {"gpu": 5}, {"gpu": "a\nb"}]
)
def test_tags_that_cannot_work(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^throttle_tags"):
        read_tags("throttle_tags", given)


@pytest.mark.parametrize(("given", "fix"), [("a b=a7", r"write gpu_box=a7$"), ({"a b": "a7"}, r"write \{'gpu_box'")])
def test_a_wrong_tag_is_mended_in_the_form_that_it_has(given: object, fix: str) -> None:
    with pytest.raises(ConfigurationError, match=fix):
        read_tags("THROTTLE_TAGS", given)
