"""Renewals go on after any error, and an error with one permit or group keeps no other from its renewal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_throttle.core.keys import Keys
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.portions import MOST_RENEWED
from celery_throttle.store.reading import UnreadableReply
from celery_throttle.worker.runs import Permit
from celery_throttle.worker.store_side import leases as module
from celery_throttle.worker.store_side import renewals
from celery_throttle.worker.store_side.leases import Leases

LEASE = 12.0
BIRTH = "b1"


class Periodic:
    """Replaces the timekeeper: the test asks for each look. As there, an error is logged, and ends nothing."""

    def __init__(self) -> None:
        self._looks: list[Any] = []
        self.errors: list[Exception] = []

    def every(self, interval: float, function: Any) -> None:
        assert interval <= LEASE / 10
        self._looks.append(function)

    def look(self) -> None:
        for each in self._looks:
            try:
                each()
            except Exception as error:  # noqa: BLE001 - as in the thread
                self.errors.append(error)


class Renewing:
    """Groups of permits, and a store that renews them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, groups: int = 1, permits: int = 1) -> None:
        self.now, self.renewed, self.birth = 100.0, list[str](), BIRTH
        self.fails: dict[str, list[BaseException]] = {}
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "execute", self._execute)
        self.groups: list[Any] = [self._group(str(number), permits) for number in range(groups)]
        self.timekeeper: Any = Periodic()
        self.blocked, self.ended = Mock(), Mock()
        given: tuple[Any, ...] = (self.groups, LEASE, self.timekeeper, self.blocked, self.ended, Mock())
        Leases(*given).start()

    def _group(self, name: str, permits: int) -> Any:
        runs: list[Any] = []
        for number in range(permits):
            nonce = f"{name}.{number}"
            runs.append(SimpleNamespace(arrival=Arrival(nonce, "1:gpu", nonce=nonce), nonce=nonce, request=Mock()))
        held = {run.nonce: Permit(run) for run in runs}
        store, reports = Store(Keys("x"), LEASE), Mock()
        calls = SimpleNamespace(
            group=name, store=store, worker="w", number=1, birth=BIRTH, held=held, lease_reports=reports
        )
        return Mock(calls=calls, client=Mock(spec=["connection_pool"], group=name))

    def _execute(self, _: Any, call: Any) -> Any:
        text = str(call.arguments[-1])
        group = "0" if '"0.' in text else "1"
        if self.fails.get(group):
            raise self.fails[group].pop(0)
        self.renewed.append(group)
        return [[b"1"] * text.count('"needs"'), [], self.birth.encode()]

    def after(self, seconds: float) -> list[str]:
        """Let some time go by, with looks; return the groups of the renewals."""
        self.renewed.clear()
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.timekeeper.look()
        return self.renewed


def test_each_third_of_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Renewing(monkeypatch).after(12.0) == ["0"] * 3


@pytest.mark.parametrize(
    "error",
    [RedisConnectionError("gone"), OSError(24, "Too many open files"), UnreadableReply("what"), KeyError("bug")],
)
def test_goes_on_soon_after_any_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    renewing = Renewing(monkeypatch, groups=2)
    renewing.fails["0"] = [error]
    assert renewing.after(4.0) == ["1"], "the other group is renewed all the same"
    assert renewing.after(1.0) == ["0"]
    assert renewing.after(3.0) == ["1"]


def test_one_unreadable_page_keeps_no_other_from_its_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    renewing = Renewing(monkeypatch, permits=MOST_RENEWED + 1)
    renewing.fails["0"] = [UnreadableReply("what")]
    assert renewing.after(4.0) == ["0"], "the second page"
    assert renewing.after(1.0) == ["0", "0"]


def test_error_about_one_permit_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    renewing = Renewing(monkeypatch, permits=3)
    seen, act_on = list[str](), renewals._act_on

    def acts(permit: Any, run: Any, answer: int, lost: Any) -> None:
        seen.append(run.nonce)
        if run.nonce == "0.1":
            raise KeyError("bug")
        act_on(permit, run, answer, lost)

    monkeypatch.setattr(renewals, "_act_on", acts)
    renewing.after(4.0)
    assert seen == ["0.0", "0.1", "0.2"]
    assert renewing.after(4.0) == ["0"], "and is no reason to renew at once"


@pytest.mark.parametrize("which", ["blocked", "ended"])
def test_who_looks_on_keeps_nothing_from_its_renewal(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    renewing = Renewing(monkeypatch)
    getattr(renewing, which).configure_mock(
        **{"renewing.side_effect": KeyError("bug"), "let_lapse.side_effect": KeyError("bug")}
    )
    assert renewing.after(12.0) == ["0"] * 3


def test_store_whose_data_always_begins_anew_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    renewing = Renewing(monkeypatch, groups=2)
    numbers = iter(range(20))  # of which two looks take some
    execute = renewing._execute

    def anew(client: Any, call: Any) -> Any:
        renewing.birth = f"n{next(numbers)}" if '"0.' in str(call.arguments[-1]) else BIRTH
        return execute(client, call)

    monkeypatch.setattr(module, "execute", anew)
    assert "1" in renewing.after(4.0)
    assert next(numbers) < 10, "each look gives up"
