"""Tools for the tests of this directory: the broker's messages, and the runs that lived at one time."""

from __future__ import annotations

import json
from typing import Any

from kombu import Connection, pools
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.support.journal import Journal
from tests.support.waiting import until
from tests.support.workers import Workers

DOORS = "tests.support.apps.doors"
LIMITED = "tests.support.apps.limited"
ONCE = "tests.support.apps.once"
SEAMS = "tests.support.apps.seams"

#: A lease that a test does wait for, and the setting for the worker that dies. The others keep theirs if they stall.
SHORT_LEASE = 2
DIES = {"throttle_lease": SHORT_LEASE}
#: Worker environment: it does not look on its own, so each start was woken by a hint or handed over.
NO_LOOK = {"LOOK_EVERY": "3600"}


def unacknowledged(workers: Workers) -> dict[str, float]:
    """Return the messages that the broker has given out and not got back, with the time when it gave each out."""
    with Redis.from_url(workers.broker, decode_responses=True) as client:
        return dict(client.zrange("unacked_index", 0, -1, withscores=True))


def queued(workers: Workers, queue: str = "celery") -> int:
    """Return how many messages wait in a queue of the broker."""
    with Redis.from_url(workers.broker) as client:
        return int(client.llen(queue))


def redeliver(workers: Workers) -> None:
    """Let the broker deliver all unacknowledged messages again, as it does once the visibility timeout is over.

    By the very function that a worker calls every now and then, with a visibility timeout that has passed already.
    """
    before = unacknowledged(workers)
    with Connection(workers.broker, transport_options={"visibility_timeout": -1}) as connection:
        channel: Any = connection.default_channel

        def restored() -> bool:
            channel.qos.restore_visible(num=1000, interval=1)  # does nothing while a worker does the same
            now = unacknowledged(workers)
            return all(now.get(tag) != given_out for tag, given_out in before.items())

        until(restored)


def message_of(workers: Workers, task_id: str) -> bytes:
    """Return the message of a task that runs and is not acknowledged; `deliver` it again."""
    with Redis.from_url(workers.broker) as client:
        (found,) = (each for each in client.hvals("unacked") if task_id.encode() in each)
    return json.dumps(json.loads(found)[0]).encode()


def deliver(workers: Workers, message: bytes, queue: str = "celery") -> None:
    """Have the broker deliver a copy of a message."""
    with Redis.from_url(workers.broker) as client:
        client.lpush(queue, message)


def most_at_once(journal: Journal, limit: str) -> int:
    """Return the most runs of a limit whose processes lived at one time, as each run saw it when it began."""
    seen = [
        event["others"] for event in journal.events() if event["event"] == "beside" and event["limit"].endswith(limit)
    ]
    assert seen, f"Nothing ran under {limit}."
    return 1 + max(len(others) for others in seen)


def give_up_soon(workers: Workers) -> None:
    """Have Celery give up a result backend that is away; it tries for 20 s otherwise."""
    retry = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}
    workers.conf["result_backend_transport_options"] = {"retry_policy": retry}


def counts(journal: Journal) -> dict[str, int]:
    """Return how often each label ran."""
    runs = [run.label for run in journal.runs()]
    return {label: runs.count(label) for label in runs}


def wait_returned(journal: Journal, count: int) -> None:
    """Wait for so many runs that came to their end; an exception ends the run of a child that has to stop."""
    until(
        lambda: sum(run.outcome == "returned" for run in journal.runs()) >= count,
        describe=lambda: [(run.label, run.outcome) for run in journal.runs()],
    )


def cut(broker: EmbeddedServer) -> None:
    """Break every connection to the broker, which is there again at once."""
    pools.reset()  # the test's own ones are not meant
    with Redis.from_url(broker.url) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")


def script_calls(client: Redis) -> int:
    """Return how many scripts a server has run."""
    found: Any = client.info("commandstats")
    return sum(int(found.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))
