"""A process that has imported all that tests need but the mutated packages, and forks for each run.

It is started with the folder of a mutated copy of `fugu` first on its path. A request is a line of
JSON on its input, an answer one on its output:

    {"tests": {ID: LIMIT}, "limit": SECONDS, "log": FILE, "lines": FILE or null}
    {"passed": [...], "failed": ID or null, "timeout": BOOL, "seconds": FLOAT}

Tests run in the given order until one fails, or has taken longer than its limit. With `lines`, all
run, and the lines of the mutated packages that each of them runs, and its seconds, are written to
that file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

COPY = Path(os.environ["PYTHONPATH"]) / "fugu"
PACKAGES = ("algos", "data", "training")
ABOVE = ("league", "sweep", "export", "hub", "zoo", "serve", "cli", "web")
UNFORKABLE = ("jax", "jaxlib", "ray", "grpc", "google", "wandb", "test_", "conftest")


class Chosen:
    """Plugin that runs chosen tests alone, in their order, and says what comes of them.

    Args:
        tests: Seconds that each may take; all tests run if empty.
        answer: What becomes the answer.
        coverage: Measures lines, by test.
    """

    def __init__(self, tests: dict[str, float], answer: dict[str, Any], coverage: Any) -> None:
        self._tests, self._answer, self._coverage = tests, answer, coverage
        self.seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the chosen ones."""
        if not self._tests:
            return
        by_id = {item.nodeid: item for item in items}
        items[:] = [by_id[name] for name in self._tests if name in by_id]
        for item in items:
            item.add_marker(pytest.mark.timeout(self._tests[item.nodeid]), append=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Lines that run from here on are this test's."""
        if self._coverage is not None:
            self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test."""
        self.seconds[report.nodeid] += report.duration
        if report.failed and self._answer["failed"] is None:
            self._answer["failed"] = report.nodeid
        if report.when == "call" and report.passed:
            self._answer["passed"].append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported has failed."""
        if report.failed and self._answer["failed"] is None:
            self._answer["failed"] = report.nodeid


def run_tests(request: dict[str, Any]) -> dict[str, Any]:
    """Run tests in this process, which ends afterwards."""
    answer: dict[str, Any] = {"passed": [], "failed": None}
    tests, coverage = request["tests"], None
    if request["lines"]:
        from coverage import Coverage

        include = [f"{COPY / name}/*" for name in PACKAGES]
        coverage = Coverage(data_file=None, config_file=False, include=include)
        coverage.start()
    chosen = Chosen(tests if not coverage else {}, answer, coverage)
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
    files = list(tests) if coverage else files
    flags = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    code = pytest.main([*files, *flags, *([] if coverage else ["-x"])], [chosen])
    if code not in (0, 1, 5) and answer["failed"] is None:
        answer["failed"] = f"pytest ended with {code}"
    if coverage is not None:
        coverage.stop()
        _write_lines(coverage.get_data(), chosen, answer, Path(request["lines"]))
    return answer


def _write_lines(data: Any, chosen: Chosen, answer: dict[str, Any], path: Path) -> None:
    lines = defaultdict[str, list[str]](list)
    for file in data.measured_files():
        for line, tests in data.contexts_by_lineno(file).items():
            lines[f"{Path(file).relative_to(COPY).as_posix()}:{line}"] += [t for t in tests if t]
    seconds = {name: chosen.seconds[name] for name in answer["passed"]}
    path.write_text(json.dumps({"seconds": seconds, "lines": lines}))


def fork(request: dict[str, Any], limit: float) -> dict[str, Any]:
    """Run tests in a fork, for so many seconds at most."""
    began = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        with contextlib.suppress(BaseException):
            os.setsid()
            handle = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(handle, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            with os.fdopen(writing, "w") as pipe:
                json.dump(run_tests(request), pipe)
            code = 0
        os._exit(code)
    os.close(writing)
    answer: dict[str, Any] = {"passed": [], "failed": None, "timeout": False}
    content = b""
    while True:
        left = began + limit - time.monotonic()
        if not select.select([reading], [], [], max(0.0, left))[0]:
            answer["timeout"] = True
            break
        piece = os.read(reading, 1 << 16)
        content += piece
        if not piece:
            break
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if content and not answer["timeout"]:
        answer |= json.loads(content)
    elif not answer["timeout"]:
        answer["failed"] = "the process ended"
    return answer | {"seconds": time.monotonic() - began}


def preload(tests: list[str], log: str) -> None:
    """Import all that these tests import, but for what is mutated or imports it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(handle, stream)
        pytest.main([*tests, "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"])
        with os.fdopen(writing, "w") as pipe:
            json.dump([name for name, module in sys.modules.items() if module is not None], pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names = json.load(pipe)
    os.waitpid(child, 0)
    for name in names:
        parts = name.split(".")
        mine = parts[0] == "fugu" and parts[1:2] and parts[1] in PACKAGES + ABOVE
        if not mine and not name.startswith(UNFORKABLE) and "<" not in name:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    left = [name for name in sys.modules if name.startswith(tuple(f"fugu.{p}" for p in PACKAGES))]
    if left:
        raise SystemExit(f"imported too early: {left}")


def main() -> None:
    """Answer requests until the input ends."""
    sys.path.pop(0)  # the folder of this file
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if "preload" in request:
            preload(request["preload"], request["log"])
            answer: dict[str, Any] = {"threads": len(os.listdir("/proc/self/task"))}
        else:
            answer = fork(request, request["limit"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
