"""A throttled task is of the app's own task class, too."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task, shared_task

from celery_throttle import ConfigurationError, Throttled
from celery_throttle.tasks.registry import policies_of


class Own(Task):  # type: ignore[type-arg]
    """The base class of all tasks in a project."""

    abstract = True
    acks_late = True
    colour = "blue"

    def __init__(self) -> None:
        self.made = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return "in context", super().__call__(*args, **kwargs)

    def later(self, *args: Any) -> Any:
        return self.delay(*args)


def make_app(task_cls: Any = Own, **conf: Any) -> Any:
    app = Celery("mixed", broker="memory://", set_as_current=False, task_cls=task_cls)
    app.conf.update(throttle_url="redis://127.0.0.1:1/0", task_always_eager=True, **conf)
    return app


def body() -> str:
    return "ran"


def task_of(app: Any, base: Any = Throttled, **options: Any) -> Any:
    app.task(body, base=base, name="shop.render", shared=False, **options)
    app.finalize()
    return app.tasks["shop.render"]


def classes(task: Any) -> list[str]:
    """The names of the classes it is made of, without its own, the app's copy and Celery's."""
    return [each.__name__ for each in type(task).__mro__[1:] if each not in (Task, object) and each.__name__ != "Task"]


def test_throttled_task_has_the_features_of_the_app() -> None:
    app = make_app()
    render = task_of(app, limit=5)
    assert classes(render) == ["Throttled", "Own"]
    assert (render.colour, render.made, render.acks_late) == ("blue", True, True)
    assert render() == ("in context", "ran")
    assert render.later().get() == ("in context", "ran")
    assert policies_of(app)["shop.render"].limits[0].permits == 5


def test_later_attribute_of_the_class_of_the_app() -> None:
    """As the documentation of Flask had it for years."""
    app = make_app("celery.app.task:Task")

    class ContextTask(app.Task):  # type: ignore[name-defined,misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return "in context", self.run(*args, **kwargs)

    app.Task = ContextTask
    assert task_of(app, limit=5)() == ("in context", "ran")


def test_a_class_of_the_users_comes_first() -> None:
    """And the options of the task before all classes."""

    class Mixin:
        colour = "green"

    class Loud(Mixin, Throttled):
        abstract = True
        limit = 3

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return "LOUD", super().__call__(*args, **kwargs)

    render = task_of(make_app(), Loud, acks_late=False)
    assert classes(render) == ["Loud", "Mixin", "Throttled", "Own"]
    assert (render.colour, render.acks_late) == ("green", False)
    assert render() == ("LOUD", ("in context", "ran"))
    assert Loud.__bases__ == (Mixin, Throttled)
    assert Throttled.__bases__ == (Task,)


class Other(Task):  # type: ignore[type-arg]
    abstract = True


class Before(Own, Throttled):
    abstract = True


class Without(Throttled, Task):  # type: ignore[type-arg]
    abstract = True


class Instead(Throttled, Other):
    abstract = True


class OfThose(Instead):
    abstract = True


class OwnThrottled(Throttled):
    """A project in which everything can be throttled."""

    abstract = True
    colour = "blue"


class Special(Throttled):
    abstract = True


@pytest.mark.parametrize(
    ("of_the_app", "base", "made_of"),
    [
        pytest.param(Own, Before, ["Before", "Own", "Throttled"], id="one with its own values stays as it is"),
        (Own, Without, ["Without", "Throttled"]),
        (Own, Instead, ["Instead", "Throttled", "Other"]),
        (Own, OfThose, ["OfThose", "Instead", "Throttled", "Other"]),
        pytest.param(OwnThrottled, None, ["OwnThrottled", "Throttled"], id="of an app whose own class is throttled"),
        (OwnThrottled, Throttled, ["OwnThrottled", "Throttled"]),
        (OwnThrottled, OwnThrottled, ["OwnThrottled", "Throttled"]),
        (OwnThrottled, Special, ["Special", "OwnThrottled", "Throttled"]),
    ],
)
def test_classes_that_a_task_is_made_of(of_the_app: Any, base: Any, made_of: list[str]) -> None:
    app = make_app(of_the_app)
    assert classes(task_of(app, base, limit=5)) == made_of
    assert policies_of(app)["shop.render"].limits[0].permits == 5


def test_each_app_that_shares_a_task_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    shared_task(base=Throttled, limit=2, name="shop.render")(body)
    one, two = make_app(), make_app(Other)
    for app in (one, two):
        app.finalize()
    assert classes(one.tasks["shop.render"]) == ["Throttled", "Own"]
    assert classes(two.tasks["shop.render"]) == ["Throttled", "Other"]


@pytest.mark.parametrize("named", [True, False])
def test_a_task_that_is_a_class(named: bool) -> None:
    """It may set attributes of its own that are called like options."""

    class Render(Throttled):
        limit = 3
        name = "shop.render" if named else None  # type: ignore[assignment]

        def __init__(self, colour: str) -> None:
            self.colour = self.key = colour  # type: ignore[misc]

        def run(self) -> str:
            self.cost = 3  # type: ignore[misc]
            return f"ran {self.cost}"

    app = make_app()
    render = app.register_task(Render("pink"))
    app.finalize()
    assert classes(render) == ["Throttled", "Own"]
    assert (render.colour, render()) == ("pink", ("in context", "ran 3"))
    # Also where Celery makes the name up.
    assert {name: policy.limits[0].permits for name, policy in policies_of(app).items()} == {render.name: 3}


def test_a_base_that_is_looked_at_is_no_task() -> None:
    class Base(Throttled):
        limit = 3

    app = make_app()
    Base.bind(app)
    assert Base.__bases__ == (Throttled,)
    assert policies_of(app) == {}


def test_two_classes_that_cannot_be_one() -> None:
    class First: ...

    class Second: ...

    class Mixed(First, Second, Throttled):
        abstract = True

    class Theirs(Second, First, Task):  # type: ignore[type-arg]
        abstract = True

    with pytest.raises(ConfigurationError, match=r"Task shop\.render: .*Theirs .*class Own\(Throttled, app\.Task\)"):
        task_of(make_app(Theirs), Mixed, limit=5)
