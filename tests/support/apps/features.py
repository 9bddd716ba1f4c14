"""Tasks that wait until the test lets them go, share limits over queues, or come again."""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from typing import Any

from celery.exceptions import Reject
from celery.worker.autoscale import Autoscaler
from kombu.transport.filesystem import Channel
from kombu.utils.json import dumps

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.journal import Journal


def _put(self: Any, queue: str, payload: Any, **_: Any) -> None:
    """Write a message at once, for several processes: a consumer takes a file that is there, with what it has."""
    unique = f"{time.monotonic_ns():020d}_{uuid.uuid4()}"
    final = Path(self.data_folder_out) / f"{unique}.{queue}.msg"
    written = final.with_name(unique)  # which no consumer looks for
    written.write_text(dumps(payload))
    written.rename(final)


Channel._put = _put  # type: ignore[method-assign]


class LoggedAutoscaler(Autoscaler):
    """Celery's autoscaler, with a log of the tasks that it learns of."""

    def on_task_received(self, req: Any) -> None:
        logging.getLogger("celery").info("autoscaler: %s", req.id)


app = new_app("features")

gpu = Limit("gpu", 4)
single = Limit("single", 1)

make_held = task_maker(app, run_held)
make_timed = task_maker(app, run_for)

plain = make_timed("plain")
plain_hold = make_held("plain_hold")
work = make_timed("work", base=Throttled, limit=2)
five = make_held("five", base=Throttled, limit=5)
train = make_held("train", base=Throttled, limit=gpu)
predict = make_held("predict", base=Throttled, limit=gpu)
one = make_timed("one", base=Throttled, limit=single)
one_late = make_timed("one_late", base=Throttled, limit=single, acks_late=True)
one_hold = make_held("one_hold", base=Throttled, limit=single)
# Celery's own, local rate limit together with ours.
rated = make_timed("rated", base=Throttled, limit=2, rate_limit="20/s")


@app.task(shared=False, bind=True, base=Throttled, limit=single, max_retries=3)
def retry(self: Any, label: str, times: int = 2) -> str:
    """Retries itself, and writes how often Celery has counted."""
    with Journal.from_environment().run(self.request, label):
        if self.request.retries < times:
            raise self.retry(countdown=0)
    return label


@app.task(shared=False, bind=True, base=Throttled, limit=single, acks_late=True)
def reject_late(self: Any, label: str, *, requeue: bool = False, runs: int = 2) -> str:
    """Reject until this label ran so often."""
    with Journal.from_environment().run(self.request, label):
        if len(Journal.from_environment().runs(label)) < runs:
            raise Reject("not now", requeue=requeue)
    return label
