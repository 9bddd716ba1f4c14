"""Sites: limits with ``per``, tags, and needs that are bound to the sites of a worker."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Policy
from celery_throttle.core.sites import Sites, read_tags
from celery_throttle.errors import ConfigurationError

GPU = Limit("gpu", 2, per="host")
HERE = Sites({"host": "a7", "worker": "w1@a7"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"permits": 2, "per": ""},
            "Limit 'x': per must be 'host', 'worker' or the name of a tag, got '': write per='host'",
        ),
        ({"permits": 2, "per": "a b"}, "got 'a b'"),
        ({"permits": 2, "per": 1}, "got 1"),
        ({"permits": 2, "per": "host", "key": "tenant"}, "cannot have key beside it: give the task two limits"),
        ({"permits": 2, "per": "host", "rate": "1/s"}, "cannot have rate beside it"),
        ({"share": 0.5}, "share is of each worker's pool: write per='worker' beside it"),
        ({"share": 0.5, "per": "host"}, "write per='worker' beside it"),
        ({"share": 1.5, "per": "worker"}, "share must be a number above 0, 1 at most, got 1.5: write share=0.5"),
        ({"share": True, "per": "worker"}, "got True"),
        ({"share": 0, "per": "worker"}, "got 0"),
        ({"share": 0.5, "key": "tenant"}, "share is of each worker's pool"),
        ({"share": 0.5, "permits": 2, "per": "worker"}, "share=0.5 stands instead of a number: leave one out"),
        ({"per": "host"}, "neither a number nor a rate"),
    ],
)
def test_a_limit_that_cannot_work(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Limit("x", **options)


def test_needs_are_bound_to_the_sites_of_a_worker() -> None:
    open_needs = Policy((GPU, Limit("api", 8)), cost=2).same
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
        (GPU.bucket(None), "gpu[any host]"),
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
