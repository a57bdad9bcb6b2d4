"""A repository of the Hugging Face Hub, through huggingface_hub."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import fugu
from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.hub.contents import BESIDE, RefusedError, check_names
from fugu.hub.patience import TRANSIENT, http_library, limited, repeated

_AGAIN = "Try again later: what was uploaded is not sent again."


class HubError(FuguError, RuntimeError):
    """The Hub could not be reached, or refused."""


class HubPlace:
    """A repository of models, at a branch, a tag or a commit.

    Attributes:
        name: user/name.
        commit: What `sizes` found the revision to be; `fetch` keeps to it.
    """

    def __init__(
        self,
        repo: str,
        revision: str | None = None,
        token: str | None = None,
        *,
        private: bool = False,
    ) -> None:
        if importlib.util.find_spec("huggingface_hub") is None:
            raise MissingExtraError("huggingface_hub", "hub")
        self._library = importlib.import_module("huggingface_hub")
        self.name, self.commit = repo, ""
        self._revision, self._token, self._private = revision, token, private
        self._api: Any = self._library.HfApi(
            token=token, library_name="fugu", library_version=fugu.__version__
        )

    def session(self) -> AbstractContextManager[None]:
        """For what belongs together: over one connection, with requests that end."""
        return limited()

    # ------------------------------------------------------------------ reading

    def sizes(self) -> dict[str, int]:
        """Bytes of all files at the revision, which stays the same commit from here on."""
        with self._explaining("read"):
            info = repeated(lambda: self._info(self._revision))
        self.commit = str(info.sha)
        found = {}
        for file in info.siblings or ():
            if not isinstance(file.size, int):
                raise RefusedError(self.name, file.rfilename, "the Hub does not tell its size")
            found[file.rfilename] = file.size
        return found

    def fetch(self, name: str) -> Path:
        """A file's content, in the cache of huggingface_hub."""
        with self._explaining("read"):
            return Path(
                repeated(lambda: self._api.hf_hub_download(self.name, name, revision=self.commit))
            )

    # ------------------------------------------------------------------ writing

    def prepare(self) -> None:
        """Make the repository and the branch; RefusedError if they hold anything but a run."""
        private, branch = self._private or None, self._revision
        with self._explaining("write"):
            repeated(lambda: self._api.create_repo(self.name, private=private, exist_ok=True))
            if private and not repeated(lambda: self._info(None)).private:
                raise UsageError(
                    f"private: given for {self.name}, which exists and is public; allowed: a new "
                    "repository, or one that is private. Change it in its settings on the Hub."
                )
            if branch is not None:
                repeated(lambda: self._api.create_branch(self.name, branch=branch, exist_ok=True))
            check_names(self.name, repeated(self._held))

    def publish(self, files: Mapping[str, Path], message: str) -> str:
        """One commit that makes the repository hold these files and none of an older run."""
        with self._explaining("write"):
            done = repeated(lambda: self._commit(files, message))
        self.commit = str(done.oid)
        return str(done.commit_url)

    def _held(self) -> list[str]:
        return [file.rfilename for file in self._info(self._revision).siblings or ()]

    def _commit(self, files: Mapping[str, Path], message: str) -> Any:
        """Anew from what is there now: an answer may have been lost, and not the commit."""
        stale = [name for name in self._held() if name not in files and name not in BESIDE]
        operations = [
            *(self._library.CommitOperationAdd(name, str(path)) for name, path in files.items()),
            *(self._library.CommitOperationDelete(name) for name in stale),
        ]
        return self._api.create_commit(
            self.name, operations, commit_message=message, revision=self._revision
        )

    def _info(self, revision: str | None) -> Any:
        return self._api.model_info(self.name, revision=revision, files_metadata=True)

    # ------------------------------------------------------------------ refusals

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        """Errors that say what to do."""
        try:
            yield
        except FuguError:
            raise
        except (http_library().HTTPError, OSError, ValueError, RuntimeError) as error:
            raise self._explained(error, doing) from error

    def _explained(self, error: Exception, doing: str) -> FuguError:
        place = f"hub {self.name}"
        for cause in _chain(error):
            response = getattr(cause, "response", None)
            if response is not None:
                return HubError(f"{place}: {self._refusal(cause, response.status_code, doing)}")
            if isinstance(cause, self._library.errors.OfflineModeIsEnabled):
                return HubError(f"{place}: HF_HUB_OFFLINE is set; allowed: without it.")
            if isinstance(cause, self._library.errors.HFValidationError):
                return UsageError(f"repo: given {self.name!r}; {cause}")
            if isinstance(cause, http_library().TransportError):
                return HubError(
                    f"{place}: {self._api.endpoint} cannot be reached ({_said(cause)}). Check the "
                    "connection, and HF_ENDPOINT if you set it. A folder such as ./shared needs no "
                    "network."
                )
        return HubError(f"{place}: {type(error).__name__}: {error}")

    def _refusal(self, error: BaseException, status: int, doing: str) -> str:
        errors = self._library.errors
        if isinstance(error, errors.RevisionNotFoundError):
            return f"given the revision {self._revision!r}, which it does not have."
        if status == 404 or isinstance(error, errors.RepositoryNotFoundError):
            return f"there is no such repository, or {self._whose()} may not see it. {_LOGIN}"
        if status in (401, 403):
            allowed = f"one that may {doing} it"
            return f"the Hub refuses {self._whose()} ({status}); allowed: {allowed}. {_LOGIN}"
        if status in TRANSIENT:
            return f"the Hub answered {status}, several times. {_AGAIN}"
        return (
            f"the Hub answered {status}: {getattr(error, 'server_message', None) or _said(error)}"
        )

    def _whose(self) -> str:
        known = self._token or self._library.get_token()
        return "the token" if known else "somebody without a token"


_LOGIN = "`hf auth login` saves a token, HF_TOKEN gives one."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it comes from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _said(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
