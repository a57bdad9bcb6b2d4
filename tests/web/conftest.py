"""Modules and pages that tests share, and a browser to look at them."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fugu import native
from fugu.envs import suite
from fugu.envs.native_env import NativeEnv
from fugu.web import build_module, write_gallery, write_page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for wasm_game.py and browsing.py
_needs = all(importlib.util.find_spec(name) for name in ("ziglang", "wasmtime"))
collect_ignore_glob = [] if native.available and _needs else ["test_*.py"]
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


@pytest.fixture(scope="session")
def policy_files() -> Callable[[str], tuple[Path, Path]]:
    """A policy that was written by hand."""
    return lambda name: (HERE / f"policies/{name}/policy.h", HERE / f"policies/{name}/policy.c")


@pytest.fixture(scope="session")
def module_of(policy_files: Any) -> Callable[..., bytes]:
    """The module of an environment of the suite, with a policy if there is one to be had."""
    made: dict[Any, bytes] = {}

    def build(name: str, policy: bool = False, **settings: Any) -> bytes:
        key = (name, policy, tuple(settings.items()))
        if key not in made:
            env = NativeEnv(suite.find(name) or "", **settings)
            policies = {env.groups[0].name: policy_files(name)} if policy else None
            made[key] = build_module(env, policies)
        return made[key]

    return build


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the whole suite."""
    return write_gallery(tmp_path_factory.mktemp("gallery")).path


@pytest.fixture(scope="session")
def page_of(policy_files: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of an environment with the policy that was written by hand."""
    made: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = write_page(folder, name, policy_files(name), note="By hand.").path
        return made[name]

    return write


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium without a screen."""
    api = pytest.importorskip("playwright.sync_api")
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed here")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, timeout=60_000)
        yield chromium
        chromium.close()
