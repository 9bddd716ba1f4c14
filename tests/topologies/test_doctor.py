"""The findings of ``celery throttle doctor`` about stores of several servers."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_throttle import Limit, Throttled
from celery_throttle.control.checks import Diagnosis, diagnose
from tests.support.clusters import Cluster
from tests.support.sentinels import Watched


def told(url: str, **conf: Any) -> Diagnosis:
    app: Any = Celery("shop", set_as_current=False)
    app.conf.update(throttle_url=url, **conf)

    def nothing() -> None: ...

    for group in ("eu", "us"):
        app.task(nothing, name=group, base=Throttled, limit=Limit(group, 1, group=group), shared=False)
    return diagnose(app)


def about_servers(diagnosis: Diagnosis) -> list[str]:
    """The findings, but for those of servers that are the tests' own."""
    return [each.what for each in diagnosis.findings if "not durable" not in each.what]


def test_each_node_of_a_cluster_that_has_limits(cluster: Cluster) -> None:
    diagnosis = told(cluster.url)
    assert about_servers(diagnosis) == []
    facts = [(each.group, each.role, each.missing_rights) for each in diagnosis.stores]
    assert facts == [(group, "master", ()) for group in ("", "eu", "us")]


def test_primary_of_the_sentinels(watched: Watched) -> None:
    diagnosis = told(watched.url)
    assert about_servers(diagnosis) == []
    (store,) = diagnosis.stores
    assert (store.role, store.missing_rights) == ("master", ())


def test_a_sentinel_in_place_of_the_store(watched: Watched) -> None:
    diagnosis = told(f"redis://127.0.0.1:{watched.sentinel.port}")
    assert any("names a sentinel, not the store" in each.what for each in diagnosis.findings)
