"""The metrics in others' registries: prometheus_client's, and OpenTelemetry's meters."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.metrics import described
from tests.control.conftest import make_app
from tests.control.test_looking import fill
from tests.control.test_metrics import read
from tests.store.cost import commands
from tests.store.terms_caller import TermsCaller, terms
from tests.support.workers import ROOT

if TYPE_CHECKING:
    from redis import Redis
    from typing_extensions import Self

    from celery_throttle.embedded import EmbeddedServer

NAMES = {each.name for each in described()}
CHANGING = ("celery_throttle_oldest_wait_seconds", "celery_throttle_store_time_seconds")


# -- prometheus_client -------------------------------------------------------------------------------------------------


class Scraped:
    """A registry with our collector and a counter of another package, served over HTTP."""

    def __init__(self, app: Any, **options: Any) -> None:
        prometheus_client = pytest.importorskip("prometheus_client")
        from celery_throttle.contrib.prometheus import collector  # noqa: PLC0415 - what it needs may not be there

        self.registry = prometheus_client.CollectorRegistry(auto_describe=True)
        self.registry.register(collector(app, **options))
        prometheus_client.Counter("orders", "Theirs.", registry=self.registry).inc(3)
        self._server, self._thread = prometheus_client.start_http_server(0, "127.0.0.1", self.registry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def text(self, query: str = "") -> str:
        with urlopen(f"http://127.0.0.1:{self._server.server_port}/metrics{query}", timeout=30) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    def ours(self) -> dict[str, dict[tuple[str, ...], float]]:
        parser = pytest.importorskip("prometheus_client.parser")
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in parser.text_string_to_metric_families(self.text()):
            if family.name.startswith("celery_throttle_"):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                samples = found.setdefault(name, {})
                for each in family.samples:
                    suffix = each.name.removeprefix(name)
                    samples[(*each.labels.values(), *([suffix] if suffix else []))] = each.value
        return found


def test_collector_has_the_metrics_of_the_command(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """It reads once for a scrape, and never before."""
    fill(worker, 3)
    control = ThrottleControl(app)
    ours = read(control.metrics())
    with commands(redis) as once:
        control.metrics()
    with commands(redis) as calls:
        serving = Scraped(app)
    assert "evalsha" not in calls
    with commands(redis) as calls, serving:
        theirs = serving.ours()
    assert calls["evalsha"] == once["evalsha"]
    assert set(theirs) == set(ours) == NAMES
    for each in (theirs, ours):
        for name in CHANGING:
            del each[name]
    assert theirs == ours
    assert theirs["celery_throttle_held"] == {("", "api"): 2}
    assert theirs["celery_throttle_up"] == {(): 1}


def test_queues_that_are_named(app: Any) -> None:
    app.conf.task_routes = {"render": "video"}
    with Scraped(app, queues=["video", "vidoe"]) as serving:
        assert serving.ours()["celery_throttle_runnable_tasks"] == {("celery",): 0, ("video",): 0}


def test_a_store_that_is_away_fails_no_scrape(own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    with Scraped(make_app(own_server.url)) as serving:
        assert serving.ours()["celery_throttle_up"] == {(): 1}
        own_server.kill()
        ours = serving.ours()
        assert ours.pop("celery_throttle_up") == {(): 0}
        assert not any(ours.values())
        assert "orders_total 3.0" in serving.text()
    assert len(caplog.records) == 2
    assert all("the store did not answer" in each.getMessage() and not each.exc_info for each in caplog.records)


def test_neither_does_a_setting_that_cannot_work(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app("redis://localhost", throttle_lease="soon")
    with Scraped(app) as serving:
        assert serving.ours()["celery_throttle_up"] == {(): 0}
    assert "throttle_lease" in caplog.text


# -- OpenTelemetry -----------------------------------------------------------------------------------------------------


class Observed:
    """A provider of meters with ours, read when a test wants it."""

    def __init__(self, app: Any, **options: Any) -> None:
        metrics = pytest.importorskip("opentelemetry.sdk.metrics")
        export = pytest.importorskip("opentelemetry.sdk.metrics.export")
        from celery_throttle.contrib.opentelemetry import observe  # noqa: PLC0415 - what it needs may not be there

        self._reader = export.InMemoryMetricReader()
        self.provider = metrics.MeterProvider(metric_readers=[self._reader])
        observe(app, self.provider.get_meter("ours"), **options)

    def gauges(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        return {each.name: each for each in scope.metrics if each.data.data_points}  # older ones name empty ones, too

    def values(self) -> dict[str, dict[tuple[str, ...], float]]:
        return {
            name: {tuple(map(str, point.attributes.values())): point.value for point in each.data.data_points}
            for name, each in self.gauges().items()
        }


def test_gauges_have_the_metrics_of_the_command(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """They are read once for a collection, each of which has the state of its time."""
    observed, control = Observed(app), ThrottleControl(app)
    fill(worker, 3)
    gauges, values, ours = observed.gauges(), observed.values(), read(control.metrics())
    del ours["celery_throttle_wait_seconds"]  # a histogram, which cannot be observed
    assert set(gauges) == {name for name, samples in ours.items() if samples}
    for each in (values, ours):
        for name in CHANGING:
            del each[name]
    assert values == {name: samples for name, samples in ours.items() if samples}
    seconds = {name for name in ours if name.endswith("_seconds")}
    assert {name for name, each in gauges.items() if each.unit == "s"} == seconds | set(CHANGING)
    assert gauges["celery_throttle_held"].description == "Permits held, of all keys."
    worker.arrive("other", terms(Limit("other", 1)).same)
    with commands(redis) as once:
        control.metrics()
    with commands(redis) as calls:
        assert observed.values()["celery_throttle_held"] == {("", "api"): 2, ("", "other"): 1}
    assert calls["evalsha"] == once["evalsha"]
    observed.provider.shutdown()


def test_a_store_that_is_away_is_observed(own_server: EmbeddedServer) -> None:
    observed = Observed(make_app(own_server.url))
    assert observed.values()["celery_throttle_up"] == {(): 1}
    own_server.kill()
    assert observed.values() == {"celery_throttle_up": {(): 0}}
    observed.provider.shutdown()


# -- requirements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "needs"), [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")])
def test_missing_package_is_reported_with_its_extra(module: str, needs: str) -> None:
    extra = {"prometheus": "metrics"}.get(module, module)
    program = (
        "import sys; sys.path.append(sys.argv[1])\n"
        f"sys.modules[{needs!r}] = None\n"
        "import celery_throttle.control.throttle_control, celery_throttle.control.cli.metrics\n"
        "try:\n"
        f"    import celery_throttle.contrib.{module}\n"
        "except ImportError as error:\n"
        f"    assert str(error).endswith(': write pip install celery-fair-throttle[{extra}]'), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program, str(ROOT)], check=True, timeout=60)
