"""The app in another release: other numbers, and a task less."""

from __future__ import annotations

from tests.chaos.tasks import make_app

app = make_app(shared=4, paced="6/s", without="leaving")
