"""Messages of throttled tasks, each changed by a seed in its headers, id, properties or body."""

from __future__ import annotations

import base64
import json
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

from celery import Celery
from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from kombu.asynchronous.timer import to_timestamp
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.transport.virtual import Channel, Message

from tests.support.odd import raw

__all__ = ["TASKS", "odd_message"]

#: The tasks of the app of `tests/support/apps/odd.py` whose bodies are short.
TASKS = ("one", "one_late", "paced", "keyed", "fair", "weighed", "once")
_NAMES = {f"tests.support.apps.odd.{name}" for name in TASKS}
_HEADERS = (
    *("id", "id", "retries", "retries", "timelimit", "timelimit", "eta", "expires", "group", "group_index", "shadow"),
    *("root_id", "parent_id", "replaced_task_nesting", "ignore_result", "stamped_headers", "stamps", "origin", "lang"),
    *("argsrepr", "kwargsrepr", "fencing_token", "throttle_waited", "priority", "task", "compression", "meth"),
)
_OURS = (
    *("keys", "fair", "cost", "reserved", "identity", "claim", "on_conflict", "first", "rounds", "publication"),
    *("wait", "x"),
)
_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_info", "body_encoding", "delivery_mode", "x")
_TEXTS = (
    *(
        "",
        "x",
        "\0",
        "a\0b",
        "\x01",
        "\x1d",
        "\x1dhost",
        "\x1f",
        "\ud800",
        "\udfff",
        "a\ud800b",
        "\u0663",
        "\n",
        "a" * 5000,
    ),
    *("2020-01-01T00:00:00+00:00", "2099-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "nan", "1e999", "any", "null"),
    *("{throttle}:3:records", "*", "replace", "keep_last", "skip", "9007199254740993", "\N{SNOWMAN}", "a" * 40),
)
_NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    0.5,
    -0.0,
    1e15,
    1e308,
    -1e308,
    2**31,
    2**53,
    2**63,
    2**64,
    10**30,
    float("nan"),
    float("inf"),
)
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [1], [None], [None, None], ["x", None], [[]], {"a": 1}, {"": {}})


def odd_message(seed: int) -> dict[str, Any] | None:
    """Return a changed message, None if Celery itself could not take it, and its worker would end."""
    random = Random(seed)
    task = f"tests.support.apps.odd.{random.choice(TASKS)}"
    message = raw(task, {"throttle": _header(task, random)} if random.random() < 0.7 else None)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(_CHANGES)(message, random)
    return message if _celery_takes(message) else None


def _header(task: str, random: Random) -> dict[str, Any]:
    """Return a header as publishers of these tasks write it."""
    identity = {
        "identity": f"{random.getrandbits(160):040x}",
        "claim": "0",
        "on_conflict": "return_existing",
        "first": "",
    }
    given = {"keys": {task: random.choice("ab")}, "fair": ["a", 1], "cost": 2, "reserved": task, "rounds": 1}
    return given | {"publication": random.choice("ab")} | identity


def _value(random: Random) -> Any:
    return deepcopy(random.choice(random.choice((_TEXTS, _NUMBERS, _OTHERS))))


def _of_header(message: dict[str, Any], random: Random) -> None:
    message["headers"][random.choice(_HEADERS)] = _value(random)


def _of_ours(message: dict[str, Any], random: Random) -> None:
    header = message["headers"].setdefault("throttle", {})
    if not isinstance(header, dict) or random.random() < 0.05:
        message["headers"]["throttle"] = _value(random)
        return
    name = random.choice(_OURS)
    if name == "keys" and random.random() < 0.7:
        header["keys"] = (
            {message["headers"]["task"]: _value(random)} if isinstance(message["headers"]["task"], str) else {}
        )
    elif name == "fair" and random.random() < 0.7:
        header["fair"] = [_value(random), random.choice((1, _value(random)))]
    else:
        header[name] = _value(random)


def _of_properties(message: dict[str, Any], random: Random) -> None:
    name = random.choice(_PROPERTIES)
    info = message["properties"].get(name)
    if name == "delivery_info" and isinstance(info, dict) and random.random() < 0.8:
        info[random.choice(("exchange", "routing_key", "redelivered", "consumer_tag"))] = _value(random)
    else:
        message["properties"][name] = _value(random)


def _of_body(message: dict[str, Any], random: Random) -> None:
    if random.random() < 0.1:
        message["body"] = base64.b64encode(random.randbytes(random.randrange(60))).decode()
        return
    body: list[Any] = [["odd"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    where = random.randrange(3)
    if where == 2 and random.random() < 0.6:
        body[2][random.choice((*body[2], "x"))] = _value(random)
    elif where == 0 and random.random() < 0.6:
        body[0] = [_value(random)]
    else:
        body[where] = _value(random)
    message["body"] = base64.b64encode(json.dumps(body).encode()).decode()


_CHANGES = (_of_header, _of_header, _of_header, _of_ours, _of_ours, _of_ours, _of_properties, _of_body)


class _Decoder:
    """The part of a channel that decodes bodies, without a connection."""

    codecs = Channel.codecs
    decode_body = Channel.decode_body


@cache
def _app() -> Any:
    app = Celery("taker", broker="memory://", set_as_current=False)

    @app.task(name="any", shared=False)
    def take() -> None: ...

    app.finalize()
    return app


def _celery_takes(message: dict[str, Any]) -> bool:
    """Return whether Celery makes a request of a message, or refuses the message by itself: its own code, no worker."""
    app, raw_message = _app(), json.loads(json.dumps(message))
    try:
        hash(raw_message["headers"]["task"])
        if not isinstance(raw_message["properties"]["delivery_info"], dict):
            return False  # kombu itself writes into it
        channel: Any = _Decoder()
        received = Message(raw_message, channel=channel, accept={"application/json"})
        request: Any = Request(received, app=app, task=app.tasks["any"], hostname="h")
        {request.id}  # noqa: B018 - Celery has sets of ids
        str(request.name)
        if request.expires or raw_message["headers"]["task"] not in _NAMES:
            request.id.encode()  # Celery stores a result at once
        if request.expires:
            list(request.stamped_headers)
        if request.eta:
            to_timestamp(request.eta)
    except (InvalidTaskError, ContentDisallowed, DecodeError):
        return True
    except Exception:  # noqa: BLE001 - what would end a plain worker's loop
        return False
    return True
