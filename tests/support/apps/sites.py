"""Tasks whose limits have permits on each host, on each worker, or on each value of a tag."""

from __future__ import annotations

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_held, task_maker

app = new_app("sites")

GPU = Limit("gpu", 2, per="host")
BOX = Limit("box", 1, per="gpu_box")
THUMBS = Limit("thumbs", share=0.5, per="worker")

make_held = task_maker(app, run_held)
train = make_held("train", base=Throttled, limit=GPU)
boxed = make_held("boxed", base=Throttled, limit=BOX)
thumb = make_held("thumb", base=Throttled, limit=THUMBS)
