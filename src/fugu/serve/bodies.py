"""Bodies of requests: read within limits of size and time, or refused."""

from __future__ import annotations

import asyncio
import contextlib

from fugu.core.errors import MissingExtraError
from fugu.serve.config import ServeConfig

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
except ModuleNotFoundError as error:
    raise MissingExtraError("starlette", "serve") from error

MOST_BODIES = 32  # of `max_body` bytes, in memory at a time
MOST_IGNORED = 16  # of full size, read and forgotten, so that a client comes to read its answer
CLOSE = {"Connection": "close"}
RETRY = {"Retry-After": "1"}


class BodyReader:
    """Reads bodies; it knows how many bytes of unfinished ones are in memory.

    Args:
        cfg: Limits.
        most: Most bytes of a body, at most `cfg.max_body`.
    """

    def __init__(self, cfg: ServeConfig, most: int) -> None:
        self._most, self._seconds, self._held = most, cfg.read_timeout, 0
        self._full_size = cfg.max_body

    async def read(self, request: Request) -> bytes:
        """The body of a request.

        Raises:
            HTTPException: 408, 413, 415 or 503, with the reason.
        """
        _check_kind(request)
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._most:
            if "expect" not in request.headers:  # or it waits to be asked for it
                await self._ignore(request)
            raise self._too_large(declared)
        chunks: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._seconds):
                async for chunk in request.stream():
                    held, self._held = held + len(chunk), self._held + len(chunk)
                    chunks.append(chunk)
                    if held > self._most:
                        chunks.clear()
                        await self._ignore(request)
                        raise self._too_large("more")
                    if self._held > MOST_BODIES * self._full_size:
                        reason = "body: given while too many others are being read; come again."
                        raise HTTPException(503, reason, CLOSE | RETRY)
        except TimeoutError:
            reason = f"body: given {held} bytes in {self._seconds:g} s; allowed: all of it by then."
            raise HTTPException(408, reason, CLOSE) from None
        finally:
            self._held -= held
        return b"".join(chunks)

    async def _ignore(self, request: Request) -> None:
        """Let a client finish a body that is too large, if that is soon."""
        left = MOST_IGNORED * self._most
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                async for chunk in request.stream():
                    left -= len(chunk)
                    if left < 0:
                        return

    def _too_large(self, given: str) -> HTTPException:
        return HTTPException(413, f"body: expected at most {self._most} bytes; got {given}.", CLOSE)


def _check_kind(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        reason = f"Content-Type: given {kind[:60]!r}; allowed: application/json."
        raise HTTPException(415, reason, CLOSE)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        reason = f"Content-Encoding: given {encoding[:60]!r}; allowed: identity."
        raise HTTPException(415, reason, CLOSE)
