"""`fugu serve` under load from a second process.

    python benchmarks/serve.py [--seconds 30] [--connections 64] [--engine torch] [--json FILE]

A server in a process of its own serves a small run of cartpole, or the run that is given. This
process keeps so many connections busy, each with one observation at a time, and prints requests a
second and how long they took. The claim is that none fails: every answer has the status 200 and
holds an action.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import httptools
import tyro
from claims import Claim, finish
from claims import Options as ClaimOptions

from fugu.training.session import train

START, STOP = 120.0, 60.0  # seconds for a server to begin and to end


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    seconds: float = 30.0
    """Of the load."""
    connections: int = 64
    """At a time."""
    engine: str = "torch"
    """What runs the policy."""
    run: str = ""
    """A run's folder; a new one of cartpole if not given."""
    max_wait_ms: float = 0.0
    """Of the server."""
    json: Path | None = None
    """Append one row for each claim to this file."""


@dataclass
class Tally:
    """What came of the requests."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection, which asks again as soon as it is answered."""

    def __init__(self, request: bytes, tally: Tally, end: float) -> None:
        self._request, self._tally, self._end = request, tally, end
        self._parser, self._body = httptools.HttpResponseParser(self), b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._body, self._began = b"", time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """A part of an answer."""
        self._body += body

    def on_message_complete(self) -> None:
        """An answer."""
        now, status = time.perf_counter(), self._parser.get_status_code()
        self._tally.seconds.append(now - self._began)
        if status != 200 or "action" not in json.loads(self._body):
            self._tally.errors.append(f"{status}: {self._body[:200]!r}")
        if now < self._end:
            self._parser = httptools.HttpResponseParser(self)
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, or a failure."""
        if time.perf_counter() < self._end:
            self._tally.errors.append(f"the connection was lost: {exc}")
        if not self.done.done():
            self.done.set_result(None)


async def load(url: str, options: Options, seconds: float) -> Tally:
    """Keep connections busy for a while."""
    place, tally = urlsplit(url), Tally()
    with urlopen(f"{url}/schema", timeout=START) as answer:
        examples = json.load(answer)["examples"]
    if not examples:
        raise SystemExit("run: given one whose observations are large; allowed: small ones.")
    body = json.dumps(examples[0]).encode()
    head = f"POST /act HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    end, loop = time.perf_counter() + seconds, asyncio.get_running_loop()
    clients = [
        (
            await loop.create_connection(
                lambda: Client(request, tally, end), place.hostname, place.port
            )
        )[1]
        for _ in range(options.connections)
    ]
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), seconds + STOP)
    return tally


@contextmanager
def served(folder: Path, options: Options) -> Iterator[str]:
    """A server of a run, in a process of its own; its address."""
    command = [sys.executable, "-m", "fugu.cli.main", "serve", options.run or str(folder / "pole")]
    flags = ["--port", "0", "--engine", options.engine, "--max-wait-ms", str(options.max_wait_ms)]
    server = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        found = re.search(r"http://\S+", server.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        yield found.group()
    finally:
        server.terminate()
        print(server.communicate(timeout=STOP)[0].strip())


def batch_size(url: str) -> float:
    """Observations of a pass, on average."""
    with urlopen(f"{url}/metrics", timeout=START) as answer:
        text = answer.read().decode()
    total, count = (
        float(re.search(rf"^fugu_serve_batch_observations_{name} (\S+)", text, re.M)[1])  # type: ignore[index]
        for name in ("sum", "count")
    )
    return total / count


def main(options: Options) -> None:
    """Train a little, serve, load, and judge."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.run:
            settings = {"total_steps": 1024, "horizon": 16}
            where = {"folder": folder, "name": "pole"}
            train("cartpole", train=settings, vec={"num_envs": 16}, run=where, show=False)
        with served(folder, options) as url:
            asyncio.run(load(url, options, min(1.0, options.seconds)))  # warm up
            began = time.perf_counter()
            tally = asyncio.run(load(url, options, options.seconds))
            elapsed, size = time.perf_counter() - began, batch_size(url)
    times = sorted(tally.seconds)
    p50, p99 = (times[int(len(times) * share)] * 1e3 for share in (0.5, 0.99))
    rate = len(times) / elapsed
    print(
        f"{options.connections} connections for {elapsed:.1f} s, engine {options.engine}: "
        f"{rate:.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, "
        f"{size:.1f} observations a pass, {len(tally.errors)} errors"
    )
    for error in tally.errors[:5]:
        print(f"  {error}")
    claim = Claim("serve errors", len(tally.errors), 0, at_most=True, fugu=rate, unit="requests/s")
    finish([claim], ClaimOptions(json=options.json))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
