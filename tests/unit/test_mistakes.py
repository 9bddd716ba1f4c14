"""Mistakes of users, and the messages for them: the task, the option, the given value, the right one."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from celery_throttle import ConfigurationError, Limit, RateLimited, ThrottleControl, Throttled
from celery_throttle.primitives import AsyncIdentityLock, Counter, FairSemaphore, IdentityLock, RateLimiter, Redlock
from tests.unit.refusals import make_app, message_of, rows, task_of


def body(order_id: Any, amount: int = 0) -> None:
    """Be a task."""


def no_key(order_id: Any, amount: int = 0) -> None:
    """Forget to return anything."""


def any_arguments(**_: Any) -> None:
    """Be a task with the arguments of the examples."""


class Api(Limit):
    """A limit class of one's own."""


class Own(Throttled):
    """A task class of one's own."""


THROTTLE = ThrottleControl(make_app())
GPU = Limit("gpu", 4)
CLASSES = (Limit, RateLimited, Throttled, ThrottleControl, AsyncIdentityLock, Counter, FairSemaphore, IdentityLock)
#: The names in the rows. No server answers the client.
NAMES: dict[str, Any] = {str(each.__name__): each for each in (*CLASSES, RateLimiter, Redlock, Api, Own)}
NAMES |= {"GPU": GPU, "TENANT": Limit("tenant", 2, key="tenant_id"), "MAIL": Limit("mail", rate="10/s")}
NAMES |= {"APP": make_app(), "THROTTLE": THROTTLE, "LIMIT": THROTTLE.limit(GPU)}
NAMES |= {"CLIENT": Redis(port=1), "AsyncRedis": AsyncRedis}
NAMES |= {each.__name__: each for each in (body, no_key, task_of)}

#: The words of a message before its suggestion.
FIX = re.compile(r"[:;,] (write|use|did you mean|give|have it|raise|name|leave|round)\b|, so leave")

#: Options, and the message when the task is bound.
BOUND = rows(r"""
limit='gpu' => limit must be a whole number from 1 to 999999999, a Limit or a list of up to 8 of them, got 'gpu'; write
limit=('gpu', 3) => got ('gpu', 3); write limit=5 or limit=Limit('gpu', 4)
limit='5' => got '5'; write limit=5
limit='10/m' => got '10/m'; write rate='10/m'
limit=True => a Limit or a list of up to 8 of them, got True; write limit=5
limit=0 => got 0; write limit=1, or let none start for now: ThrottleControl(app).limit(task).pause()
limit=10**9 => got 1000000000; write limit=5
limit=[] => got []; write limit=5
limit=[Limit('gpu', 4), 'b'] => got [Limit('gpu', 4), 'b']; write limit=5
limit=[Limit('gpu', 4)] * 9 => a list of up to 8 of them, got [Limit('gpu', 4),
limit=[Limit('gpu', 4), Limit('gpu', 4)] => limit 'gpu' is there twice: name each limit once
limit=lambda order_id, amount=0: 5 => ; write limit=5, key='customer_id': the number is the same for each key
limit=Api => ; write limit=Api('gpu', 4): a limit, not its class
limit=[Limit('a', 2), Api] => ; write limit=Api('gpu', 4): a limit, not its class
limit=[Limit('a', 1, group='eu'), Limit('b', 1, group='us')] => limit 'a' is in group 'eu' and limit 'b' in 'us', which
limit=[Limit('a', 1, fair_by='order_id'), Limit('b', 1, fair_by='amount')] => both have fair_by
limit=Limit('a', 2), burst=3 => in the Limit here: write limit=Limit('a', 2, rate='100/m', burst=3)
limit=Limit('a', 2, key='order_id'), max_parked=7 => write limit=Limit('a', 2, key='order_id', max_parked=7)
limt=5 => unknown option 'limt', did you mean 'limit'?
# -- key, fair_by, weights
key='order_id' => key needs a limit or a rate beside it: write limit=5, key='order_id'
limit=2, key='customer' => key names 'customer', but the task takes amount, order_id: name one of these
limit=2, key='order' => key names 'order', but the task takes amount, order_id: did you mean 'order_id'?
limit=2, key=lambda: 1 => which takes (order_id, amount=0): write key=lambda order_id, amount: ...
limit=2, key=lambda a, b, c: 1 => the function given as key takes (a, b, c), but it is called with
limit=2, key=['order_id'] => got ['order_id']: write key='order_id'
limit=2, key=('order_id', 'amount') => write key=lambda order_id, amount, **_: f'{order_id}/{amount}'
limit=2, key='order_id..customer' => got 'order_id..customer': write key='order_id.customer'
limit=2, key=5 => key must be the name of an argument such as 'customer_id', or a function of the arguments
fair_by='order_id' => fair_by needs a limit or a rate beside it: write limit=5, fair_by='order_id'
limit=2, fair_by=lambda: 1 => the function given as fair_by takes ()
limit=2, weights={'gold': 3} => weights needs fair_by beside it: write fair_by='tenant_id', weights=
weights={'a': 2} => a limit or a rate beside it: write limit=5, fair_by='tenant_id', weights={'a': 2}
limit=2, fair_by='order_id', weights=[3] => weights must be a dict of numbers by value of fair_by, got [3]
limit=2, fair_by='order_id', weights={'gold': 0} => weights['gold'] must be a whole number from 1 to 1000
limit=2, fair_by='order_id', weights={'gold': 1001} => from 1 to 1000, got 1001: write weights=
# -- cost, start_deadline, max_parked
cost=2 => cost needs a limit: write limit=5, cost=2
limit=2, cost=lambda: 1 => the function given as cost takes ()
limit=2, cost='amont' => cost names 'amont', but the task takes amount, order_id: did you mean 'amount'?
limit=2, cost=100001 => cost must be a whole number from 1 to 100000, got 100001: write cost=2
limit=2, cost=0 => cost must be a whole number from 1 to 100000, got 0: write cost=2
limit=1, cost=3 => cost 3 is more than the 1 permit of limit 'shop.f': raise the one or lower the other
start_deadline=30 => start_deadline needs a limit: write limit=5, start_deadline=30
limit=2, start_deadline=0 => start_deadline must be seconds or a timedelta, from 0.001 to 315360000, got 0: write
max_parked=100 => max_parked needs a limit or a rate beside it: write limit=5, max_parked=100
limit=2, max_parked=0 => max_parked must be a whole number from 1 to 999999999, got 0: write max_parked=1000
# -- rate, burst
rate='5' => Task shop.f: rate: A rate is text such as '100/m', got '5': write
rate='5/x' => got '5/x': write '10/s', '100/m', '5000/h' or '1/d'
rate=5 => got 5: write '10/s'
rate=b'10/s' => got b'10/s': write '10/s'
rate=(100, 60) => got 100: write '10/s'
rate='5 per hour' => got '5 per hour': write '5/h'
rate='5/minute' => got '5/minute': write '5/m'
rate='100/M' => got '100/M': write '100/m'
rate='0.5/s' => got '0.5/s': write '10/s'
rate='0/s' => got '0/s': write a number from 1
rate='1000000000001/s' => got '1000000000001/s': write a number from 1 to 1000000000000
rate=[] => Give one rate or up to 8, got 0: write '10/s'
rate=['10/s', '5000/h'] => 10/s never matters beside 5000/h with a burst of 1, which starts one every 0.72 s
limit=2, burst=3 => burst needs a rate beside it: write rate='100/m', burst=10
key='order_id', burst=5 => key, burst needs a rate beside it: write rate='100/m', key='order_id', burst=5
rate='1/s', burst=0 => burst must be a whole number from 1 to 1000000, got 0: write burst=10
rate='1/s', burst=1000001 => burst must be a whole number from 1 to 1000000, got 1000001
rate='1/s', burst='10' => burst must be a whole number from 1 to 1000000, got '10': write burst=10
rate='1/s', burst=[1, 2] => burst [1, 2] has 2 numbers for 1 rate: give one for all, burst=10, or one for
# -- singleton
singleton=1 => singleton must be True or False, got 1: write singleton=True
singleton='order_id' => got 'order_id': write singleton=True, unique_on=['order_id']
singleton=['order_id'] => got ['order_id']: write singleton=True, unique_on=['order_id']
unique_on=['order_id'] => unique_on needs singleton=True beside it: write singleton=True, unique_on=['order_id']
singleton=True, unique_on=lambda: 1 => the function given as unique_on takes ()
singleton=True, unique_on=['order'] => unique_on names 'order', but the task takes amount, order_id: did you mean
singleton=True, unique_on='order_id' => got 'order_id': write unique_on=['order_id']
singleton=True, unique_on={'order_id'} => unique_on must be a list of argument names such as ['order_id']
singleton=True, unique_on=[1] => unique_on must be a list of argument names such as ['order_id']
singleton=True, lock_until='until' => 'started', 'expires', got 'until': write lock_until='finished'
singleton=True, lock_until=60 => got 60: write lock_until='finished'
singleton=True, on_conflict='rais' => got 'rais': write on_conflict='raise'
on_conflict='raise' => on_conflict needs singleton=True beside it: write singleton=True, on_conflict='raise'
singleton=True, remember=-1 => from 0 to 315360000, got -1: write remember=3600
singleton=True, remember=315360001 => from 0 to 315360000, got 315360001: write remember=3600
singleton=True, remember=True => from 0 to 315360000, got True: write remember=3600
singleton=True, remember=60, lock_until='started' => at its start the outcome is not known
singleton=True, remember=60, lock_until='expires' => lock_ttl alone sets how long it counts
singleton=True, remember=60, on_conflict='keep_last' => a remembered call does not run again
singleton=True, remember=60, on_conflict='replace' => a remembered call does not run again
singleton=True, lock_until='started', on_conflict='keep_last' => makes no sense: use 'replace'
singleton=True, lock_until='expires', on_conflict='keep_last' => makes no sense: use lock_until='finished'
singleton=True, lock_until='expires', on_conflict='replace' => makes no sense: use lock_until='finished'
singleton=True, lock_ttl=0 => lock_ttl must be seconds or a timedelta, from 1 to 315360000, got 0: write lock_ttl=3600
lock_ttl=60, remember=5 => lock_ttl, remember needs singleton=True beside it
""")


def options_of(code: str) -> dict[str, Any]:
    found: dict[str, Any] = eval(f"dict({code})", NAMES)
    return found


def written(message: str) -> list[dict[str, Any]]:
    """Return the options that a message suggests, each way that it names; none if they are no code."""
    option, text = re.match(r"Task shop\.f: (?:(rate): )?", message)[1], message.rpartition("write ")[2]  # type: ignore[index]
    ways = re.split(r" or (?=\w+=)", text)
    if text.endswith("..."):
        return []
    if option and not re.match(r"\w+=", text):
        ways = [f"{option}={text}" if text[:1] == "[" else f"{option}={text.partition(', ')[0]}"]
    with suppress(SyntaxError):
        return [options_of(re.split(": (?=[a-z])|, or ", way)[0]) for way in ways]
    return []


@pytest.mark.parametrize(("code", "said"), BOUND)
def test_message_when_a_task_is_bound_has_a_fix_that_works(code: str, said: str) -> None:
    options = options_of(code)
    message = message_of(lambda: task_of(body, **options))
    assert message.startswith("Task shop.f: ")
    assert said in message
    assert FIX.search(message)
    wrong = re.findall(r"\w+", message.removeprefix("Task shop.f: ").removeprefix("unknown option"))[0]
    for fix in written(message):  # which works
        task_of(any_arguments, **{name: value for name, value in options.items() if name != wrong} | fix)


def test_most_messages_have_a_tested_suggestion() -> None:
    messages = [message_of(partial(task_of, body, **options_of(row.values[0]))) for row in BOUND]
    assert sum(bool(written(message)) for message in messages) > len(BOUND) * 0.7


MISSPELT = """
singelton singleton, is_singleton singleton, remeber remember, fairby fair_by, Limit limit, limits limit, keys key,
weight weights, on_conflicts on_conflict, start_dedline start_deadline, maxparked max_parked, uniqueon unique_on,
until lock_until
"""


@pytest.mark.parametrize("names", MISSPELT.replace("\n", " ").strip().split(", "))
def test_message_for_a_misspelt_option(names: str) -> None:
    name, meant = names.split()
    message = message_of(lambda: task_of(body, limit=2, **{name: 5}))
    assert message == f"Task shop.f: unknown option '{name}', did you mean '{meant}'?"


#: Options of one call, which Celery would send along without effect.
OF_A_CALL = rows(r"""
limit=5 => limit=5 of a call does nothing: write it at the task, @app.task(base=Throttled, ...)
key='acme' => key='acme' of a call does nothing
on_conflict='raise' => on_conflict='raise' of a call does nothing: write throttle={'on_conflict': 'raise'}
unique_on=['order_id'] => write throttle={'unique_on': ['order_id']}
throttle='raise' => throttle= of a call must be a dict with 'unique_on' or 'on_conflict', got 'raise': write
throttle={'lock_until': 'success'} => got {'lock_until': 'success'}: write throttle={'on_conflict': 'raise'}
throttle={'on_conflict': 'skipped'} => got 'skipped': write on_conflict='skip'
throttle={'unique_on': 'order_id'} => got 'order_id': write unique_on=['order_id']
throttle={'unique_on': ['order']} => unique_on: the call has no 'order', only order_id, amount
""")


@pytest.mark.parametrize(("code", "said"), OF_A_CALL)
def test_message_for_the_options_of_a_call(code: str, said: str) -> None:
    message = message_of(lambda: task_of(body, singleton=True).apply_async((1,), **options_of(code)))
    assert message.startswith("Task shop.f: ")
    assert said in message


#: A task is made and called, and the message for its caller.
CALLED = rows(r"""
task_of(body, limit=2, key=no_key).delay(1) => the function given as key returned None: have it return text or a number
task_of(body, singleton=True, unique_on=no_key).delay(1) => the function given as unique_on returned None
task_of(body, limit=2, key=lambda order_id, **_: order_id['a']).delay(1)
    => the function given as key raised TypeError: 'int' object is not subscriptable
task_of(body, limit=2, key=lambda customer: 1).delay(1, 2)
    => the function given as key takes (customer), but the call has 2
task_of(body, limit=2, key='order_id').delay(object()) => key: cannot compare object values: name an argument that is
task_of(body, limit=2, fair_by='order_id').delay(object()) => fair_by: cannot compare object values
task_of(body, limit=2, key='order_id.a').delay(3) => key: the call has no 'order_id.a', only order_id, amount
task_of(body, limit=2, key='order_id', typing=False).delay() => key: the call has no 'order_id' (missing order_id)
task_of(body, limit=2, cost=lambda *_: '3').delay(1) => cost must be a whole number from 1 to 100000, got '3': write co
task_of(body, singleton=True).delay(object()) => cannot compare its arguments with those of another call
task_of(body, singleton=True, unique_on=['order_id'], typing=False).delay() => the call has no 'order_id' (missing order
# -- its lock
task_of(body, singleton=True).locked_by() => Task shop.f: these are not its arguments: missing order_id
task_of(body, singleton=True).unlock(1, 2, 3) => these are not its arguments: too many positional arguments
task_of(body, singleton=True, unique_on=['order_id']).locked_by(1, 2, 3) => arguments: too many positional arguments
task_of(body, singleton=True, unique_on=['order_id']).unlock() => these are not its arguments: missing order_id
# -- an option that is set after binding
setattr(task_of(body, limit=2), 'limit', 9)
    => limit=9 comes too late: write it at the task, or for now ThrottleControl(app).limit(task).override(9)
setattr(task_of(body, limit=2), 'rate', '5/s')
    => rate='5/s' comes too late: write it at the task, @app.task(base=Throttled, rate='5/s')
setattr(task_of(body, limit=2), 'singleton', True) => write it at the task, @app.task(base=Throttled, singleton=True)
""")


@pytest.mark.parametrize(("code", "said"), CALLED)
def test_message_for_the_user_of_a_task(code: str, said: str) -> None:
    message = message_of(lambda: eval(code, NAMES))
    assert message.startswith("Task shop.f: ")
    assert said in message


def test_option_that_is_set_after_binding_has_no_effect() -> None:
    task = task_of(body, limit=2)
    with pytest.raises(ConfigurationError):
        task.limit = 9
    assert task.limit == 2
    task.max_retries = 5  # Celery's own options are not checked
    assert task.max_retries == 5


def test_error_of_a_function_is_kept_as_the_cause() -> None:
    with pytest.raises(ConfigurationError) as raised:
        task_of(body, limit=2, key=lambda order_id: {}[order_id]).delay(7)
    assert isinstance(raised.value.__cause__, KeyError)


OTHERS = rows(r"""
Throttled(limit=3)(body) => Throttled is no decorator: write @app.task(base=Throttled, limit=3)
Throttled(5)(body) => Throttled is no decorator: write @app.task(base=Throttled, limit=5)
Throttled(body) => Throttled is no decorator: write @app.task(base=Throttled, limit=5)
Throttled() => Throttled is no decorator: write @app.task(base=Throttled, limit=5)
Own(limit=3) => Own is no decorator: write @app.task(base=Own, limit=3)
# -- Limit
GPU.__enter__() => Limit 'gpu': it takes a permit to be held: write with limit.acquire(timeout=30): ...
GPU.__aenter__().send(None) => it takes a permit to be held: write async with limit.acquire_async(timeout=30): ...
GPU.release() => Limit 'gpu': release() gives back a permit: write permit = limit.acquire(), then permit.release()
GPU.acquire_async(app=APP).__enter__() => acquire_async is for async with: or write with limit.acquire(timeout=30): ...
# -- RateLimited
RateLimited(countdown=5) => RateLimited takes no countdown=5: write RateLimited(30)
RateLimited(-1) => retry_after must be seconds or a timedelta, from 0 to 315360000, got -1: write
RateLimited(315360001) => got 315360001: write retry_after=30
RateLimited(30, max_rounds=-1) => max_rounds must be a whole number from 0 to 999999999, got -1: write
RateLimited(30, max_retries=5) => takes no max_retries=5: write max_rounds=10
RateLimited(30, limit=3) => RateLimited: limit must be a Limit or its name, got 3
RateLimited.from_response(b'429') => takes a response with headers, got b'429': write RateLimited(30)
# -- acquire, reserve
GPU.acquire('5') => Limit 'gpu': timeout must be seconds or a timedelta, 0 or more, got '5': write
GPU.acquire(blocking=False) => Limit 'gpu': acquire takes no blocking=False: write timeout=0 not to wait
GPU.acquire(5, 'acme') => Limit 'gpu': acquire takes 'acme' by its name alone: write key='acme'
GPU.acquire(cost=5, app=APP) => Limit 'gpu': cost 5 is more than its 4 permits: raise the one or lower
GPU.acquire(cost=0, app=APP) => Limit 'gpu': cost must be a whole number from 1 to 100000, got 0: write cost=2
GPU.acquire(key='acme', app=APP) => Limit 'gpu': got key='acme': it has no keys, leave key out
GPU.acquire(app='proj') => app must be the Celery app, as in app = Celery(...), got 'proj': write app=app
GPU.acquire_async(-1) => Limit 'gpu': timeout must be seconds or a timedelta, 0 or more, got -1
GPU.reserve(app=APP) => Limit 'gpu' has no rate to book a start of: write rate='100/m'
TENANT.acquire(app=APP) => Limit 'tenant': got key=None: name the key of the permit, key='acme'
Limit('one', 1).acquire(cost=2, app=APP) => Limit 'one': cost 2 is more than its 1 permit: raise the one
Limit('one', rate='5').acquire(app=APP) => Limit 'one': rate: A rate is text such as
MAIL.reserve(max_wait=-1, app=APP) => max_wait must be seconds or a timedelta, 0 or more, got -1: write max_wait=30
MAIL.reserve(timeout=5) => Limit 'mail': reserve takes no timeout=5: write max_wait=30
# -- ThrottleControl
ThrottleControl('proj') => app must be the Celery app, as in app = Celery(...), got 'proj': write app=app
ThrottleControl() => ThrottleControl needs app
THROTTLE.limit(5) => the name of a limit, the Limit or its task is wanted, got 5: write limit('api')
THROTTLE.limit('api', 'acme') => ThrottleControl: limit takes 'acme' by its name alone: write key='acme'
THROTTLE.limit(GPU, key='acme') => Limit 'gpu' has no keys: leave key= out, or give the limit a key
THROTTLE.explain('') => a task's id or what delay() returned is wanted, got '': write explain(result.id)
THROTTLE.holders(key='acme') => write throttle.limit('tenant', key='acme').holders()
LIMIT.override('5') => Limit gpu: permits must be a whole number from 1 to 999999999, got '5'
LIMIT.override(0) => got 0: write pause() to let none start
LIMIT.override(10**9) => from 1 to 999999999, got 1000000000: write override(5)
LIMIT.override(2, 60) => LimitControl 'gpu': override takes 60 by its name alone: write until=60
LIMIT.override(2, until='1h') => got '1h': write until=3600, or a datetime up to the year 2200
LIMIT.pause(seconds=60) => LimitControl 'gpu': pause takes no seconds=60: write until=3600
LIMIT.pause(reason='x') => takes no reason='x': write why='their incident 42'
LIMIT.pause(why=5) => Limit gpu: why must be text of 500 characters at most, got 5: write why=
LIMIT.parked(most=0) => most must be a whole number from 1 to 999999999, got 0: write most=100
# -- ThrottleControl: a hint never destroys, or changes, more than the wrong call would
LIMIT.drop('2f0c') => write throttle.drop('2f0c') for one task, throttle.limit('gpu', key='2f0c') for
LIMIT.drop(task_id='2f0c') => takes no task_id='2f0c': write throttle.drop('task-id')
LIMIT.drop(limit='api') => takes no limit='api': write throttle.limit('api')
LIMIT.drop(key='acme') => takes no key='acme': write throttle.limit('tenant', key='acme')
LIMIT.resume('acme') => write throttle.limit('gpu', key='acme') for one key
LIMIT.reset('acme') => write throttle.limit('gpu', key='acme') for one key
LIMIT.enable('acme') => write throttle.limit('gpu', key='acme') for one key
LIMIT.release_hold('acme') => write throttle.limit('gpu', key='acme') for one key
LIMIT.disable('acme') => write throttle.limit('gpu', key='acme') for one key
LIMIT.pause('acme') => write throttle.limit('gpu', key='acme') for one key
LIMIT.pause(60) => write until=60
THROTTLE.drain('gpu') => takes no 'gpu': it is of all limits and queues, throttle.drain(dry_run=True)
THROTTLE.drain(queue='a') => takes no queue='a': it is of all limits and queues
THROTTLE.drop('one', 'two') => takes no 'two': write throttle.drop('two') for another task
# -- primitives
IdentityLock('redis://h') => must be a redis.Redis, got 'redis://h': write redis.Redis.from_url('redis://h')
IdentityLock(AsyncRedis()) => client must be a redis.Redis, got a redis.asyncio.client.Redis: or use
AsyncIdentityLock(CLIENT) => client must be a redis.asyncio.Redis, got a redis.client.Redis: or use
IdentityLock(CLIENT, leese=60) => IdentityLock takes no leese=60: did you mean lease=?
IdentityLock(CLIENT, 'shop') => IdentityLock takes 'shop' by its name alone: write prefix='shop'
IdentityLock(CLIENT, lease=0) => lease must be seconds or a timedelta, from 0.01 to 315360000, got 0:
IdentityLock(CLIENT).acquire('a', timeout=5) => timeout=5 is for blocking=True
FairSemaphore(CLIENT, 'gpu') => FairSemaphore needs limit: it takes client, name, limit, lease, prefix
FairSemaphore(CLIENT, 'gpu', permits=4) => FairSemaphore takes no permits=4: it takes client, name, limit, lease
FairSemaphore(CLIENT, 'gpu', 0) => limit must be a whole number from 1 to 1000000, got 0: write limit=2
Counter(CLIENT, 5) => counter name must be 1 to 200 printable characters, got 5: write name='gpu'
RateLimiter(CLIENT, 'api', '5/min') => got '5/min': write '5/m'
Redlock(CLIENT) => Redlock needs a list of clients, got
Redlock([CLIENT]) => Redlock needs 3 or more independent servers, got 1: for one, use IdentityLock
Redlock([CLIENT] * 3, drift=2) => drift must be a part of the lease, 0 to
""")


@pytest.mark.parametrize(("code", "said"), OTHERS)
def test_other_messages(code: str, said: str) -> None:
    assert said in message_of(lambda: eval(code, NAMES))


@pytest.mark.parametrize("what", [THROTTLE.limit(GPU), THROTTLE], ids=["limit", "all"])
def test_no_method_suggests_a_value_as_author(what: Any) -> None:
    """``limit.drop("task-id")`` with ``by="task-id"`` would drop the whole line."""
    methods = [each for name, each in inspect.getmembers(what, inspect.ismethod) if not name.startswith("_")]
    signed = [each for each in methods if "by" in inspect.signature(each).parameters]
    assert len(signed) >= 3
    for method in signed:
        parameters = inspect.signature(method).parameters.values()
        too_many = ["x"] * (1 + sum(each.kind is not each.KEYWORD_ONLY for each in parameters))
        assert not re.search(r"\b(by|why)='x'", message_of(partial(method, *too_many))), method


@pytest.mark.parametrize(
    "function",
    [
        lambda order_id, amount=0: order_id,
        lambda order_id, amount: order_id,
        lambda order_id, **_: order_id,
        lambda *args, **kwargs: 1,
        lambda order, *rest: order,
        lambda customer: customer,  # a caller may give just that one
        str,
    ],
    ids=map(str, range(7)),
)
def test_functions_that_can_work(function: Any) -> None:
    assert task_of(body, limit=2, key=function, fair_by=function, singleton=True, unique_on=function)
