"""Sending a call to a server that may not know the script."""

from __future__ import annotations

from importlib.resources import files

import pytest
from redis import Redis
from redis.exceptions import NoScriptError

from celery_throttle.core.facts import Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Delivery
from celery_throttle.store.scripts import Script, execute
from tests.store.caller import KEYS, Caller, Rows, ended, passed
from tests.store.cost import commands
from tests.store.peek import peek

GATE = files("celery_throttle.store") / "lua" / "gate"
NAMES = sorted(path.name.removesuffix(".lua") for path in GATE.iterdir() if path.name.endswith(".lua"))


def test_script_unknown_to_the_server_is_loaded(worker: Caller, one: Limit, redis: Redis) -> None:
    """Restarted, failed over or flushed: the call is carried out once, and the script is known from then on."""
    redis.script_flush()
    call = worker.store.declare("", [(one.name, str(one.permits))])
    with pytest.raises(NoScriptError):
        redis.execute_command(*call.evalsha())  # type: ignore[no-untyped-call]
    execute(redis, call)
    assert peek(redis).limits == {"gpu": 1}
    with commands(redis) as calls:
        execute(redis, call)
    assert "eval" not in calls
    assert calls["evalsha"] == 1


def test_scripts_forgotten_in_between_do_not_matter(worker: Caller, two: Limit, redis: Redis) -> None:
    held = worker.take("t1", two)
    redis.script_flush()
    worker.take("t2", two)
    redis.script_flush()
    worker.release(held)
    assert peek(redis).used == {"gpu2": 1}


@pytest.mark.parametrize("name", NAMES)
def test_script_at_the_server_has_our_name_for_it(redis: Redis, name: str) -> None:
    """Every script compiles, and its SHA1 is the one we send."""
    script = Script.of_gate(name)
    assert redis.script_load(script.text) == script.sha


def test_nothing_is_written_outside_the_declared_keys(worker: Caller, one: Limit, redis: Redis) -> None:
    (grant,) = worker.put("t1", one, slots=1).grants
    worker.put("t2", one)
    worker.put("t1", one)
    worker.renew()
    worker.release(grant, slots=1)
    assert set(redis.scan_iter()) <= {key.encode() for key in KEYS.all}


def test_a_call_of_fifty_of_each_is_one_that_any_server_takes(worker: Caller, two: Limit) -> None:
    """At most 3 999 arguments (ElastiCache Serverless)."""
    some = [worker.arrival(f"t{number}", two) for number in range(50)]
    said = Rows(
        50,
        ended=[ended(each) for each in some],
        passed=[passed(each.task, each.nonce, Result.SUCCESS, each) for each in some],
        began=[(each.task, each.nonce) for each in some],
        unacked=[Delivery(each.task, 0, each.nonce) for each in some],
        revoked=[each.task for each in some],
        never=[("i", each.task, "") for each in some],
        asked=some,
        parked=[worker.parcel(f"p{number}", two) for number in range(50)],
        back=[each._replace(pause=(0.0, "")) for each in some],
    )
    call = worker.call(said, 1)
    assert len(call.arguments) < 3999
    assert len(worker.say(said).asked) == 50


def test_two_prefixes_do_not_meet(worker: Caller, one: Limit, redis: Redis) -> None:
    """Two apps on one server, with a limit of the same name."""
    worker.take("t", one)
    other = Caller(redis, "aaaaaaaa", "q", prefix="other")
    other.take("t", one)
    assert len(set(redis.scan_iter("{other}:*"))) == len(set(redis.scan_iter("{test}:*"))) > 3
