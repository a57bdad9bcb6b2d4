"""Looking at a page: what it says, what it complains of, what it draws."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PATIENCE = 120_000  # milliseconds for whatever a test waits for; machines may be busy
WIDE = {"viewport": {"width": 1280, "height": 860}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}


@contextmanager
def opened(browser: Any, path: Path, name: str = "", **options: Any) -> Iterator[Any]:
    """A page from the disk; it must neither complain nor ask anybody for anything."""
    context = browser.new_context(**(options or WIDE))
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    address = path.as_uri() + (f"#{name}" if name else "")
    try:
        page.goto(address)
        until(page, "globalThis.fugu?.view !== undefined")
        yield page
        others = [said for said in complaints if said != path.as_uri()]
        assert not others, others
    finally:
        context.close()


def run(page: Any, steps: int) -> None:
    """Make steps, as the button for one does."""
    page.evaluate("steps => { for (let i = 0; i < steps; ++i) fugu.view.step(); }", steps)
    draw(page)


def draw(page: Any) -> None:
    """Wait until what happened is on the page."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def observation(page: Any, copy: int = 0, group: int = 0) -> NDArray[np.uint8]:
    """The bytes that the first agent of a group sees."""
    numbers = page.evaluate(
        """([copy, group]) => {
            const { module } = fugu.view.game;
            const { observations, observationBytes } = module.groups[group];
            const begin = observations + module.row(group, copy, 0) * observationBytes;
            return [...module.memory.bytes.slice(begin, begin + observationBytes)];
        }""",
        [copy, group],
    )
    return np.array(numbers, np.uint8)


def picture(page: Any, copy: int = 0) -> NDArray[np.uint8]:
    """The pixels of a canvas, `[height, width, 3]`."""
    address = page.locator(".screen canvas").nth(copy).evaluate("canvas => canvas.toDataURL()")
    png = base64.b64decode(address.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def until(page: Any, condition: str) -> None:
    """Wait until something is true of a page, which lets nobody look at it by `eval`."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def act_by(page: Any, mode: str, agent: int = 0) -> None:
    """Choose who acts for an agent."""
    page.locator(".agent").nth(agent).get_by_text(mode, exact=True).click()
