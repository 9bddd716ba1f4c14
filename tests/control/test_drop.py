"""``celery throttle drop``."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.core.wording import at
from tests.control.conftest import Run
from tests.control.test_looking import fill_and_park, of, park
from tests.store.peek import peek
from tests.store.terms_caller import TermsCaller


@pytest.fixture
def waiting(worker: TermsCaller) -> None:
    """Three wait for a limit, and two for each of two keys."""
    fill_and_park(worker, 3)
    for tenant in ("acme", "zeta"):
        worker.arrive(f"{tenant}0", of(tenant))
        for number in (1, 2):
            park(worker, f"{tenant}{number}", of(tenant))


def parked(control: ThrottleControl) -> dict[str, int]:
    return {str(each.bucket): each.parked for each in control.status() if each.parked}


@pytest.mark.usefixtures("waiting")
def test_drop_without_yes_prints_the_count(control: ThrottleControl, run: Run) -> None:
    for args, count in (
        (["api"], 3),
        (["tenant"], 4),
        (["tenant", "--key", "acme"], 2),
        (["tenant[zeta]"], 2),
        (["--task", "t3"], 1),
        (["--task", "t0"], 0),
    ):
        ended = run("drop", *args)
        tasks = f"{count} task" + ("" if count == 1 else "s")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == f"{tasks} would be dropped" + ("; --yes does it.\n" if count else ".\n")
        assert run("drop", *args, "--json").json == {"done": False, "tasks": count}
    assert parked(control) == {"api": 3, "tenant[acme]": 2, "tenant[zeta]": 2}
    assert control.audit() == ()


@pytest.mark.usefixtures("waiting")
def test_with_yes_it_does_it(control: ThrottleControl, run: Run) -> None:
    said = ["--by", "ana", "--why", "incident 42"]
    ended = run("drop", "api", "--yes", *said)
    assert (ended.code, ended.out, ended.err) == (0, "3 tasks dropped.\n", "")
    assert parked(control) == {"tenant[acme]": 2, "tenant[zeta]": 2}
    assert run("drop", "tenant", "--key", "acme", "--yes", *said, "--json").json == {"done": True, "tasks": 2}
    assert parked(control) == {"tenant[zeta]": 2}
    assert run("drop", "--task", "zeta2", "--yes", *said).out == "1 task dropped.\n"
    assert run("drop", "--task", "zeta2", "--yes", *said).out == "0 tasks dropped.\n"
    assert parked(control) == {"tenant[zeta]": 1}
    assert [row[1:] for row in run("audit").rows[1:]] == [
        ["ana", "drop task[zeta2]", "incident 42"],
        ["ana", "drop tenant[acme], 2 tasks", "incident 42"],
        ["ana", "drop api, 3 tasks", "incident 42"],
    ]


@pytest.mark.usefixtures("waiting")
def test_drop_from_python(app: Any, control: ThrottleControl, worker: TermsCaller) -> None:
    limit = control.limit("api")
    assert limit.drop(dry_run=True) == 3
    assert control.drop("t3", by="ana")
    assert not control.drop("t3")
    assert not control.drop(app.AsyncResult("t0")), "it runs"
    assert limit.drop(by="ana", why="x") == 2
    told = {each.task: each.dropped for each in worker.look(9).grants}
    assert told == {"t2": "dropped by ana: x", "t3": "dropped by ana", "t4": "dropped by ana: x"}
    assert control.limit(Limit("tenant", 1, key="tenant"), key="acme").drop() == 2
    assert control.limit("tenant").drop() == 2
    with pytest.raises(ConfigurationError, match=r"drop: a task's id .* got 7: write drop\(result.id\)"):
        control.drop(7)  # type: ignore[arg-type]


@pytest.mark.usefixtures("waiting")
def test_dropped_task_is_explained_until_the_audit_forgets_it(
    control: ThrottleControl, worker: TermsCaller, redis: Redis
) -> None:
    """Explained by author, time and reason: before a worker has reported it, while one does, and after."""
    control.drop("t3", by="ana", why="incident 42")
    (change,) = control.audit()
    dropped = f"It was dropped by ana: incident 42, at {at(change.at)}"
    found = control.explain("t3")
    assert (found.state, found.reasons[0]) == ("ended without running", f"{dropped}: it ends as revoked.")
    (grant,) = worker.look(9).grants
    found = control.explain("t3")
    assert found.reasons == (f"{dropped}: it ends as revoked.", "Worker aaaaaaaa reports that now.")
    assert found.state == "ended without running"
    worker.end(grant, "never")
    assert "t3" not in peek(redis).records
    found = control.explain("t3")
    assert (found.state, found.reasons) == ("ended without running", (f"{dropped}: it has ended as revoked.",))


@pytest.mark.usefixtures("waiting")
def test_task_dropped_with_its_limit_is_explained_while_it_is_stored(
    control: ThrottleControl, worker: TermsCaller
) -> None:
    """The audit log has how many tasks of a limit were dropped, and not which."""
    control.limit("api").drop(by="ana")
    (change,) = control.audit()
    assert control.explain("t4").reasons[0] == f"It was dropped by ana, at {at(change.at)}: it ends as revoked."
    for grant in worker.look(9).grants:
        worker.end(grant, "never")
    assert control.explain("t4").state == "unknown"
