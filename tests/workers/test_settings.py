"""Options that are accepted or refused before a worker runs, and tasks that are never throttled."""

from __future__ import annotations

import ssl
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, shared_task

from celery_throttle import ConfigurationError, Limit, Throttled
from celery_throttle.brokers import broker_of
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import dedup_of, policies_of
from tests.support.workers import ROOT, Workers

REDIS = "redis://127.0.0.1:1/0"  # no server listens there, and none is asked

SETTINGS = {
    "throttle_url": "redis://store:6379/3",
    "throttle_prefix": "shop",
    "throttle_group": "eu",
    "throttle_lease": 7,
    "throttle_broker": "orders",
    "throttle_reap_every": 11,
    "throttle_reap_queue": "housekeeping",
    "throttle_on_store_error": "fail",
    "throttle_park_durability": "replicas",
    "throttle_park_replicas": 2,
    "throttle_park_timeout": 5,
    "throttle_enabled": False,
    "throttle_environment": "staging",
    "throttle_tags": {"gpu_box": "a7"},
}


def nothing() -> None:
    """Be a task."""


def make_app(**conf: Any) -> Any:
    app = Celery("settings", set_as_current=False)
    app.conf.update(broker_url=REDIS)
    app.conf.update(**conf)
    return app


def read(settings: Any) -> dict[str, Any]:
    return {f"throttle_{name}": getattr(settings, name) for name in vars(settings)}


def test_defaults() -> None:
    assert read(settings_of(make_app())) == {
        "throttle_url": REDIS,
        "throttle_prefix": "throttle",
        "throttle_group": "",
        "throttle_lease": 60.0,
        "throttle_broker": broker_of(make_app().conf, REDIS),
        "throttle_reap_every": 30.0,
        "throttle_reap_queue": None,
        "throttle_on_store_error": "hold",
        "throttle_park_durability": "memory",
        "throttle_park_replicas": 1,
        "throttle_park_timeout": 3.0,
        "throttle_enabled": True,
        "throttle_environment": "",
        "throttle_tags": {},
    }


def test_every_setting() -> None:
    assert read(settings_of(make_app(**SETTINGS))) == SETTINGS


def test_every_setting_in_a_namespace() -> None:
    names = {f"CELERY_{name.upper()}": value for name, value in SETTINGS.items()}
    app = Celery("settings", set_as_current=False)
    app.config_from_object(SimpleNamespace(CELERY_BROKER_URL=REDIS, **names), namespace="CELERY")
    assert read(settings_of(app)) == SETTINGS


def test_upper_case_django_settings_without_ours_are_left_alone() -> None:
    app = Celery("settings", set_as_current=False)
    django = SimpleNamespace(CELERY_BROKER_URL=REDIS, THROTTLE_RATES={"api": "5/s"}, DEBUG=True)
    app.config_from_object(django, namespace="CELERY")
    assert settings_of(app).url == REDIS


def test_a_misspelt_setting_in_a_namespace_is_refused_by_name() -> None:
    app = Celery("settings", set_as_current=False)
    app.config_from_object(SimpleNamespace(CELERY_BROKER_URL=REDIS, CELERY_THROTTLE_LEESE=5), namespace="CELERY")
    with pytest.raises(ConfigurationError, match="'CELERY_THROTTLE_LEESE', did you mean 'CELERY_THROTTLE_LEASE'"):
        settings_of(app)


@pytest.mark.parametrize(
    ("conf", "url"),
    [
        ({"broker_url": "redis://b/1", "result_backend": "redis://r/2"}, "redis://b/1"),
        ({"broker_url": "amqp://b", "result_backend": "redis://r/2"}, "redis://r/2"),
        ({"broker_url": "rediss://b/1"}, "rediss://b/1"),
        (
            {"broker_url": "redis+socket:///run/redis.sock?virtual_host=4"},
            "redis+socket:///run/redis.sock?virtual_host=4",
        ),
        ({"broker_url": "redis://b/1", "throttle_url": "unix:///run/redis.sock?db=4"}, "unix:///run/redis.sock?db=4"),
        ({"broker_read_url": "redis://read/1", "broker_write_url": "redis://write/1"}, "redis://read/1"),
        (
            {"broker_url": "sentinel://a/2;sentinel://b/2", "broker_transport_options": {"master_name": "m"}},
            "sentinel://a/2;sentinel://b/2?master_name=m",
        ),
        (
            {"broker_url": ["sentinel://a/2", "sentinel://b/2"], "broker_transport_options": {"master_name": "m"}},
            "sentinel://a/2;sentinel://b/2?master_name=m",
        ),
        (
            {
                "broker_url": "amqp://b",
                "result_backend": "sentinel://:pw@a",
                "result_backend_transport_options": {
                    "master_name": "m",
                    "sentinel_kwargs": {"password": "s/w", "username": None, "ssl": True, "ssl_cert_reqs": None},
                },
            },
            "sentinel://:pw@a?master_name=m&sentinel_password=s%2Fw&sentinel_ssl=True&sentinel_ssl_cert_reqs=none",
        ),
        (
            {
                "broker_url": "sentinel://a",
                "broker_transport_options": {"master_name": "m"},
                "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "ca"},
            },
            "sentinel://a?master_name=m&ssl=true&ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=ca",
        ),
        ({"broker_url": "amqp://b", "throttle_url": "redis+cluster://c1,c2"}, "redis+cluster://c1,c2"),
    ],
)
def test_where_the_store_is(conf: dict[str, Any], url: str) -> None:
    assert settings_of(make_app(**conf)).url == url


ONE, TWO = ({"global_keyprefix": name} for name in ("one:", "two_"))


@pytest.mark.parametrize(
    ("conf", "prefix"),
    [
        ({}, "throttle"),
        ({"broker_transport_options": ONE}, "one:throttle"),
        ({"broker_transport_options": ONE, "result_backend_transport_options": TWO}, "one:throttle"),
        ({"result_backend_transport_options": TWO}, "throttle"),
        ({"broker_url": "amqp://b", "result_backend_transport_options": TWO}, "two_throttle"),
        ({"broker_transport_options": ONE, "throttle_url": "redis://s"}, "one:throttle"),
        ({"broker_transport_options": ONE, "throttle_prefix": "throttle"}, "throttle"),
        ({"broker_transport_options": {"global_keyprefix": "{a b}"}}, "%7ba%20b%7dthrottle"),
    ],
)
def test_projects_apart_in_celery_share_nothing(conf: dict[str, Any], prefix: str) -> None:
    app = make_app(**{"broker_url": "redis://b", "result_backend": "redis://r"} | conf)
    assert settings_of(app).prefix == prefix


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({}, "add .* master_name to broker_transport_options"),
        (
            {"master_name": "m", "sentinel_kwargs": {"credential_provider": object()}},
            "sentinel_kwargs: credential_prov",
        ),
    ],
)
def test_sentinels_that_cannot_be_asked_are_refused(options: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigurationError, match=fix):
        settings_of(make_app(broker_url="sentinel://a", broker_transport_options=options))


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": "amqp://b"},
        {"broker_url": "memory://", "result_backend": "rpc://"},
        {"broker_url": "sqs://", "result_backend": "db+sqlite:///results.db"},
    ],
)
def test_without_redis_the_setting_to_make_is_named(conf: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="throttle_url = 'redis://"):
        settings_of(make_app(**conf))


@pytest.mark.parametrize(
    "brokers", [["redis://one/0", "redis://two/0"], "redis://one/0;redis://two/0", ["redis://one/0"]]
)
def test_the_first_of_several_brokers_is_the_store(brokers: Any) -> None:
    assert settings_of(make_app(broker_url=brokers)).url == "redis://one/0"
    assert settings_of(make_app(broker_url=brokers, throttle_url=REDIS)).url == REDIS


# -- options of tasks ------------------------------------------------------------------------------------------------


def test_options_that_are_not_ours_are_left_alone() -> None:
    app = make_app()

    class Base(Throttled):
        abstract = True
        limiter = None

    @app.task(shared=False, base=Base, limit=2, limiter="theirs", rate_limit="5/s", time_limit=4, my_option=3)  # type: ignore[untyped-decorator]
    def render() -> None: ...

    app.finalize()
    assert (render.limit, render.rate_limit, render.my_option) == (2, "5/s", 3)


def test_two_declarations_of_one_limit_that_differ_are_refused() -> None:
    app = make_app()
    app.task(nothing, shared=False, base=Throttled, limit=Limit("gpu", 4), name="shop.train")
    app.task(nothing, shared=False, base=Throttled, limit=Limit("gpu", 5), name="shop.predict")
    with pytest.raises(ConfigurationError, match="gpu"):
        app.finalize()


def test_where_a_limit_can_be_written() -> None:
    app = make_app(task_annotations={"shop.annotated": {"limit": 7}})

    class ByClass(Throttled):
        name = "shop.class"
        limit = Limit("by-class", 3)

        def run(self) -> None: ...

    class Base(Throttled):
        abstract = True
        limit = 4

    app.register_task(ByClass())
    app.task(nothing, shared=False, base=Throttled, limit=2, name="shop.option")
    app.task(nothing, shared=False, base=Throttled, limit=2, name="shop.annotated")
    app.task(nothing, shared=False, base=Base, name="shop.inherited")
    app.task(nothing, shared=False, base=Base, limit=None, name="shop.none")
    app.task(nothing, shared=False, name="shop.plain")
    app.finalize()
    assert _limits_of(app) == {
        "shop.class": Limit("by-class", 3),
        "shop.option": Limit("shop.option", 2),
        "shop.annotated": Limit("shop.annotated", 7),
        "shop.inherited": Limit("shop.inherited", 4),
    }


def test_options_from_the_settings() -> None:
    """Operators can add options to the code, or change them."""
    app = make_app(
        task_annotations={
            "shop.render": {"limit": 3},
            "shop.mail": {"rate": ["10/s", "5000/h"], "burst": [1, 500]},
            "shop.sync": {"limit": Limit("sync", 2, key="customer_id"), "cost": 2, "start_deadline": 5},
            "shop.charge": {"singleton": True, "unique_on": ["order_id"], "remember": 60},
            "shop.off": {"limit": None},
        }
    )

    def work(customer_id: int, order_id: int) -> None: ...

    for name in ("render", "mail", "charge"):
        app.task(work, shared=False, base=Throttled, name=f"shop.{name}")
    app.task(work, shared=False, base=Throttled, limit=7, name="shop.sync")
    app.task(nothing, shared=False, base=Throttled, limit=7, name="shop.off")
    app.finalize()
    policies = policies_of(app)
    assert {name: [limit.permits for limit in policy.limits] for name, policy in policies.items()} == {
        "shop.render": [3],
        "shop.mail": [None],
        "shop.sync": [2],
    }
    assert [str(rate) for rate, _ in policies["shop.mail"].limits[0].rates] == ["10/s", "5000/h"]
    assert (policies["shop.sync"].cost, policies["shop.sync"].start_deadline) == (2, 5.0)
    charge = dedup_of(app.tasks["shop.charge"])
    assert charge
    assert (charge.unique_on, charge.remember) == (("order_id",), 60.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "limit must be a whole number"),
        ({"limt": 3}, "unknown option 'limt', did you mean 'limit'"),
        ({"unique_on": ["a"]}, "unique_on needs singleton=True"),
    ],
)
def test_wrong_settings_are_refused_with_the_task(options: dict[str, Any], said: str) -> None:
    app = make_app(task_annotations={"shop.render": options})
    app.task(nothing, shared=False, base=Throttled, name="shop.render")
    with pytest.raises(ConfigurationError, match=rf"Task shop\.render: {said}"):
        app.finalize()


def test_annotation_for_all_tasks_gives_each_its_own_limit() -> None:
    app = make_app(task_annotations={"*": {"limit": 3}})
    app.task(nothing, shared=False, base=Throttled, name="shop.a")
    app.task(nothing, shared=False, base=Throttled, limit=9, name="shop.b")
    app.task(nothing, shared=False, name="shop.plain")
    app.finalize()
    assert _limits_of(app) == {"shop.a": Limit("shop.a", 3), "shop.b": Limit("shop.b", 3)}


def test_a_shared_task_is_throttled_in_every_app(monkeypatch: pytest.MonkeyPatch) -> None:
    # Shared tasks of other tests must not come to these apps, nor this task to theirs.
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    shared_task(base=Throttled, limit=2, name="shop.shared")(nothing)
    one, two = make_app(), make_app(task_annotations={"shop.shared": {"limit": 9}})
    one.finalize()
    two.finalize()
    assert _limits_of(one) == {"shop.shared": Limit("shop.shared", 2)}
    assert _limits_of(two) == {"shop.shared": Limit("shop.shared", 9)}


# -- tasks without throttling ------------------------------------------------------------------------------------------


def test_direct_calls_and_eager_mode_run_at_once() -> None:
    app = make_app(task_always_eager=True, task_store_eager_result=False)
    running = []

    @app.task(shared=False, base=Throttled, limit=1, bind=True)  # type: ignore[untyped-decorator]
    def nested(self: Any, depth: int) -> int:
        running.append(depth)
        if depth:
            self.delay(depth - 1)  # needs a second permit, if it needed any
        return depth

    assert nested(2) == 2
    assert nested.apply((2,)).get() == 2
    assert nested.delay(2).get() == 2
    assert nested.apply_async((2,)).get() == 2
    assert running == [2, 1, 0] * 4


def test_a_producer_needs_no_store_and_imports_no_worker() -> None:
    program = (
        "import sys; from celery import Celery; from celery_throttle import Throttled\n"
        "app = Celery(broker='memory://')\n"
        "@app.task(shared=False, base=Throttled, limit=1)\n"
        "def work(): ...\n"
        "work.delay()\n"
        "print([name for name in sys.modules if name.startswith('celery_throttle.worker')])\n"
    )
    path = "import sys; sys.path.append(sys.argv.pop(1)); exec(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", path, str(ROOT), program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def _limits_of(app: Celery) -> dict[str, Limit]:
    found = [(name, limit) for name, terms in policies_of(app).items() for limit in terms.limits]
    return {name: Limit(limit.name, limit.permits) for name, limit in found}


def test_worker_logs_options_without_effect(workers: Workers) -> None:
    log = workers.start("tests.support.apps.forgetful").log()
    assert log.count("WARNING/MainProcess] celery_throttle: Task tests.support.apps.forgetful.render has limit=") == 1
    assert "but not base=Throttled: it is NOT limited" in log
    bare = (
        "WARNING/MainProcess] celery_throttle: Task tests.support.apps.forgetful.bare has base=Throttled but no option"
    )
    assert log.count(bare) == 1
