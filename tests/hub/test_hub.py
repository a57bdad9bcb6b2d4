"""Share runs through a Hub: the real client against a local server, with injected faults."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_server import TOKEN, Fault, Hub, set_endpoint

from fugu.core.errors import UsageError
from fugu.hub import remote
from fugu.hub.pull import pull
from fugu.hub.push import Pushed, push_to_hub
from fugu.hub.remote import HubError
from fugu.hub.repositories import RefusedError
from fugu.store.run import Run
from fugu.training.evaluate import evaluate

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.timeout(200)
REPO = "ann/pole"
POLICY, SEGMENTS = "policy_0.safetensors", "segments_0.safetensors"


def push(run: Run, repo: str = REPO, **options: object) -> Pushed:
    """Push without an evaluation and a video, which are slow."""
    return push_to_hub(run, repo, episodes=0, video=False, **options)  # type: ignore[arg-type]


def content_of(run: Run, name: str) -> bytes:
    """Return the content of a file of a run or of its last checkpoint."""
    latest = run.latest()
    assert latest is not None
    return next(path for path in (run.folder / name, latest / name) if path.exists()).read_bytes()


def at_hub(hub: Hub, name: str, branch: str = "main") -> str:
    """Return the full name of the only file with this ending."""
    (found,) = [each for each in hub.files(REPO, branch) if f"/{each}".endswith(f"/{name}")]
    return found


def test_a_pulled_run_plays_like_the_pushed_one(run: Run, hub: Hub, tmp_path: Path) -> None:
    done = push(run, message="a pole that stands")
    assert done.notes == ()
    assert hub.repos[REPO].messages == ["initial", "a pole that stands"]
    assert set(hub.files(REPO)) == {*done.files, ".gitattributes"}
    pulled = pull(REPO, tmp_path / "mine")
    assert pulled.commit == hub.repos[REPO].branches["main"] == done.url.rpartition("/")[2]
    assert evaluate(pulled.run, episodes=4, seed=1) == evaluate(run, episodes=4, seed=1)
    for name in (POLICY, SEGMENTS, "metrics.jsonl"):
        assert content_of(pulled.run, name) == content_of(run, name)
    origin = json.loads(content_of(pulled.run, "origin.json"))
    assert origin == {"repository": REPO, "commit": pulled.commit}
    assert pulled.run.status == "pulled"


def test_the_token_never_reaches_the_storage(run: Run, hub: Hub, tmp_path: Path) -> None:
    push(run)
    pull(REPO, tmp_path / "mine")
    assert len(hub.tokens_at_storage) > 5
    assert set(hub.tokens_at_storage) == {""}


@pytest.mark.parametrize(
    "request_",
    [
        "POST /api/repos/create",
        "GET /api/models/ann/pole",
        "POST /api/models/ann/pole/branch",
        "POST /api/validate-yaml",
        "POST /api/models/ann/pole/commit",
    ],
)
@pytest.mark.parametrize("body", [b'{"error": "busy"}', b"<html>Bad gateway</html>"])
def test_requests_that_the_client_does_not_retry_are_retried(
    request_: str, body: bytes, run: Run, hub: Hub
) -> None:
    hub.faults = [Fault(request_, times=3, body=body)]
    push(run, revision="dev")
    assert hub.count(request_) >= 4
    assert at_hub(hub, POLICY, "dev")


def test_uploads_survive_a_busy_server(run: Run, hub: Hub) -> None:
    """The client retries these itself, at first after a second."""
    hub.faults = [Fault("preupload"), Fault("PUT /storage/", times=2), Fault("objects/batch")]
    push(run)
    assert hub.count("PUT /storage/") == 6 + 2
    assert hub.files(REPO)[at_hub(hub, POLICY)] == content_of(run, POLICY)


@pytest.mark.parametrize("part_bytes", [0, 4096])
def test_an_interrupted_upload_is_retried(
    part_bytes: int, run: Run, hub: Hub, tmp_path: Path
) -> None:
    hub.part_bytes = part_bytes
    hub.faults = [Fault("PUT /storage/", kind="cut")]
    push(run)
    assert not hub.faults[0].times
    assert hub.files(REPO)[at_hub(hub, SEGMENTS)] == content_of(run, SEGMENTS)
    pull(REPO, tmp_path / "mine")


def test_a_repeated_push_sends_only_what_is_missing(run: Run, hub: Hub) -> None:
    hub.faults = [Fault("POST /api/models/ann/pole/commit", times=1 + len(remote.PAUSES))]
    with pytest.raises(HubError, match="503.*not sent again"):
        push(run)
    assert list(hub.files(REPO)) == [".gitattributes"]
    stored = hub.count("PUT /storage/")
    assert stored == 6
    push(run)
    assert at_hub(hub, POLICY)
    assert hub.count("PUT /storage/") == stored


def test_a_commit_whose_response_was_lost_is_not_made_twice(run: Run, older: Run, hub: Hub) -> None:
    push(older)  # so that there are files to delete, which fails the second time
    hub.faults = [Fault("POST /api/models/ann/pole/commit", kind="lost")]
    push(run, message="again")
    assert hub.repos[REPO].messages.count("again") == 1


def test_a_push_replaces_the_run_of_an_earlier_push(run: Run, hub: Hub) -> None:
    push(run)
    main = hub.files(REPO)
    older = {
        f"checkpoints/step_000000001/{Path(name).name}": main[name] for name in main if "/" in name
    }
    hub.commit(REPO, "main", {**older, "LICENSE": b"MIT", "replay.gif": b"GIF"})
    push(run)
    assert set(hub.files(REPO)) == {*main, "LICENSE"}


def test_a_repository_of_something_else_is_left_alone(run: Run, hub: Hub) -> None:
    push(run)
    hub.commit(REPO, "main", {"pytorch_model.bin": b"x"})
    before = len(hub.repos[REPO].messages)
    with pytest.raises(RefusedError, match=r"pytorch_model\.bin.*pickles.*Nothing was"):
        push(run)
    assert len(hub.repos[REPO].messages) == before


def test_private_repositories(
    run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, private=True)
    assert hub.repos[REPO].private
    pull(REPO, tmp_path / "mine")
    push(run, private=True)
    hub.repos[REPO].private = False
    with pytest.raises(UsageError, match="exists and is public"):
        push(run, private=True)
    hub.repos[REPO].private = True
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(HubError, match="Repository Not Found.*HF_TOKEN"):
        pull(REPO, tmp_path / "other")


def test_revisions(run: Run, older: Run, hub: Hub, tmp_path: Path) -> None:
    first = push(run).url.rpartition("/")[2]
    push(older, revision="old/er")
    branches = hub.repos[REPO].branches
    assert branches["main"] == first != branches["old/er"]
    for revision, pushed in {"old/er": older, branches["old/er"]: older, "main": run}.items():
        pulled = pull(REPO, tmp_path / revision, revision=revision)
        assert pulled.commit == branches.get(revision, revision)
        assert content_of(pulled.run, POLICY) == content_of(pushed, POLICY)
    with pytest.raises(HubError, match="Revision Not Found.*none"):
        pull(REPO, tmp_path / "none", revision="none")


def test_a_pull_keeps_to_the_commit_it_began_with(
    run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run)

    def fault_of(request: str) -> None:
        if "checksums.json" in request and len(hub.repos[REPO].messages) == 2:
            hub.commit(REPO, "main", {at_hub(hub, POLICY): b"{}", "config.json": b"{}"})

    monkeypatch.setattr(hub, "fault_of", fault_of)
    pulled = pull(REPO, tmp_path / "mine").run
    assert len(hub.repos[REPO].messages) == 3
    assert content_of(pulled, POLICY) == content_of(run, POLICY)


# ------------------------------------------------------------------ downloads


@pytest.mark.parametrize("status", [429, 500, 503])
def test_downloads_survive_a_busy_server(status: int, run: Run, hub: Hub, tmp_path: Path) -> None:
    push(run)
    hub.faults = [
        Fault("GET /api/models", times=2, status=status, headers={"Retry-After": "0"}),
        Fault("GET /storage", times=2, status=status, headers={"Retry-After": "0"}),
    ]
    assert pull(REPO, tmp_path / "mine").run.latest() is not None
    assert not any(fault.times for fault in hub.faults)


@pytest.mark.parametrize("header", [("Retry-After", "100000"), ("RateLimit", '"api";r=0;t=100000')])
@pytest.mark.parametrize("request_", ["GET /storage", "POST /api/repos/create"])
def test_no_server_asks_for_a_long_pause(
    request_: str,
    header: tuple[str, str],
    run: Run,
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client itself would pause for a day, before it downloads again."""
    monkeypatch.setattr(remote, "LONGEST_PAUSE", 0)
    hub.faults = [Fault(request_, status=429, headers=dict([header]))]
    push(run)
    assert pull(REPO, tmp_path / "mine").run.latest() is not None
    assert not any(fault.times for fault in hub.faults)


@pytest.mark.parametrize("kind", ["cut", "end"])
def test_an_interrupted_download_is_retried(
    kind: str, run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client continues where it ended, but begins again after a reset of the connection."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024)  # of 10 MB
    push(run)
    oid = hashlib.sha256(content_of(run, SEGMENTS)).hexdigest()
    hub.faults = [Fault(f"GET /storage/{oid}", kind=kind)]
    pulled = pull(REPO, tmp_path / "mine").run
    assert hub.count(rf"GET /storage/{oid}") == 2
    assert hub.count("RANGE [1-9]") == (kind == "end")
    assert content_of(pulled, SEGMENTS) == content_of(run, SEGMENTS)


def test_downloaded_files_are_cached(run: Run, hub: Hub, tmp_path: Path) -> None:
    push(run)
    hub.faults = [Fault("GET /storage", status=404), Fault("GET /storage", status=404)]
    with pytest.raises(HubError):
        pull(REPO, tmp_path / "mine")
    hub.faults = []
    pull(REPO, tmp_path / "mine")
    before = hub.count("GET .*(resolve|storage)")
    pull(REPO, tmp_path / "again")
    assert hub.count("GET .*(resolve|storage)") == before


@pytest.mark.parametrize("name", [POLICY, "config.json", "metrics.jsonl", "curve.png"])
def test_a_file_that_was_changed_is_refused_by_name(
    name: str, run: Run, hub: Hub, tmp_path: Path
) -> None:
    push(run)
    file = name if name in hub.files(REPO) else at_hub(hub, name)
    changed = bytearray(hub.files(REPO)[file])
    changed[-2] ^= 1
    hub.commit(REPO, "main", {file: bytes(changed)})
    with pytest.raises(RefusedError, match="SHA-256") as caught:
        pull(REPO, tmp_path / "mine")
    assert (caught.value.repository, caught.value.file) == (REPO, file)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_pickle_on_the_hub_is_refused_and_not_downloaded(
    run: Run, hub: Hub, tmp_path: Path
) -> None:
    push(run)
    hub.commit(REPO, "main", {"policy.pkl": b"cos\nsystem\n(S'true'\ntR."})
    with pytest.raises(RefusedError, match=r"policy\.pkl: .*pickles"):
        pull(REPO, tmp_path / "mine")
    assert not hub.count("resolve")


@pytest.mark.parametrize("name", ["../evil.safetensors", "/evil.json", "a/../../config.json"])
def test_a_name_that_leads_elsewhere_is_refused(
    name: str, run: Run, hub: Hub, tmp_path: Path
) -> None:
    push(run)
    sums = json.loads(hub.files(REPO)["checksums.json"])
    sums[name] = hashlib.sha256(b"x").hexdigest()
    hub.commit(REPO, "main", {name: b"x", "checksums.json": json.dumps(sums).encode()})
    with pytest.raises(RefusedError, match="no run of fugu has such a file") as caught:
        pull(REPO, tmp_path / "mine")
    assert caught.value.file == name
    assert not hub.count("resolve")


def test_a_repository_that_is_too_large_is_refused_and_not_downloaded(
    run: Run, hub: Hub, tmp_path: Path
) -> None:
    push(run)
    total = sum(map(len, hub.files(REPO).values()))
    with pytest.raises(RefusedError, match="at most 60,000 bytes in total"):
        pull(REPO, tmp_path / "mine", max_bytes=60_000)
    with pytest.raises(RefusedError, match=r"curve\.png: expected at most 40,000"):
        pull(REPO, tmp_path / "mine", max_bytes=40_000)
    assert not hub.count("resolve")
    pull(REPO, tmp_path / "mine", max_bytes=total)


# ------------------------------------------------------------------ failures


def test_a_wrong_token_is_reported_before_anything_is_played(
    run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match=r"hub ann/pole: .*401.*HF_TOKEN"):
        push_to_hub(run, REPO)
    assert not hub.repos
    push(run, token=TOKEN)


def test_a_missing_token(
    run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(HubError, match="401.*hf auth login"):
        push(run)


def test_a_missing_repository(run: Run, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="hub ann/none: .*Repository Not Found"):
        pull("ann/none", tmp_path / "mine")


def test_an_unreachable_hub(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    set_endpoint(monkeypatch, endpoint, tmp_path / "cache")
    calls: list[Callable[[], object]] = [
        lambda: push(run),
        lambda: pull(REPO, tmp_path / "mine"),
    ]
    for call in calls:
        caplog.clear()
        with pytest.raises(HubError, match=rf"{endpoint} cannot be reached.*needs no network"):
            call()
        logged = [entry for entry in caplog.records if entry.name == "fugu.hub"]
        assert len(logged) == len(remote.PAUSES)
        assert all(entry.levelno == logging.WARNING for entry in logged)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("request_", ["POST /api/repos/create", "GET /api/models", "commit/main"])
def test_a_silent_server_times_out(
    request_: str, run: Run, older: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client itself would wait forever."""
    monkeypatch.setattr(remote, "TIMEOUTS", dict.fromkeys(remote.TIMEOUTS, 0.2))
    hub.faults = [Fault(request_, kind="silent")]
    push(run)
    hub.faults = [Fault(request_, kind="silent", times=100)]
    with pytest.raises(HubError, match="cannot be reached"):
        push(older)


def test_the_http_client_of_the_caller_is_used_and_restored(run: Run, hub: Hub) -> None:
    library = pytest.importorskip("huggingface_hub.utils._http")
    before, made = library._GLOBAL_CLIENT_FACTORY, []

    def own() -> object:
        made.append(before())
        return made[-1]

    library.set_client_factory(own)
    try:
        push(run)
        assert made
        assert library._GLOBAL_CLIENT_FACTORY is own
    finally:
        library.set_client_factory(before)


def test_offline_mode_is_reported(
    run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="unset the `HF_HUB_OFFLINE`"):
        pull(REPO, tmp_path / "mine")
    assert not hub.count("models")


@pytest.mark.parametrize("given", ["pole", "a/b/c", "ann/", "ann/po le", "ann/..", ""])
def test_invalid_repositories(given: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="repo: expected user/name"):
        push(run, given)
    with pytest.raises(UsageError, match="repo: expected user/name"):
        pull(given, tmp_path / "mine")


def test_names_that_only_the_hub_refuses(run: Run, hub: Hub) -> None:
    with pytest.raises(UsageError, match="repo: .*'ann/a--b'"):
        push(run, "ann/a--b")
