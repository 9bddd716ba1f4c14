"""Whatever is raised at the end of a run, its permit is given back; one that is held by no run is ended by a look."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.message import Message as Delivered

from celery_throttle import RateLimited
from celery_throttle.core.facts import Message, Result
from celery_throttle.worker.running import Running
from celery_throttle.worker.runs import Content, Permit, Run
from celery_throttle.worker.store_side.closed_buckets import ClosedBuckets
from celery_throttle.worker.store_side.outbox import Outbox, returning
from celery_throttle.worker.store_side.stray_permits import end_strays
from tests.unit.runs import GPU, request_of


class Broken(Exception):
    """Of a part that is broken."""


class Parts:
    """A worker with one run in its pool, of which one part is broken: its name, or "" for none."""

    def __init__(self, broken: str = "") -> None:
        def part(name: str, result: object = None) -> Callable[..., Any]:
            def act(*_: object, **__: object) -> object:
                if name == broken:
                    raise Broken(name)
                return result

            return act

        self.outbox, held = Outbox(), dict[str, Permit]()
        tally = SimpleNamespace(started=part("tally.started"), ended=part("tally.ended"), add=part("tally.add"))
        self.calls: Any = SimpleNamespace(outbox=self.outbox, tally=tally, held=held, freed=0, returning=[])
        groups: Any = {"": self.calls}
        slots: Any = SimpleNamespace(
            passed_on=True, run=part("pool"), stopped=lambda _: False, has_lost=lambda _: True, discarded=lambda _: True
        )
        tasks: Any = SimpleNamespace(is_plain=lambda _: False)
        loop: Any = SimpleNamespace(turning=False, post=part("loop"))
        notices: Any = SimpleNamespace(limited=part("notices"))
        broker: Any = SimpleNamespace(epoch=0)
        blocked: Any = SimpleNamespace(ended=part("blocked"))
        nothing: Any = SimpleNamespace()
        self.running = Running(
            slots, tasks, loop, groups, notices, part("fail"), blocked, broker, ClosedBuckets(), nothing
        )
        hooks: dict[str, Any] = dict.fromkeys(("on_success", "on_failure", "on_timeout", "reject"), part("hook"))
        request = request_of("a", time_start=None, request_dict={}, send_event=part("event"), **hooks)
        request.acknowledged = True
        request.message = Delivered(body="[[], {}, {}]", content_type="application/json", content_encoding="utf-8")
        request.message.headers = {"trace": object()} if broken == "pack" else {}
        if broken == "unwatch":
            type(request).__delattr__ = part("unwatch")
        self.run = Run(request, Content("a", needs=GPU), epoch=0, nonce="w:1")
        self.running.hold_permit(self.run, Permit(self.run))
        self.running.runs.add(self.run)

    def end(self, how: str) -> None:
        """End the run in one of the ways."""
        running: Any = self.running
        ends: dict[str, Callable[[], None]] = {
            "ended": lambda: running._ended(self.run, Result.SUCCESS),
            "died": lambda: running._died(self.run, ValueError("odd")),
            "limited": lambda: running._limited(self.run, RateLimited(1.0)),
            "cannot start": lambda: running.cannot_start(self.run, ValueError("odd")),
            "lost": running.lost,
            "discarded": running.discarded,
            "finish": running.finish,
        }
        ends[how]()

    @property
    def is_free(self) -> bool:
        """Whether the permit is on its way back: to the store, or in line with its task."""
        rows = [row for row in self.outbox._changed if row.event == "ended"]
        back = returning(self.outbox.arrived)
        assert len(rows) + len(back) <= 1, (rows, back)
        return bool(back) or bool(rows and not self.calls.held and self.run.permit is None)


def test_run_that_was_granted_after_its_deadline_does_not_start() -> None:
    """Its call was sent again when the store was back."""
    parts, ended = Parts("pool"), list[str]()
    parts.running.runs.clear()
    parts.run.request._announce_revoked = lambda why, *_: ended.append(why)
    parts.run.needs = replace(parts.run.needs, wait_ms=0)
    parts.running.execute(parts.run)
    assert ended == ["expired"]
    assert parts.is_free
    assert not parts.running.runs


WAYS = {
    "ended": ("blocked", "tally.ended", ""),
    "died": ("blocked", "tally.ended", "fail", ""),
    "limited": ("pack", "notices", "event", "tally.add", ""),
    "cannot start": ("fail", ""),
    "lost": ("",),
    "discarded": ("",),
    "finish": ("",),
}


@pytest.mark.parametrize(("how", "broken"), [(how, part) for how, parts in WAYS.items() for part in parts])
def test_permit_is_given_back_whatever_is_broken(how: str, broken: str) -> None:
    parts = Parts(broken)
    try:
        parts.end(how)
    except Broken as error:
        assert str(error) == broken  # noqa: PT017 - some are logged
    assert parts.is_free
    assert parts.run not in parts.running.runs


def test_run_that_cannot_be_packed_fails() -> None:
    failed: list[tuple[Run, Exception]] = []
    parts = Parts("pack")
    parts.running._fail = lambda run, error: failed.append((run, error))
    parts.end("limited")
    ((run, error),) = failed
    assert run is parts.run
    assert "trace" in str(error) or "object" in str(error)


def test_count_of_a_start_that_raises_leaves_the_run_to_the_pool() -> None:
    """The pool has it, so its request must not be failed beside that."""
    parts = Parts("tally.started")
    parts.running.execute(parts.run)
    assert parts.run in parts.running.runs
    assert parts.calls.held


def test_permit_without_a_run_is_ended_and_named(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts()
    caplog.set_level(logging.ERROR, "celery_throttle")
    end_strays(parts.calls, parts.running.runs, epoch=0)
    assert parts.calls.held  # its run is in the pool
    parts.running.runs.clear()
    end_strays(parts.calls, parts.running.runs, epoch=0)
    (row,) = parts.outbox._changed
    assert (row.event, row.task, row.facts and row.facts.result) == ("ended", "a", Result.NOTHING)
    assert row.facts is not None
    assert row.facts.message is Message.NOBODY
    assert not parts.calls.held
    (record,) = caplog.records
    assert "task a[a] is over, and its permit was still held here" in record.getMessage()


def test_permit_of_a_run_that_goes_back_in_line_is_no_stray() -> None:
    parts = Parts()
    parts.end("limited")
    parts.calls.returning = returning(parts.outbox.arrived)
    assert parts.calls.returning == [parts.run]
    end_strays(parts.calls, parts.running.runs, epoch=0)
    assert parts.calls.held
