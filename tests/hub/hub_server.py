"""A local Hub of models: the endpoints that huggingface_hub uses, with faults on demand.

Files named `.safetensors`, `.png` or `.mp4` are large: as on the real Hub, they are uploaded to a
storage with another address (`localhost` instead of `127.0.0.1`), at once or in parts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_right"
LARGE = (".safetensors", ".png", ".mp4")
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


@dataclass
class Fault:
    """A fault of the next requests that match a pattern.

    `status`: the server answers with an error. `cut`: the connection is reset in the middle of
    the body that is sent, in either direction. `end`: the response ends early. `lost`: the request
    is executed, but the connection is reset without a response. `silent`: no response ever comes.
    """

    pattern: str
    kind: str = "status"
    times: int = 1
    status: int = 503
    body: bytes = b'{"error": "Service Unavailable"}'
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repo:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


class Hub:
    """The state of the Hub."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.storage: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.part_bytes = 0  # of uploads in parts; 0: in one piece
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.tokens_at_storage: list[str] = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_url(self) -> str:
        return f"http://localhost:{self.port}/storage"

    def fault_of(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None

    def count(self, pattern: str) -> int:
        """Return how many requests matched."""
        return sum(bool(re.search(pattern, request)) for request in self.requests)

    def commit(
        self, repo: str, branch: str, changes: dict[str, bytes | None], message: str = "by hand"
    ) -> str:
        """Change files of a branch; None deletes a file."""
        found = self.repos[repo]
        files = dict(found.commits[found.branches[branch]]) if branch in found.branches else {}
        for name, content in changes.items():
            if content is None:
                del files[name]
            else:
                files[name] = content
        sha = hashlib.sha1(f"{len(found.commits)}{sorted(files)}".encode()).hexdigest()
        found.commits[sha], found.branches[branch] = files, sha
        found.messages.append(message)
        return sha

    def files(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        found = self.repos[repo]
        return found.commits[found.branches[branch]]


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(name: str) -> bool:
    return name.endswith(LARGE)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    fault: Fault | None

    # ------------------------------------------------------------------ every request

    def handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        request = f"{self.command} {path}"
        self.hub.requests.append(request)
        self.fault = self.hub.fault_of(request)
        if self.fault is not None and self.fault.kind == "silent":
            self.hub.over.wait()
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        if self.fault is not None and self.fault.kind == "cut" and length:
            self.rfile.read(length // 2)
            self.break_off()
            return
        body = self.rfile.read(length)
        if self.fault is not None and self.fault.kind == "status":
            self.answer(self.fault.status, self.fault.body, self.fault.headers)
            return
        for pattern, method in ROUTES:
            match = re.fullmatch(pattern, request)
            if match:
                method(self, body, **match.groupdict())
                return
        self.refuse(404, f"no such endpoint: {request}")

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass

    def break_off(self) -> None:
        """Reset the connection."""
        self.close_connection = True
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        # The base class flushes it at the end.
        self.wfile = open("/dev/null", "wb")  # noqa: SIM115

    def answer(
        self, status: int, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        if self.fault is not None and self.fault.kind == "lost":
            self.break_off()
            return
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fault is not None and self.fault.kind in ("cut", "end"):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            if self.fault.kind == "cut":
                self.break_off()
            return
        self.wfile.write(content)

    def refuse(self, status: int, message: str, code: str = "") -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer(status, {"error": message}, headers)

    def is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def may_write(self) -> bool:
        if not self.is_known():
            self.refuse(401, "Invalid credentials in Authorization header")
        return self.is_known()

    def find(self, repo: str, revision: str) -> tuple[Repo, str] | None:
        """Return the repository and the commit of a revision; None after an error response."""
        found = self.hub.repos.get(repo)
        if found is None or (found.private and not self.is_known()):
            self.refuse(404, "Repository not found", "RepoNotFound")
            return None
        sha = found.branches.get(revision, revision)
        if sha not in found.commits:
            self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            return None
        return found, sha

    # ------------------------------------------------------------------ repositories

    def create_repo(self, body: bytes) -> None:
        if not self.may_write():
            return
        given = json.loads(body)
        repo = f"{given['organization']}/{given['name']}"
        url = {"url": f"{self.hub.endpoint}/{repo}"}
        if repo in self.hub.repos:
            self.answer(409, {"error": "You already created this model repo", **url})
            return
        private = given.get("visibility") == "private" or bool(given.get("private"))
        self.hub.repos[repo] = Repo(private)
        self.hub.commit(repo, "main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial")
        self.answer(200, url)

    def create_branch(self, body: bytes, repo: str, branch: str) -> None:
        if not self.may_write():
            return
        found = self.hub.repos[repo]
        if branch in found.branches:
            self.refuse(409, "Reference already exists")
            return
        found.branches[branch] = found.branches["main"]
        self.answer(200, {})

    def info(self, body: bytes, repo: str, revision: str = "main") -> None:
        place = self.find(repo, revision)
        if place is None:
            return
        found, sha = place
        siblings = []
        for name, content in found.commits[sha].items():
            entry = {"rfilename": name, "size": len(content), "blobId": git_oid(content)}
            if is_large(name):
                oid = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": oid, "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        facts = {"id": repo, "modelId": repo, "sha": sha, "private": found.private, "tags": []}
        self.answer(200, {**facts, "siblings": siblings, "downloads": 0, "likes": 0})

    # ------------------------------------------------------------------ uploads

    def validate_yaml(self, body: bytes) -> None:
        assert json.loads(body)["content"].startswith("---\n")
        self.answer(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, repo: str, revision: str) -> None:
        if not self.may_write():
            return
        place = self.find(repo, revision)
        if place is None:
            return
        held = place[0].commits[place[1]]
        files = []
        for file in json.loads(body)["files"]:
            name, content = file["path"], held.get(file["path"])
            entry = {"path": name, "uploadMode": "lfs" if is_large(name) else "regular"}
            if content is not None:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["oid"] = sha256 if is_large(name) else git_oid(content)
            files.append({**entry, "shouldIgnore": False})
        self.answer(200, {"files": files})

    def lfs_batch(self, body: bytes, repo: str) -> None:
        if not self.may_write():
            return
        objects = []
        for entry in json.loads(body)["objects"]:
            oid, size = entry["oid"], entry["size"]
            objects.append({"oid": oid, "size": size})
            if oid in self.hub.storage:
                continue
            step = self.hub.part_bytes
            verify = {"href": f"{self.hub.endpoint}/{repo}.git/info/lfs/verify"}
            upload: dict[str, Any] = {"href": f"{self.hub.storage_url}/{oid}", "header": {}}
            if step and size > step:
                parts = {
                    str(i + 1): f"{self.hub.storage_url}/{oid}/{i + 1}"
                    for i in range(-(-size // step))
                }
                upload = {
                    "href": f"{self.hub.endpoint}/complete/{oid}",
                    "header": {"chunk_size": str(step), **parts},
                }
            objects[-1]["actions"] = {"upload": upload, "verify": verify}
        self.answer(200, {"objects": objects, "transfer": "basic"})

    def store(self, body: bytes, oid: str) -> None:
        self.hub.tokens_at_storage += [self.headers["Authorization"] or ""]
        if hashlib.sha256(body).hexdigest() != oid:
            self.refuse(400, "BadDigest")
            return
        self.hub.storage[oid] = body
        self.answer(200, b"", {"ETag": f'"{oid}"'})

    def store_part(self, body: bytes, oid: str, part: str) -> None:
        self.hub.parts[oid, int(part)] = body
        self.answer(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def complete(self, body: bytes, oid: str) -> None:
        parts = [self.hub.parts[oid, each["partNumber"]] for each in json.loads(body)["parts"]]
        self.store(b"".join(parts), oid)

    def verify(self, body: bytes, repo: str) -> None:
        given = json.loads(body)
        assert len(self.hub.storage[given["oid"]]) == given["size"]
        self.answer(200, {})

    def take_commit(self, body: bytes, repo: str, revision: str) -> None:
        if not self.may_write():
            return
        changes: dict[str, bytes | None] = {}
        message = ""
        for line in body.splitlines():
            entry = json.loads(line)
            kind, value = entry["key"], entry["value"]
            if kind == "header":
                message = value["summary"]
            elif kind == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                changes[value["path"]] = self.hub.storage[value["oid"]]
            elif kind == "deletedFile":
                if value["path"] not in self.hub.files(repo, revision):
                    self.refuse(404, "A file with this name doesn't exist", "EntryNotFound")
                    return
                changes[value["path"]] = None
        sha = self.hub.commit(repo, revision, changes, message)
        url = f"{self.hub.endpoint}/{repo}/commit/{sha}"
        self.answer(200, {"success": True, "commitOid": sha, "commitUrl": url})

    # ------------------------------------------------------------------ downloads

    def resolve(self, body: bytes, repo: str, revision: str, name: str) -> None:
        place = self.find(repo, revision)
        if place is None:
            return
        found, sha = place
        content = found.commits[sha].get(name)
        if content is None:
            self.refuse(404, "Entry not found", "EntryNotFound")
            return
        headers = {"X-Repo-Commit": sha, "ETag": f'"{git_oid(content)}"', "Accept-Ranges": "bytes"}
        if not is_large(name):
            self.send_content(content, headers)
            return
        oid = hashlib.sha256(content).hexdigest()
        self.hub.storage[oid] = content
        linked = {"X-Linked-ETag": f'"{oid}"', "X-Linked-Size": str(len(content))}
        location = {"Location": f"{self.hub.storage_url}/{oid}"}
        self.answer(302, b"", headers | linked | location)

    def load(self, body: bytes, oid: str) -> None:
        self.hub.tokens_at_storage += [self.headers["Authorization"] or ""]
        self.send_content(self.hub.storage[oid], {"ETag": f'"{oid}"'})

    def send_content(self, content: bytes, headers: dict[str, str]) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if asked:
            self.hub.requests.append(f"RANGE {asked[1]}")
            told = {"Content-Range": f"bytes {asked[1]}-{len(content) - 1}/{len(content)}"}
            self.answer(206, content[int(asked[1]) :], headers | told)
        else:
            self.answer(200, content, headers)


ROUTES: list[tuple[str, Callable[..., None]]] = [
    (r"POST /api/repos/create", Handler.create_repo),
    (r"POST /api/validate-yaml", Handler.validate_yaml),
    (rf"GET /api/models/{REPO}", Handler.info),
    (rf"GET /api/models/{REPO}/revision/(?P<revision>.+)", Handler.info),
    (rf"POST /api/models/{REPO}/branch/(?P<branch>.+)", Handler.create_branch),
    (rf"POST /api/models/{REPO}/preupload/(?P<revision>.+)", Handler.preupload),
    (rf"POST /{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (rf"POST /{REPO}\.git/info/lfs/verify", Handler.verify),
    (r"PUT /storage/(?P<oid>\w+)", Handler.store),
    (r"PUT /storage/(?P<oid>\w+)/(?P<part>\d+)", Handler.store_part),
    (r"POST /complete/(?P<oid>\w+)", Handler.complete),
    (rf"POST /api/models/{REPO}/commit/(?P<revision>.+)", Handler.take_commit),
    (rf"(GET|HEAD) /{REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", Handler.resolve),
    (r"(GET|HEAD) /storage/(?P<oid>\w+)", Handler.load),
]


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a Hub until the block ends."""
    hub = Hub()
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def set_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """Point huggingface_hub to another endpoint and cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    pytest.importorskip("huggingface_hub.utils").disable_progress_bars()
    monkeypatch.setattr("fugu.hub.remote.PAUSES", (0.01,) * 4)
