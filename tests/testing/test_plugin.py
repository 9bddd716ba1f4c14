"""The pytest plugin in projects of users: its fixtures, alone and beside other plugins."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from celery_throttle.embedded import EmbeddedServer

pytest_plugins = "pytester"

PROJECT = """
    from celery import Celery
    from celery_throttle import Throttled

    app = Celery("shop", broker="redis://127.0.0.1:1")

    @app.task(base=Throttled, limit=1)
    def render(video_id):
        return video_id
"""
CONFTEST = """
    import pytest

    @pytest.fixture
    def throttle_celery_app():
        from shop import app
        return app
"""
TESTS = """
    import pytest
    from shop import render

    @pytest.mark.parametrize("number", range(4))
    def test_a_limit(throttle, throttle_worker, number):
        with throttle.hold(render):
            throttle.assert_parked(render.delay(number), behind=render, place=1)
        assert throttle.drain().failed == ()

    @pytest.mark.throttle(throttle_lease=7)
    @pytest.mark.throttle_worker(concurrency=1, queues=["films"])
    def test_markers(throttle, throttle_worker):
        assert throttle.app.conf.throttle_lease == 7
        assert throttle_worker.queues == ["films"]

    @pytest.mark.throttle(task_always_eager=True)
    def test_eager(throttle):
        throttle.assert_needs(render.s(1), permits={"shop.render": 1})
        assert render.delay(3).get() == 3
"""
FAILS = """
    def test_that_fails(throttle, throttle_worker):
        from celery_throttle.testing.app import _own
        print("PID", _own[0].pid)
        with throttle.gate():
            throttle.assert_parked(render.delay(1), within=0.1)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with an app, on the suite's server."""
    monkeypatch.setenv("THROTTLE_TEST_URL", server.url)
    pytester.makepyfile(shop=PROJECT)
    pytester.makeconftest(CONFTEST)
    return pytester


def test_import_of_the_plugin_loads_nothing_of_celery() -> None:
    """It is imported in each test run where the library is installed."""
    program = "import pytest, sys, json; before = {*sys.modules}; import pytest_celery_throttle; "
    program += "print(json.dumps(sorted({*sys.modules} - before)))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(output.stdout) == ["pytest_celery_throttle"]


def test_fixtures_begin_with_throttle_and_none_is_automatic(project: pytest.Pytester) -> None:
    shown = project.runpytest_inprocess("--fixtures").stdout.str()
    ours = shown.partition("fixtures defined from pytest_celery_throttle")[2].partition("\n---")[0]
    found = [line.split()[0] for line in ours.splitlines() if " -- " in line]
    assert sorted(found) == ["throttle", "throttle_celery_app", "throttle_server", "throttle_worker"]


def test_with_xdist(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has a server of its own, which ends with it. A failure shows no code of the kit."""
    monkeypatch.delenv("THROTTLE_TEST_URL")
    project.makepyfile(TESTS + FAILS)
    result = project.runpytest_subprocess("-n", "2", "--strict-markers")
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["E*shop.render[[]*] is not parked: it is at a gate on w1@test.", "E*status: *1/1"])
    assert "assertions.py" not in result.stdout.str()
    (pid,) = [line.split()[1] for line in result.outlines if line.startswith("PID ")]
    assert subprocess.run(["kill", "-0", pid], capture_output=True, check=False).returncode == 1


def test_without_an_app_the_error_shows_what_to_write(project: pytest.Pytester) -> None:
    project.makeconftest("")
    project.makepyfile("def test_a_limit(throttle): pass")
    result = project.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "No Celery app for the test: write in conftest.py",
            "    @pytest.fixture",
            "    def throttle_celery_app():",
            "        from proj.celery import app",
            "        return app",
        ]
    )


def test_beside_the_plugin_of_celery(project: pytest.Pytester) -> None:
    """Its ``celery_app`` is the app, where no other is given; its own fixtures still work."""
    project.makeconftest('pytest_plugins = ("celery.contrib.pytest",)')
    project.makepyfile(
        """
        import pytest
        from celery_throttle import Throttled

        @pytest.fixture
        def render(celery_app):
            @celery_app.task(base=Throttled, limit=1, name="render")
            def render(video_id):
                return video_id
            return render

        @pytest.mark.throttle(throttle_enabled=True)
        def test_ours(render, throttle, throttle_worker):
            with throttle.hold("render"):
                throttle.assert_parked(render.delay(1))

        @pytest.fixture
        def celery_config():
            return {"broker_url": "memory://", "result_backend": "cache+memory://", "throttle_enabled": False}

        @pytest.fixture
        def celery_worker_parameters():
            return {"perform_ping_check": False}

        def test_theirs(render, celery_worker):
            assert render.delay(3).get(timeout=10) == 3
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=2)
