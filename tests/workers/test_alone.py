"""A worker without the operators' parts: remote control, commands, the page."""

from __future__ import annotations

import subprocess
import sys

from celery_throttle.embedded import EmbeddedServer
from tests.support.workers import ROOT

PROGRAM = """
import sys
sys.path.append(sys.argv[1])
sys.modules["celery_throttle.control"] = None
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_throttle import Throttled

app = Celery("alone", broker=sys.argv[2], backend=sys.argv[2])

@app.task(base=Throttled, limit=1)
def double(number):
    return 2 * number

app.finalize()
app.steps["worker"].remove("celery_throttle.control.remote_step:RemoteStep")
with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
    results = [double.delay(number) for number in range(20)]
    print(*(each.get(timeout=20) for each in results))
"""


def test_worker_without_the_operators_side_runs_tasks(server: EmbeddedServer) -> None:
    command = [sys.executable, "-c", PROGRAM, str(ROOT), server.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.split() == [str(2 * number) for number in range(20)], ended.stderr
