"""`fugu serve`: a trained policy over HTTP."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import sys
from dataclasses import dataclass

from fugu.cli.parsing import RunName, RunOptions
from fugu.serve.config import TOKEN_VARIABLE, ServeConfig


@dataclass(frozen=True, kw_only=True)
class Serve(RunOptions, ServeConfig):
    """Answer observations over HTTP with a run's policy: POST /act, GET /schema, /health, /metrics.

    Requests that wait share a forward pass. SIGTERM and Ctrl-C end the server once all requests are
    answered.
    """

    name: RunName
    """The run: its name, the beginning of it, its folder, or latest; a checkpoint's folder, or a
    file that fugu export wrote."""
    engine: str | None = None
    """torch, compile, native, onnx, jax, wasm or c; by default torch, or the engine that an
    exported file is for."""
    group: str | None = None
    """Agents whose policy is served, if the run has several groups."""
    host: str = "127.0.0.1"
    """Address to listen at. 0.0.0.0 admits everybody who can reach this machine."""
    port: int = 8000
    """Port; 0 chooses a free one, which is printed."""

    def run(self) -> int:
        """Serve; return 0 if all requests were answered."""
        from fugu.core.seeding import fresh_seed
        from fugu.export import load
        from fugu.serve.app import Service
        from fugu.serve.server import Server, freeze_memory, open_socket, url_of

        token = os.environ.get(TOKEN_VARIABLE) if self.token is None else self.token
        cfg = dataclasses.replace(self, token=token)
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
            if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
                warning = "whoever reaches it may use it, without a token or encryption"
                if token is not None:
                    warning = "there is no encryption, so the token can be read on its way"
                print(f"fugu: warning: {self.host} is not loopback: {warning}", file=sys.stderr)
            print(f"Serving {self.name} ({policy.name}) at {url_of(listener)}", flush=True)
            done = Server(service).run_on(listener)
        unanswered = "" if done else " Some that were under way had no answer."
        print(f"Stopped: {service.metrics.answered} requests answered.{unanswered}")
        return 0 if done else 1
