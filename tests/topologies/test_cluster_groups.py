"""Groups of limits whose places are on different nodes of a cluster."""

from __future__ import annotations

from itertools import count

import pytest

from celery_throttle import Limit, NotAcquired, ThrottleControl
from tests.support.clusters import PRIMARIES, Cluster, ask, slot_of
from tests.support.journal import Journal
from tests.support.workers import Workers

GROUPS = "tests.support.apps.groups"
TASKS = ("in_eu", "in_us", "anywhere")


def scattered(first: int = 0) -> str:
    """A prefix whose three groups are on three nodes; another one for each ``first``."""
    share = 16384 // PRIMARIES + 1
    for number in count(first):
        prefix = f"shop{number}"
        if len({slot_of(place) // share for place in (prefix, f"{prefix}:eu", f"{prefix}:us")}) == PRIMARIES:
            return prefix
    raise AssertionError


def test_each_group_is_on_its_own_node(cluster: Cluster, workers: Workers, journal: Journal) -> None:
    prefix = scattered()
    workers.conf |= {"throttle_url": cluster.url, "throttle_prefix": prefix}
    app = workers.start_app(GROUPS, count=2, concurrency=8)
    labels = [f"{task}{number}" for task in TASKS for number in range(4)]
    for label in labels:
        getattr(app, label[:-1]).delay(label)
    journal.wait_running(4)
    with_keys = [node for node in cluster.nodes if b"role:master" in ask(node, "INFO", "replication")]
    used = [ask(node, "KEYS", f"{{{prefix}*:used") for node in with_keys]
    assert sorted(len(keys) for keys in used) == [1] * PRIMARIES
    throttle = ThrottleControl(app.app)
    assert {status.name: status.held for status in throttle.status()} == {"eu": 2, "us": 1, app.anywhere.name: 1}
    with pytest.raises(NotAcquired):
        app.us.acquire(0, app=app.app)
    with Limit("eu 2", 1, group="eu").acquire(0, app=app.app):
        pass
    journal.let_go(*labels)
    journal.wait_finished(12)
    assert journal.max_running(task="in_eu") == 2
    assert journal.max_running(task="in_us") == journal.max_running(task="anywhere") == 1


def test_the_data_of_all_groups_is_removed(cluster: Cluster, workers: Workers, journal: Journal) -> None:
    prefix = scattered(1000)
    workers.conf |= {"throttle_url": cluster.url, "throttle_prefix": prefix}
    worker = workers.start(GROUPS)
    app = workers.app(GROUPS)
    for task in TASKS:
        getattr(app, task).delay(task)
    journal.let_go(*TASKS)
    journal.wait_finished(3)
    worker.term()
    assert worker.wait() == 0
    primaries = [node for node in cluster.nodes if b"role:master" in ask(node, "INFO", "replication")]
    ask(next(node for node in primaries if ask(node, "KEYS", f"{{{prefix}}}*")), "SET", f"{{{prefix}}}9", "1")
    used = [len(ask(node, "KEYS", f"{{{prefix}[:}}]*:2:*")) for node in primaries]
    assert all(used)
    assert ThrottleControl(app.app).remove_data().keys == sum(used)
    left = [ask(node, "KEYS", f"{{{prefix}*") for node in primaries]
    assert sorted(map(len, left)) == [0] * (PRIMARIES - 1) + [1]
