"""Pages in a browser: bytes of a module, time to the first paint, frames a second.

    python benchmarks/web.py [--quick] [--json FILE]

Breakout with the policy that `fugu train breakout` has before it learned anything, exported as C;
one copy that the policy plays, then 16 side by side, in Chromium without a screen, which draws by
the processor. Frames are those that the page drew: as many as a screen of 60 Hz shows, then
without that limit. Medians over fresh pages from the disk.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from claims import Claim, Options, finish

from fugu.envs.resolve import resolve
from fugu.export.c_writer import write_c
from fugu.nets.reading import read_policy
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import make_policy
from fugu.web import write_gallery, write_page
from fugu.web.pages import Page

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
UNLIMITED = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
FRAMES = """seconds => new Promise(done => {
    let count = -1, first = 0;
    const frame = now => {
        if (++count === 0) first = now;
        if (now - first >= 1000 * seconds) done(1000 * count / (now - first));
        else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
COPIES = """copies => {
    const select = document.querySelector("[data-copies]");
    select.value = copies;
    select.dispatchEvent(new Event("change"));
}"""


def breakout_page(folder: Path) -> Page:
    """The page of breakout and a policy."""
    (group,) = resolve("breakout")().groups
    net = read_policy(make_policy(group, PolicyConfig()).eval(), group.observation_layout)
    report = write_c(net, folder / "c")
    return write_page(folder / "page", "breakout", (report.header, report.source))


def opened(browser: Any, page: Page) -> Any:
    """A fresh page, loaded."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    view = context.new_page()
    view.goto(page.path.as_uri())
    view.wait_for_selector("canvas", state="attached", timeout=60_000)
    view.wait_for_timeout(500)
    return view


def frames(browser: Any, page: Page, copies: int, seconds: float) -> float:
    """Frames a second of a page on which the policy plays."""
    view = opened(browser, page)
    view.evaluate(COPIES, str(copies))
    view.wait_for_timeout(300)
    found: float = view.evaluate(FRAMES, seconds)
    view.context.close()
    return found


def first_paint(browser: Any, page: Page, runs: int) -> float:
    """Milliseconds from the address to something to see."""
    times = []
    for _ in range(runs):
        view = opened(browser, page)
        times.append(view.evaluate(PAINT))
        view.context.close()
    return median(times)


def measure(program: str, page: Page, gallery: Page, options: Options) -> float:
    """Print what the browser does; frames a second of one agent without a limit."""
    from playwright.sync_api import sync_playwright

    runs, seconds = (3, 3.0) if options.quick else (9, 10.0)
    with sync_playwright() as playwright:
        paced = playwright.chromium.launch(executable_path=program)
        print(f"Chromium {paced.version}")
        for name, shown in (("breakout", page), ("gallery", gallery)):
            size = shown.path.stat().st_size / 1e3
            taken = first_paint(paced, shown, runs)
            print(f"{name}: {size:,.0f} kB, first paint after {taken:.0f} ms (median of {runs})")
        for copies in (1, 16):
            print(f"{copies} copies: {frames(paced, page, copies, seconds):.1f} frames/s at 60 Hz")
        paced.close()
        free = playwright.chromium.launch(executable_path=program, args=list(UNLIMITED))
        found = {copies: frames(free, page, copies, seconds) for copies in (1, 16)}
        for copies, rate in found.items():
            print(f"{copies} copies: {rate:.0f} frames/s without a limit")
        free.close()
    return found[1]


def main(options: Options) -> None:
    """Measure and report."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    with tempfile.TemporaryDirectory() as folder:
        page = breakout_page(Path(folder))
        size = float(page.module_bytes["breakout"])
        print(f"breakout and its policy: {size:,.0f} bytes of WebAssembly")
        if program is None:
            print("Chromium is absent: make chromium")
            rate = None
        else:
            rate = measure(program, page, write_gallery(Path(folder) / "gallery"), options)
    finish(
        [
            Claim("web-module", size, 200_000, at_most=True, fugu=size, unit="bytes"),
            Claim("web-frames", rate, 60, fugu=rate, unit="frames/s"),
        ],
        options,
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
