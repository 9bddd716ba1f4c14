"""``python -m examples.pictures FOLDER [MINUTES]``: record a run of the demo: what its tasks do, and its page.

With minutes, also run a shop for so long, which is the width of its charts, and take pictures of its page.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image
from selenium import webdriver

from celery_throttle.embedded import EmbeddedServer
from examples.animation import DARK, LIGHT, Stage, animated
from examples.demo.__main__ import perform
from examples.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from examples.demo.state import State

TASKS = 60
#: The declaration of the task in `examples.demo.app`, as the drawing shows it.
CODE = "@app.task(base=Throttled, limit=6, acks_late=True)"
PAGE = (1000, 760)
EVERY = 0.4  # seconds between two pictures of the page
LAST = 4.0  # seconds for which the last frame stays
COLOURS = 64
STILL_COLOURS = 128
_LIMIT = "name=payments-api"
#: Path and size of each still.
STILLS = {
    "page-overview": ("", (1100, 790)),
    "page-overview-dark": ("", (1100, 790)),
    "page-history": (f"limit?{_LIMIT}&most=3", (1100, 1420)),
    "page-change": (f"limit/change?{_LIMIT}&change=set&permits=8&for=2h", (1100, 650)),
}
DARK_MODE = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}


class Frame(NamedTuple):
    """A picture, and when it was taken (seconds)."""

    at: float
    png: bytes


class Recorder:
    """A view of the demo that draws its tasks, and takes pictures of its page."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.page: list[Frame] = []
        self._stack = ExitStack()
        self._ends = threading.Event()

    def __enter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pictures-"))
        processes = self._stack.enter_context(Processes(Path(folder)))
        server, url = processes.web("page", "examples.demo.page:page")
        processes.wait_ready(server)
        thread = threading.Thread(target=self._watch_page, args=[url])
        self._stack.callback(thread.join)
        self._stack.callback(self._ends.set)
        thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self, state: State) -> None:
        """Draw the tasks in this state."""
        self.stage.show(state)

    def _watch_page(self, url: str) -> None:
        with chromium(PAGE) as driver:
            driver.get(f"{url}/limit?name=examples.demo.app.render")
            while not self._ends.wait(EVERY):
                self.page.append(Frame(time.monotonic(), driver.get_screenshot_as_png()))


@contextmanager
def chromium(size: tuple[int, int]) -> Iterator[Any]:
    """Run a headless Chromium with a page of this size."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver
    finally:
        driver.quit()


def save(frames: list[Frame], path: Path) -> None:
    """Write an animated GIF that takes as long as the run did."""
    images = [Image.open(io.BytesIO(each.png)).convert("RGB") for each in frames]
    # One palette for all frames, so that only changes are stored.
    palette = _beside(images).quantize(COLOURS)
    first, *others = (each.quantize(palette=palette, dither=Image.Dither.NONE) for each in images)
    took = [(after.at - before.at) * 1000 for before, after in pairwise(frames)]
    first.save(path, save_all=True, append_images=others, duration=[*map(round, took), int(LAST * 1000)], loop=0)
    print(f"{path}: {len(frames)} frames, {path.stat().st_size // 1024} KiB")


def _beside(images: list[Image.Image]) -> Image.Image:
    width, height = images[0].size
    all_of_them = Image.new("RGB", (width, height * len(images)))
    for i, image in enumerate(images):
        all_of_them.paste(image, (0, i * height))
    return all_of_them


def stills(folder: Path, minutes: float) -> None:
    """Run the shop, and take the pictures of its page."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory(prefix="pictures-") as logs:
        os.environ["THROTTLE_URL"] = server.url
        from examples import shop  # noqa: PLC0415 - an app on this server

        with Processes(Path(logs)) as processes:
            workers = [processes.worker(name, "examples.shop", 16) for name in ("web1", "web2")]
            site, url = processes.web("page", "examples.shop:page")
            processes.wait_ready(*workers, site)
            over = threading.Event()
            customers = threading.Thread(target=shop.play, args=[minutes, over])
            customers.start()
            try:
                time.sleep(minutes * 60)
                for name, (path, size) in STILLS.items():
                    _still(folder / f"{name}.png", f"{url}/{path}", size, dark=name.endswith("dark"))
            finally:
                over.set()
                customers.join()


def _still(path: Path, url: str, size: tuple[int, int], *, dark: bool) -> None:
    with chromium(size) as driver:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", DARK_MODE if dark else {})
        driver.get(url)
        time.sleep(2)  # until the page has asked for its alarms
        still = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    still.quantize(STILL_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    """Record one run of each."""
    folder = Path(sys.argv[1])
    recorder = Recorder()
    summary = perform(TASKS, recorder)
    recorder.stage.end(summary)
    for name, colours in (("demo", LIGHT), ("demo-dark", DARK)):
        (folder / f"{name}.svg").write_text(animated(recorder.stage, CODE, colours))
    save(recorder.page, folder / "page.gif")
    if sys.argv[2:]:
        stills(folder, float(sys.argv[2]))
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main())
