"""Settings and options of tasks that are accepted or refused before a worker runs."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, shared_task

from celery_throttle import ConfigurationError, Limit, Throttled
from celery_throttle.brokers import broker_of
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import dedup_of, policies_of

REDIS = "redis://127.0.0.1:1/0"  # no server listens there, and none is asked


def make_app(**conf: Any) -> Any:
    app = Celery("settings", set_as_current=False)
    app.conf.update(broker_url=REDIS)
    app.conf.update(**conf)
    return app


def app_of_namespace(**conf: Any) -> Any:
    """Return an app whose settings are those of a Django project."""
    app = Celery("settings", set_as_current=False)
    app.config_from_object(SimpleNamespace(CELERY_BROKER_URL=REDIS, DEBUG=True, **conf), namespace="CELERY")
    return app


#: Each setting: its default, and another value.
SETTINGS = {
    "throttle_url": (REDIS, "redis://store:6379/3"),
    "throttle_prefix": ("throttle", "shop"),
    "throttle_group": ("", "eu"),
    "throttle_lease": (60.0, 7),
    "throttle_broker": (broker_of(make_app().conf, REDIS), "orders"),
    "throttle_reap_every": (30.0, 11),
    "throttle_reap_queue": (None, "housekeeping"),
    "throttle_on_store_error": ("hold", "fail"),
    "throttle_park_durability": ("memory", "replicas"),
    "throttle_park_replicas": (1, 2),
    "throttle_park_timeout": (3.0, 5),
    "throttle_max_begins": (5, 3),
    "throttle_enabled": (True, False),
    "throttle_environment": ("", "staging"),
    "throttle_tags": ({}, {"gpu_box": "a7"}),
}
OTHERS = {name: value for name, (_, value) in SETTINGS.items()}


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (make_app(), {name: default for name, (default, _) in SETTINGS.items()}),
        (make_app(**OTHERS), OTHERS),
        (app_of_namespace(**{f"CELERY_{name.upper()}": value for name, value in OTHERS.items()}), OTHERS),
    ],
    ids=["defaults", "others", "others in a namespace"],
)
def test_every_setting(app: Any, expected: dict[str, Any]) -> None:
    settings = settings_of(app)
    assert {f"throttle_{name}": getattr(settings, name) for name in vars(settings)} == expected


def test_misspelt_settings_of_a_namespace_are_refused_and_those_of_others_left_alone() -> None:
    assert settings_of(app_of_namespace(THROTTLE_RATES={"api": "5/s"})).url == REDIS
    with pytest.raises(ConfigurationError, match="'CELERY_THROTTLE_LEESE', did you mean 'CELERY_THROTTLE_LEASE'"):
        settings_of(app_of_namespace(CELERY_THROTTLE_LEESE=5))


SENTINELS = "sentinel://a/2;sentinel://b/2"
M = {"master_name": "m"}
#: Settings, and the URL of the store.
URLS: list[tuple[dict[str, Any], str]] = [
    ({"broker_url": "redis://b/1", "result_backend": "redis://r/2"}, "redis://b/1"),
    ({"broker_url": "amqp://b", "result_backend": "redis://r/2"}, "redis://r/2"),
    ({"broker_url": "rediss://b/1"}, "rediss://b/1"),
    ({"broker_url": "redis+socket:///a.sock?virtual_host=4"}, "redis+socket:///a.sock?virtual_host=4"),
    ({"broker_url": "redis://b/1", "throttle_url": "unix:///a.sock?db=4"}, "unix:///a.sock?db=4"),
    ({"broker_url": "amqp://b", "throttle_url": "redis+cluster://c1,c2"}, "redis+cluster://c1,c2"),
    ({"broker_read_url": "redis://read/1", "broker_write_url": "redis://write/1"}, "redis://read/1"),
    # The first of several brokers.
    ({"broker_url": ["redis://one/0", "redis://two/0"]}, "redis://one/0"),
    ({"broker_url": "redis://one/0;redis://two/0"}, "redis://one/0"),
    ({"broker_url": ["redis://one/0"], "throttle_url": REDIS}, REDIS),
    # Sentinels.
    ({"broker_url": SENTINELS, "broker_transport_options": M}, f"{SENTINELS}?master_name=m"),
    ({"broker_url": SENTINELS.split(";"), "broker_transport_options": M}, f"{SENTINELS}?master_name=m"),
    (
        {
            "broker_url": "amqp://b",
            "result_backend": "sentinel://:pw@a",
            "result_backend_transport_options": {
                **M,
                "sentinel_kwargs": {"password": "s/w", "username": None, "ssl": True, "ssl_cert_reqs": None},
            },
        },
        "sentinel://:pw@a?master_name=m&sentinel_password=s%2Fw&sentinel_ssl=True&sentinel_ssl_cert_reqs=none",
    ),
    (
        {
            "broker_url": "sentinel://a",
            "broker_transport_options": M,
            "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "ca"},
        },
        "sentinel://a?master_name=m&ssl=true&ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=ca",
    ),
]


@pytest.mark.parametrize(("conf", "url"), URLS)
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


SECRET = {**M, "sentinel_kwargs": {"credential_provider": object()}}


@pytest.mark.parametrize(
    ("conf", "fix"),
    [
        ({"broker_url": "amqp://b"}, "throttle_url = 'redis://"),
        ({"broker_url": "memory://", "result_backend": "rpc://"}, "throttle_url = 'redis://"),
        ({"broker_url": "sqs://", "result_backend": "db+sqlite:///results.db"}, "throttle_url = 'redis://"),
        ({"broker_url": "sentinel://a"}, "add .* master_name to broker_transport_options"),
        ({"broker_url": "sentinel://a", "broker_transport_options": SECRET}, "sentinel_kwargs: credential_prov"),
    ],
)
def test_without_a_usable_store_the_setting_to_make_is_named(conf: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigurationError, match=fix):
        settings_of(make_app(**conf))


# -- options of tasks ------------------------------------------------------------------------------------------------


def work(customer_id: int, order_id: int) -> None: ...


def add(app: Any, name: str, base: Any = Throttled, **options: Any) -> Any:
    return app.task(work, shared=False, base=base, name=f"shop.{name}", **options)


def limits_of(app: Celery) -> dict[str, Limit]:
    found = [(name, limit) for name, terms in policies_of(app).items() for limit in terms.limits]
    return {name: Limit(limit.name, limit.permits) for name, limit in found}


def test_where_a_limit_can_be_written() -> None:
    """Beside options that are not ours."""
    app = make_app(task_annotations={"shop.annotated": {"limit": 7}, "shop.off": {"limit": None}})

    class ByClass(Throttled):
        name = "shop.class"
        limit = Limit("by-class", 3)

        def run(self) -> None: ...

    class Base(Throttled):
        abstract = True
        limit = 4
        limiter = None

    app.register_task(ByClass())
    render = add(app, "option", limit=2, rate_limit="5/s", my_option=3)
    for name in ("annotated", "off"):
        add(app, name, limit=2)
    add(app, "inherited", Base, limiter="theirs")
    add(app, "none", Base, limit=None)
    app.task(work, shared=False, name="shop.plain")
    app.finalize()
    assert limits_of(app) == {
        "shop.class": Limit("by-class", 3),
        "shop.option": Limit("shop.option", 2),
        "shop.annotated": Limit("shop.annotated", 7),
        "shop.inherited": Limit("shop.inherited", 4),
    }
    assert (render.limit, render.rate_limit, render.my_option) == (2, "5/s", 3)


def test_options_from_the_settings() -> None:
    """Operators can add options to the code, or change them."""
    app = make_app(
        task_annotations={
            "shop.mail": {"rate": ["10/s", "5000/h"], "burst": [1, 500]},
            "shop.sync": {"limit": Limit("sync", 2, key="customer_id"), "cost": 2, "start_deadline": 5},
            "shop.charge": {"singleton": True, "unique_on": ["order_id"], "remember": 60},
        }
    )
    for name, options in {"mail": {}, "charge": {}, "sync": {"limit": 7}}.items():
        add(app, name, **options)
    app.finalize()
    policies = policies_of(app)
    assert policies.keys() == {"shop.mail", "shop.sync"}
    assert policies["shop.sync"].limits[0].permits == 2
    assert [str(rate) for rate, _ in policies["shop.mail"].limits[0].rates] == ["10/s", "5000/h"]
    assert (policies["shop.sync"].cost, policies["shop.sync"].start_deadline) == (2, 5.0)
    charge = dedup_of(app.tasks["shop.charge"])
    assert charge
    assert (charge.unique_on, charge.remember) == (("order_id",), 60.0)


def test_annotations_hold_in_their_app_for_shared_tasks_and_for_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Shared tasks of other tests must not come to these apps, nor this task to theirs.
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    shared_task(base=Throttled, limit=2, name="shop.shared")(work)
    rows: list[tuple[dict[str, Any], int]] = [({}, 2), ({"shop.shared": {"limit": 9}}, 9), ({"*": {"limit": 3}}, 3)]
    for options, permits in rows:
        app = make_app(task_annotations=options)
        app.task(work, shared=False, name="shop.plain")
        app.finalize()
        assert limits_of(app) == {"shop.shared": Limit("shop.shared", permits)}
