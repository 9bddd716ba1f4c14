"""Workers of two releases: options that differ are reported, and a lock is honoured by what its message has."""

from __future__ import annotations

import re
from typing import Any

from celery_throttle import ThrottleControl
from tests.support.waiting import until
from tests.support.workers import Workers

RELEASES = "tests.support.apps.releases"


def release(**tasks: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a release in which these tasks have other options."""
    return {"task_annotations": {f"{RELEASES}.{name}": options for name, options in tasks.items()}}


def test_options_that_differ_are_reported(workers: Workers) -> None:
    """Each with the workers that have it; the numbers of limits are compared beside them."""
    app = workers.start_app(RELEASES, pool="threads")
    newer = release(pay={"singleton": False}, pay_one={"key": "label", "unique_on": ["label"]})
    workers.start(RELEASES, pool="threads", conf=newer | {"throttle_lease": 30}, env={"RELEASE": "other"})
    control = ThrottleControl(app.app)

    def said() -> list[str]:
        report = control.report()
        found = [each for each in report.alarms + report.remarks if each.kind == "declared"]
        told = [f"{'!' if each.alarm else '-'} {each.what.partition(' ')[2]}" for each in found]
        return [re.sub(r"(w\d)@[^ ,.]+|\(code \w{8}, Python [0-9.]+\)", r"\1", each) for each in told]

    here, function = "w1 and this code", f"{RELEASES}.<lambda> "
    told = until(said)
    by_function = next(each for each in told if " keyed " in each)  # in the order of the hashes
    assert f"{function} on w2" in by_function
    assert f"{function} on {here}" in by_function
    assert set(told) - {by_function} == {
        f"! declare limit {RELEASES}.pay_one differently: key is 'label' on w2, not set on {here}.",
        f"! declare task {RELEASES}.pay differently: singleton is True on {here}, not set on w2.",
        f"! declare task {RELEASES}.pay_one differently: unique_on is ['label'] on w2, not set on {here}.",
        "- have the settings of app releases differently: throttle_lease is 30.0 on w2, not set on w1.",
    }
