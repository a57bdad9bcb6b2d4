"""A repository of the Hugging Face Hub, with time limits and retries for every request.

huggingface_hub retries uploads and interrupted downloads itself, but neither commits, nor queries,
nor the creation of repositories and branches; and it limits the time of downloads only.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelInfo,
    errors,
)
from huggingface_hub.utils import _http

import fugu
from fugu.core.errors import FuguError, UsageError
from fugu.hub.repositories import UNVERIFIED, RefusedError

T = TypeVar("T")
log = logging.getLogger("fugu.hub")

PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before each retry
LONGEST_PAUSE = 60  # seconds, whatever the Hub asks for
TIMEOUTS = {"connect": 10.0, "read": 120.0, "write": 120.0, "pool": 120.0}  # seconds of silence
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
HTTPError: type[Exception] = vars(errors)["HTTPError"]  # of httpx, or httpx2 since version 2


class HubError(FuguError, RuntimeError):
    """The Hub cannot be reached, or denies a request."""


@contextmanager
def limited_requests() -> Iterator[None]:
    """Limit how long huggingface_hub waits for a silent server and pauses before retries."""
    # The factory may be the caller's own, which has no public getter.
    previous: Any = getattr(_http, "_GLOBAL_CLIENT_FACTORY", _http.default_client_factory)

    def make_client() -> Any:
        client = previous()
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks["request"], _set_timeouts],
            "response": [*hooks["response"], _limit_pause],
        }
        return client

    _http.set_client_factory(make_client)
    try:
        yield
    finally:
        _http.set_client_factory(previous)


def _set_timeouts(request: Any) -> None:
    given = request.extensions.get("timeout") or {}
    kept = {name: seconds for name, seconds in given.items() if seconds is not None}
    request.extensions["timeout"] = TIMEOUTS | kept


def _limit_pause(response: Any) -> None:
    """Shorten the pause that a server asks for, which huggingface_hub would make in full."""
    response.headers.pop("ratelimit", None)  # another header with the same meaning
    if _requested_pause(response) > LONGEST_PAUSE:
        response.headers["retry-after"] = str(LONGEST_PAUSE)


def _requested_pause(response: Any) -> float:
    """Return the seconds for which a server asks to pause."""
    requested = response.headers.get("retry-after", "") if response is not None else ""
    return float(requested) if requested.isdigit() else 0.0


class HubRepository:
    """A repository of models, at a branch, a tag or a commit.

    Attributes:
        name: `user/name`.
        commit: The commit that `sizes` found at the revision; `fetch` reads this one.
    """

    def __init__(self, name: str, revision: str | None, token: str | None, private: bool) -> None:
        self.name = name
        self.commit: str | None = None
        self._revision, self._token, self._private = revision, token, private
        self._api = HfApi(token=token, library_name="fugu", library_version=fugu.__version__)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files at the revision, and remember its commit."""
        info = self._request(self._info)
        self.commit, found = info.sha, {}
        for file in info.siblings or ():
            if not isinstance(file.size, int):
                raise RefusedError(self.name, file.rfilename, "the Hub does not report its size")
            found[file.rfilename] = file.size
        return found

    def fetch(self, name: str) -> Path:
        """Download a file to the cache of huggingface_hub and return its path."""
        path = self._request(self._api.hf_hub_download, self.name, name, revision=self.commit)
        return Path(path)

    def prepare(self) -> None:
        """Create the repository and the branch."""
        name, private = self.name, self._private or None
        self._request(self._api.create_repo, name, private=private, exist_ok=True)
        if private and not self._request(self._api.model_info, name).private:
            raise UsageError(
                f"private: {name} exists and is public. Make it private in its settings on the "
                "Hub, or choose another repository."
            )
        if self._revision is not None:
            self._request(self._api.create_branch, name, branch=self._revision, exist_ok=True)

    def publish(self, files: Mapping[str, Path], message: str) -> str:
        """Replace the run in one commit and return its address."""

        def commit() -> CommitInfo:
            # Retry on the current head: the commit may have landed although its response was lost.
            held = {file.rfilename for file in self._info().siblings or ()}
            return self._api.create_commit(
                self.name,
                [
                    *(CommitOperationAdd(name, str(path)) for name, path in files.items()),
                    *map(CommitOperationDelete, sorted(held - {*files, *UNVERIFIED})),
                ],
                commit_message=message,
                revision=self._revision,
            )

        return str(self._request(commit).commit_url)

    def _info(self) -> ModelInfo:
        return self._api.model_info(self.name, revision=self._revision, files_metadata=True)

    def _request(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of huggingface_hub; retry what is transient, explain other errors."""
        for pause in (*PAUSES, None):
            try:
                return call(*args, **kwargs)
            except (HTTPError, OSError, ValueError, RuntimeError) as error:
                if pause is None or not _is_transient(error):
                    raise self._explain(error) from error
                seconds = max(pause, _requested_pause(getattr(error, "response", None)))
                log.warning("%s; retrying in %.1f s", _first_line(error), seconds)
            time.sleep(seconds)
        raise AssertionError("unreachable")

    def _explain(self, error: BaseException) -> FuguError:
        """Return an error that says what to do."""
        known = (HTTPError, errors.OfflineModeIsEnabled, errors.HFValidationError)
        while error.__cause__ is not None and not isinstance(error, known):
            error = error.__cause__
        text, status = " ".join(str(error).split()) or type(error).__name__, _status(error)
        if isinstance(error, errors.HFValidationError):
            return UsageError(f"repo: {text}")
        advice = ""
        if status in TRANSIENT:
            advice = "Push or pull again later: files that were transferred are not sent again."
        elif status is not None:
            advice = "`hf auth login` saves a token; HF_TOKEN sets one."
        elif isinstance(error, HTTPError):
            advice = (
                f"{self._api.endpoint} cannot be reached. Check the connection, and HF_ENDPOINT "
                "if you set it. A folder such as ./shared needs no network."
            )
        return HubError(f"hub {self.name}: {text.rstrip('.')}. {advice}".rstrip())


def _is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    status = _status(error)
    if status is not None:
        return status in TRANSIENT
    # The network failed, or a gateway answered with a page of HTML.
    return isinstance(error, (HTTPError, json.JSONDecodeError))


def _status(error: BaseException) -> int | None:
    """Return the status code of the response that an error is about."""
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
