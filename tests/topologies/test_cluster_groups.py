"""Groups of limits whose places are on different nodes of a cluster."""

from __future__ import annotations

from itertools import count

import pytest

from celery_throttle import Limit, NotAcquired, ThrottleControl
from celery_throttle.control.checks import diagnose
from tests.support.clusters import PRIMARIES, SLOTS, Cluster, ask, slot_of
from tests.support.journal import Journal
from tests.support.workers import Workers

GROUPS = "tests.support.apps.groups"
TASKS = ("in_eu", "in_us", "anywhere")


def scattered() -> str:
    """A prefix whose three groups are on three nodes."""
    share = SLOTS // PRIMARIES + 1
    for number in count():
        prefix = f"shop{number}"
        if len({slot_of(place) // share for place in (prefix, f"{prefix}:eu", f"{prefix}:us")}) == PRIMARIES:
            return prefix
    raise AssertionError


def test_each_group_is_on_its_own_node(cluster: Cluster, workers: Workers, journal: Journal) -> None:
    """Until its data is removed."""
    prefix = scattered()
    workers.conf |= {"throttle_url": cluster.url, "throttle_prefix": prefix}
    app = workers.start_app(GROUPS, count=2, concurrency=8)
    for task in TASKS:
        for number in range(4):
            getattr(app, task).delay(f"{task}{number}")
    journal.wait_running(4)
    primaries = [node for node in cluster.nodes if b"role:master" in ask(node, "INFO", "replication")]
    used = [ask(node, "KEYS", f"{{{prefix}*:used") for node in primaries]
    assert sorted(len(keys) for keys in used) == [1] * PRIMARIES
    throttle = ThrottleControl(app.app)
    assert {status.name: status.held for status in throttle.status()} == {"eu": 2, "us": 1, app.anywhere.name: 1}
    diagnosis = diagnose(app.app)
    assert [each.what for each in diagnosis.findings if "not durable" not in each.what] == []
    facts = [(each.group, each.role, each.missing_rights) for each in diagnosis.stores]
    assert facts == [(group, "master", ()) for group in ("", "eu", "us")]
    with pytest.raises(NotAcquired):
        app.us.acquire(0, app=app.app)
    with Limit("eu 2", 1, group="eu").acquire(0, app=app.app):
        pass
    journal.let_all_go()
    journal.wait_finished(12)
    assert journal.max_running(task="in_eu") == 2
    assert journal.max_running(task="in_us") == journal.max_running(task="anywhere") == 1

    for worker in workers.started:
        worker.term()
    assert [worker.wait() for worker in workers.started] == [0, 0]
    ask(next(node for node in primaries if ask(node, "KEYS", f"{{{prefix}}}*")), "SET", f"{{{prefix}}}9", "1")
    ours = [len(ask(node, "KEYS", f"{{{prefix}[:}}]*:2:*")) for node in primaries]
    assert all(ours)
    assert throttle.remove_data().keys == sum(ours)
    left = [ask(node, "KEYS", f"{{{prefix}*") for node in primaries]
    assert sorted(map(len, left)) == [0] * (PRIMARIES - 1) + [1]
