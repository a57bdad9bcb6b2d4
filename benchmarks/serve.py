"""`fugu serve` under load from a second process.

    python benchmarks/serve.py [--seconds 60] [--connections 64] [--engine torch] [--json FILE]

A server in a process of its own serves a small run of cartpole, or the run that is given. This
process keeps so many connections busy, each with one observation at a time, and prints requests a
second and how long they took: first alone, then beside four more connections that send the
largest bodies that the server takes. The claims are that none fails (every answer has the status
200 and holds an action), and, for the native engine, how long 99 % of the requests take at most.
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
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import httptools
import tyro
from claims import Claim, finish
from claims import Options as ClaimOptions

from fugu.training.session import train

START, STOP = 120.0, 60.0  # seconds for a server to begin and to end
P99_ALONE, P99_BESIDE = 30.0, 100.0  # milliseconds


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    seconds: float = 60.0
    """Seconds of each of the two loads."""
    connections: int = 64
    """Connections with small requests."""
    large: int = 4
    """Connections with the largest requests, in the second load."""
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
    """What came of the requests of a load."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    elapsed: float = 0.0

    def milliseconds(self, share: float) -> float:
        """How long this share of the requests took at most."""
        return sorted(self.seconds)[int(len(self.seconds) * share)] * 1e3

    def __str__(self) -> str:
        rate = len(self.seconds) / self.elapsed
        times = ", ".join(f"p{s:g} {self.milliseconds(s / 100):.2f} ms" for s in (50, 99, 99.9))
        return f"{rate:.0f} requests/s, {times}, {len(self.errors)} errors"


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
        if status != 200 or not {"action", "actions"} & {*json.loads(self._body)}:
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


@dataclass(frozen=True)
class Requests:
    """What clients send: an observation, and as many as the server takes at a time."""

    small: bytes
    large: bytes


def requests_of(url: str) -> Requests:
    """The requests that suit a server."""
    with urlopen(f"{url}/schema", timeout=START) as answer:
        schema = json.load(answer)
    if not schema["examples"]:
        raise SystemExit("run: expected one with small observations; got one with large ones.")
    (example,) = schema["examples"]
    count = schema["$defs"]["requests"]["properties"]["observations"]["maxItems"]
    largest = json.dumps({"observations": [example["observation"]] * count})
    return Requests(
        request_of(url, json.dumps(example)), request_of(url, largest.ljust(most_bytes(url)))
    )


def request_of(url: str, body: str) -> bytes:
    """The bytes of a request."""
    head = f"POST /act HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def most_bytes(url: str) -> int:
    """The largest body that a server takes, which it says when it refuses a larger one."""
    headers = {"Content-Type": "application/json", "Content-Length": str(10**12), "Expect": "x"}
    try:
        urlopen(Request(f"{url}/act", b"", headers), timeout=START)
    except HTTPError as error:
        found = re.search(r"at most (\d+) bytes", error.read().decode())
        if found is not None:
            return int(found[1])
    raise SystemExit("server: expected that it refuses a body of 10^12 bytes; got something else.")


async def load(url: str, requests: Requests, seconds: float, small: int, large: int) -> Tally:
    """Keep connections busy for a while; only small requests are timed."""
    place, tally, rest = urlsplit(url), Tally(), Tally()
    began, loop = time.perf_counter(), asyncio.get_running_loop()

    async def connect(request: bytes, tally: Tally) -> Client:
        make = partial(Client, request, tally, began + seconds)
        return (await loop.create_connection(make, place.hostname, place.port))[1]

    clients = [await connect(requests.large, rest) for _ in range(large)]
    clients += [await connect(requests.small, tally) for _ in range(small)]
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), seconds + STOP)
    tally.errors += rest.errors
    if large and not rest.seconds:
        tally.errors.append("no large request was answered")
    tally.elapsed = time.perf_counter() - began
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
            requests, few = requests_of(url), min(1.0, options.seconds)
            asyncio.run(load(url, requests, few, options.connections, options.large))  # warm up
            tallies = [
                asyncio.run(load(url, requests, options.seconds, options.connections, large))
                for large in (0, options.large)
            ]
            size = batch_size(url)
    print(f"{options.connections} connections, engine {options.engine}: {tallies[0]}")
    print(f"beside {options.large} with {len(requests.large):,} bytes a request: {tallies[1]}")
    print(f"{size:.1f} observations a pass")
    for error in [error for tally in tallies for error in tally.errors][:5]:
        print(f"  {error}")
    finish(claims_of(options, *tallies), ClaimOptions(json=options.json))


def claims_of(options: Options, alone: Tally, beside: Tally) -> list[Claim]:
    """The claims; those about times are for the native engine."""
    count, rate = len(alone.errors) + len(beside.errors), len(alone.seconds) / alone.elapsed
    claims = [Claim("serve errors", count, 0, at_most=True, fugu=rate, unit="requests/s")]
    if options.engine == "native":
        for name, tally, target in (
            ("serve p99 ms", alone, P99_ALONE),
            (f"serve p99 ms beside {options.large} of the largest bodies", beside, P99_BESIDE),
        ):
            taken = tally.milliseconds(0.99)
            claims.append(Claim(name, taken, target, at_most=True, fugu=taken, unit="ms"))
    return claims


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
