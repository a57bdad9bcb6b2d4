"""`fugu serve`: a trained policy over HTTP."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Serve:
    """Answer observations over HTTP with a run's policy: POST /act, GET /schema, /health, /metrics.

    Requests that wait go through one forward pass together. SIGTERM and Ctrl-C end it when all that
    was asked is answered.
    """

    name: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """The run: its name, the beginning of it, its folder, or latest; a checkpoint's folder, or what
    fugu export wrote."""
    engine: str | None = None
    """torch, compile, native, onnx, jax, wasm or c; torch, or what an exported file is for, if not
    given."""
    best: bool = False
    """Take the best checkpoint and not the last."""
    group: str | None = None
    """Which agents' policy, if the run has several."""
    host: str = "127.0.0.1"
    """The address to listen at. 0.0.0.0 lets in everybody who can reach this machine."""
    port: int = 8000
    """The port; 0 chooses a free one, which is printed."""
    max_batch: int = 64
    """Most observations of a forward pass, and of a request."""
    max_wait_ms: float = 0.0
    """How long an observation may wait for others to join its pass, beside those that came while
    the pass before was made."""
    max_queue: int = 1024
    """Most observations that wait; more are answered 503."""
    max_body_mb: float = 8.0
    """Most megabytes of a request's body; larger ones are answered 413. The limit is lower where
    --max-batch observations of this policy cannot be as large."""
    max_connections: int = 512
    """Most connections at a time; more are answered 503."""
    timeout: float = 30.0
    """Seconds in which a request is answered, by 504 if need be."""
    read_timeout: float = 10.0
    """Seconds in which a request's head, and then its body, must be here."""
    keep_alive: float = 30.0
    """Seconds for which a connection may be idle."""
    allow_host: tuple[str, ...] = ()
    """Host names by which clients may reach the server, beside localhost and IP addresses; '*'
    allows any. Others are answered 421."""
    token: str | None = None
    """Token that clients must send, as 'Authorization: Bearer TOKEN'; others are answered 401.
    Other users of this machine can see flags: better set FUGU_SERVE_TOKEN instead."""
    trust: bool = False
    """Trust the run from now on, whoever trained it: its settings may name code to run."""
    runs: Path = Path("runs")
    """Where runs are."""

    def run(self) -> int:
        """Serve; 0 if all was answered in the end."""
        from fugu.core.seeding import fresh_seed
        from fugu.export import load
        from fugu.serve import ServeConfig
        from fugu.serve.app import Service
        from fugu.serve.config import TOKEN_VARIABLE
        from fugu.serve.server import (
            freeze_memory,
            is_loopback,
            open_socket,
            run_server,
            url_of,
        )

        cfg = ServeConfig(
            max_batch=self.max_batch,
            max_wait_ms=self.max_wait_ms,
            max_queue=self.max_queue,
            max_body=int(self.max_body_mb * 1e6),
            max_connections=self.max_connections,
            timeout=self.timeout,
            read_timeout=self.read_timeout,
            keep_alive=self.keep_alive,
            allow_hosts=self.allow_host,
            token=os.environ.get(TOKEN_VARIABLE) if self.token is None else self.token,
        )
        with open_socket(self.host, self.port) as listener:
            policy = load(
                self.name,
                self.engine,
                group=self.group,
                best=self.best,
                root=self.runs,
                seed=fresh_seed(),
                trust=self.trust,
            )
            service = Service(policy, cfg, self.name)
            service.warm_up()
            freeze_memory()
            if not is_loopback(self.host):
                warning = "whoever reaches it may use it, without a token or encryption"
                if cfg.token is not None:
                    warning = "there is no encryption, so the token can be read on its way"
                print(f"fugu: warning: {self.host} is not loopback: {warning}", file=sys.stderr)
            print(f"Serving {self.name} ({policy.name}) at {url_of(listener)}", flush=True)
            done = run_server(service, listener)
        left = "" if done else " Some that were under way had no answer."
        print(f"Stopped: {service.answered} requests answered.{left}")
        return 0 if done else 1
