"""Signatures: which settings and checkpoints this user's own fugu wrote.

A signature is an HMAC-SHA256 under a secret key that is created once for each user and never leaves
the machine. Nothing that a file says about its own origin counts: whoever does not have the key
cannot sign, and files that are changed lose their signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

log = logging.getLogger("fugu.store")

Kind = Literal["settings", "checkpoint", "sweep", "storage"]
"""What is signed: a signature of one kind of content is none of another."""
KEY_BYTES = 32


def key_path() -> Path:
    """Return the file of the user's key: `fugu/signing.key` in the folder for state.

    The folder is `$XDG_STATE_HOME`, or `~/.local/state`; `%LOCALAPPDATA%` on Windows.
    """
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", "")
    folder = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return folder / "fugu" / "signing.key"


def sign(kind: Kind, content: bytes) -> str | None:
    """Return the signature of some content; None if the user has no folder for a key."""
    try:
        key = _read_key() or _create_key()
    except (OSError, RuntimeError) as error:  # a home that is missing, full or read-only
        log.debug("nothing is signed: %s", error)
        return None
    return _digest(key, kind, content)


def is_signed(kind: Kind, content: bytes, signature: object) -> bool:
    """Return whether `sign` gave this signature for the same content."""
    try:
        key = _read_key()
    except (OSError, RuntimeError):
        return False
    if key is None or not isinstance(signature, str):
        return False
    expected = _digest(key, kind, content).encode()
    return hmac.compare_digest(expected, signature.encode(errors="replace"))


def canonical(tree: Mapping[str, Any]) -> bytes:
    """Return settings as bytes that do not depend on the file format or the order of keys."""
    return json.dumps(tree, sort_keys=True, default=str).encode()


def _digest(key: bytes, kind: Kind, content: bytes) -> str:
    return hmac.new(key, kind.encode() + b"\0" + content, hashlib.sha256).hexdigest()


def _read_key() -> bytes | None:
    try:
        key = key_path().read_bytes()
    except FileNotFoundError:
        return None
    return key if len(key) == KEY_BYTES else None


def _create_key() -> bytes:
    """Create the key, unless another process was faster; every process reads the same one."""
    path = key_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    key = _read_key()
    if key is None:
        raise OSError(None, f"expected {KEY_BYTES} bytes; delete the file", str(path))
    return key
