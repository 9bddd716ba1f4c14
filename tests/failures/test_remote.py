"""Remote control while the store is away: it answers at once, without waiting."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS
from tests.support.journal import Journal
from tests.support.remote import steer, tell, throttle_in
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_store_is_away(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, pool: str, how: str
) -> None:
    worker = workers.start(DOORS, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    first = journal.wait_begun(app.hold.delay("first"))
    state.wait_parked(app.hold.delay("parked"))
    before = throttle_in(app.app, worker)["groups"][0]
    assert before["up"]

    store.kill() if how == "killed" else store.freeze()
    if how == "frozen":  # not noticed yet: the command finds out
        asked = monotonic()
        (answer,) = tell(app.app, "throttle_pause", worker, limit=app.hold.name)
        assert answer["error"].startswith("the store did not answer within 0.5 s")
        assert monotonic() - asked < AT_ONCE
    held_back = [app.hold.delay(f"late {number}") for number in range(3)]

    def noticed() -> Any:
        said = throttle_in(app.app, worker)
        return said if not said["groups"][0]["up"] and said["held_back"]["count"] == len(held_back) else None

    said = until(noticed, timeout=AT_ONCE, describe=worker.tail)
    assert said["held_back"]["counts"] == {"store away": len(held_back)}
    assert [each["task_id"] for each in said["held_back"]["tasks"]] == [each.id for each in held_back]
    assert [each["task_id"] for each in said["held"]["tasks"]] == [first.id]
    (group,) = said["groups"]
    assert group["since"] > before["since"]
    assert group["last_call"]["number"] >= before["last_call"]["number"]

    def refused() -> str:
        (answer,) = tell(app.app, "throttle_pause", worker, limit=app.hold.name)
        assert list(answer) == ["error"]
        return answer["error"] if answer["error"].startswith("the store did not answer, or refused: ") else ""

    if how == "killed":
        until(refused, timeout=AT_ONCE)
    assert "Traceback" not in worker.log()
    journal.let_go("plain")
    assert app.plain.delay("plain").get(timeout=AT_ONCE) == "plain"

    store.restart() if how == "killed" else store.thaw()
    until(lambda: throttle_in(app.app, worker)["groups"][0]["up"], timeout=AT_ONCE)
    until(lambda: "ok" in steer(app.app, "throttle_resume", worker, limit=app.hold.name)[0], timeout=AT_ONCE)
    journal.let_all_go()
    journal.wait_finished(6, timeout=AT_ONCE)
    state.wait_clean()
