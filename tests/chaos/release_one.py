"""The app, as most workers have it."""

from __future__ import annotations

from tests.chaos.tasks import make_app

app = make_app(shared=3, paced="8/s")
