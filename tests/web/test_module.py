"""Environments as WebAssembly: what the native library does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wasm_game import WasmGame
from wasmtime import Engine, Module

from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.seeding import derive
from fugu.envs import suite
from fugu.envs.building import BuildError, build
from fugu.envs.contract import Buffers
from fugu.envs.native_env import NativeEnv
from fugu.vector.random_actions import RandomActions
from fugu.web import build_module

ROWS = ("observations", "rewards", "costs", "terminations", "truncations", "live")
STEPS = 300
Modules = Callable[..., bytes]


def bound(name: str, seed: int, **settings: Any) -> NativeEnv:
    env = NativeEnv(suite.find(name) or "", **settings)
    env.bind(*(Buffers.allocate(group) for group in env.groups))
    env.reset(seed)
    return env


def differences(env: NativeEnv, game: WasmGame, copy: int = 0) -> Iterator[str]:
    """Arrays of the two that are not the same bytes."""
    for g, rows in enumerate(env.buffers):
        agents = env.groups[g].num_agents
        mine = slice(copy * agents, (copy + 1) * agents)
        for name in ROWS:
            if getattr(rows, name).tobytes() != game.rows(g, name)[mine].tobytes():
                yield name
        if rows.action_masks.tobytes() != game.rows(g, "masks")[mine].tobytes():
            yield "masks"
        ended = rows.terminations | rows.truncations
        if rows.final[ended].tobytes() != game.rows(g, "final")[mine][ended].tobytes():
            yield "final"


@pytest.mark.parametrize("name", suite.names())
def test_a_module_does_what_the_library_does(name: str, module_of: Modules) -> None:
    env, game = bound(name, 7), WasmGame(module_of(name), 1)
    game.call("reset", 0, 7)
    assert list(differences(env, game)) == []
    players = [RandomActions(group, group.num_agents, 3) for group in env.groups]
    for step in range(STEPS):
        for g, (rows, player) in enumerate(zip(env.buffers, players, strict=True)):
            rows.actions[:] = player.sample(rows)
            game.act(g, rows.actions)
        env.step()
        game.call("step", 0)
        assert list(differences(env, game)) == [], step
        if step % 50 == 0:
            assert env.display_list() == game.shapes(0)


def test_another_seed_is_another_game(module_of: Modules) -> None:
    env, game = bound("breakout", 7), WasmGame(module_of("breakout"), 1)
    game.call("reset", 0, 8)
    assert list(differences(env, game)) == ["observations"]


def test_copies_have_seeds_of_their_own_and_do_not_touch_each_other(module_of: Modules) -> None:
    game = WasmGame(module_of("snake"), 3)
    envs = [bound("snake", derive(5, copy)) for copy in range(3)]
    for copy in range(3):
        seed = game.call("derive", 5, copy) & (2**64 - 1)
        assert seed == derive(5, copy)
        game.call("reset", copy, seed - 2**64 if seed >= 2**63 else seed)
    for step in range(60):
        game.write(game.group(0)["actions"], np.full(12, step % 4, np.int64))
        game.call("step", step % 3)
        envs[step % 3].buffers[0].actions[:] = step % 4
        envs[step % 3].step()
        for copy, env in enumerate(envs):
            assert "observations" not in list(differences(env, game, copy))


def test_settings_are_those_of_the_environment(module_of: Modules) -> None:
    module = module_of("breakout", lives=1, ball_speed=0.3)
    env, game = bound("breakout", 1, lives=1, ball_speed=0.3), WasmGame(module, 1)
    game.call("reset", 0, 1)
    for _ in range(100):
        env.step()
        game.call("step", 0)
        assert list(differences(env, game)) == []
    assert env.spec.values[1] == 1


def test_modules_import_nothing_and_are_small(module_of: Modules) -> None:
    for policy in (False, True):
        module = module_of("breakout", policy)
        assert Module(Engine(), module).imports == []
        assert len(module) < 40_000


@pytest.mark.parametrize("name", ["masked", "connect4", "minesweeper", "spaces", "point_goal"])
def test_chance_does_what_is_allowed_and_all_of_it(name: str, module_of: Modules) -> None:
    env, game = NativeEnv(suite.find(name) or ""), WasmGame(module_of(name), 1)
    (group,) = env.groups
    game.call("reset", 0, 3)
    seen = set()
    for _ in range(600):
        game.call("guess", 0, 0, 0)
        actions = game.rows(0, "actions").copy().view(group.action_layout.dtype)[0]
        value = group.action_layout.unpack(actions)  # raises if it is no value of the space
        if group.mask_width and isinstance(value, np.integer):
            assert game.rows(0, "masks")[0, int(value)]
        seen.add(str(value) if group.mask_width else tuple(np.sign(value)))
        game.call("step", 0)
    assert len(seen) >= (4 if name in ("spaces", "point_goal") else group.mask_width)


# ------------------------------------------------------------------ policies


def play(game: WasmGame, seed: int, *, greedy: bool, steps: int) -> tuple[float, int]:
    """The return of an episode, or of so many steps, and how many there were."""
    game.call("reset", 0, seed)
    total = 0.0
    for step in range(steps):
        game.call("think", 0, 0, 0)
        game.call("act", 0, 0, 0, greedy)
        game.call("step", 0)
        total += float(game.rows(0, "rewards")[0, 0])
        if game.rows(0, "terminations")[0, 0]:
            return total, step + 1
    return total, steps


def test_a_policy_plays_and_forgets_when_an_episode_ends(module_of: Modules) -> None:
    game = WasmGame(module_of("breakout", True), 1)
    minds = game.minds(0)
    assert play(game, 1, greedy=True, steps=10_000)[0] == 864  # all points there are
    assert game.memory(minds["states"], 1, np.float32)[0] == 0
    game.call("think", 0, 0, 0)
    assert game.memory(minds["states"], 1, np.float32)[0] == 1
    game.call("reset", 0, 1)
    assert game.memory(minds["states"], 1, np.float32)[0] == 0


def test_what_is_drawn_follows_from_the_seed(module_of: Modules) -> None:
    game = WasmGame(module_of("breakout", True), 1)
    first, again, other = (play(game, seed, greedy=False, steps=1000) for seed in (4, 4, 5))
    assert first == again != other
    assert play(game, 4, greedy=True, steps=1000) != first


def test_the_spread_of_numbers_is_a_deviation_to_each_side(module_of: Modules) -> None:
    game = WasmGame(module_of("pendulum", True), 1)
    game.call("reset", 0, 2)
    for _ in range(200):
        game.call("think", 0, 0, 0)
        game.call("act", 0, 0, 0, 1)
        mean, log_std = game.memory(game.minds(0)["params"], 2, np.float32)
        below, middle, above = game.memory(game.call("spread", 0, 0, 0), 3, np.float32)
        assert middle == np.clip(mean, -2, 2) == game.rows(0, "actions").view(np.float32)[0, 0]
        expected = np.clip([mean - np.exp(log_std), mean + np.exp(log_std)], -2, 2)
        np.testing.assert_allclose([below, above], expected, rtol=1e-5)
        game.call("step", 0)
    values = game.memory(game.minds(0)["values"], 2, np.float32)
    assert values[0] > 0.95  # it stands upright


def constant_policy(folder: Path, observation: int, choices: int, choice: int) -> tuple[Path, Path]:
    """A policy that always does the same."""
    folder.mkdir()
    sizes = {"OBSERVATION_BYTES": observation, "STATE": 0, "PARAMS": choices, "CRITICS": 1}
    sizes |= {"CHOICES": choices, "ACTION_BYTES": 8}
    (folder / "policy.h").write_text(
        "#ifndef P\n#define P\n"
        + "".join(f"#define FUGU_POLICY_{name} {size}\n" for name, size in sizes.items())
        + "#endif\n"
    )
    (folder / "policy.c").write_text(
        '#include "policy.h"\n'
        f"static const float weights[] = {{{choice}, 5}};\n"
        "void fugu_policy_forward(const void* o, float* s, float* params, float* values) {\n"
        "    (void)o; (void)s;\n"
        "    for (int i = 0; i < FUGU_POLICY_PARAMS; ++i) params[i] = i == weights[0];\n"
        "    values[0] = weights[0];\n}\n"
        "void fugu_policy_act(const float* params, const unsigned char* mask,\n"
        "                     unsigned long long* random, void* action) {\n"
        "    (void)params; (void)mask; (void)random;\n"
        "    *(long long*)action = (long long)weights[0];\n}\n"
    )
    return folder / "policy.h", folder / "policy.c"


def test_every_group_has_its_own_policy(tmp_path: Path) -> None:
    env = NativeEnv(suite.find("speaker_listener") or "")
    speaker, listener = env.groups
    policies = {
        group.name: constant_policy(
            tmp_path / group.name, group.observation_layout.nbytes, group.mask_width, choice
        )
        for group, choice in ((speaker, 2), (listener, 3))
    }
    game = WasmGame(build_module(env, policies), 1)
    game.call("reset", 0, 1)
    for group, choice in enumerate((2, 3)):
        game.call("think", group, 0, 0)
        game.call("act", group, 0, 0, 1)
        assert game.rows(group, "actions").view(np.int64)[0, 0] == choice
        assert game.memory(game.minds(group)["values"], 1, np.float32)[0] == choice
    only = WasmGame(build_module(env, {"listener": policies["listener"]}), 1)
    assert only.call("minds", 0) == 0 != only.call("minds", 1)


# ------------------------------------------------------------------ what is refused


def test_a_policy_for_other_rows_is_refused(policy_files: Any) -> None:
    env = NativeEnv(suite.find("cartpole") or "")
    with pytest.raises(BuildError, match="OBSERVATION_BYTES of agent is 16"):
        build_module(env, {"agent": policy_files("breakout")})


def test_a_policy_for_nobody_or_without_files_is_refused(policy_files: Any, tmp_path: Path) -> None:
    env = NativeEnv(suite.find("breakout") or "")
    with pytest.raises(UsageError, match="given one for 'player'; allowed: agent"):
        build_module(env, {"player": policy_files("breakout")})
    with pytest.raises(UsageError, match="nothing.h.*allowed: a file that exists"):
        build_module(env, {"agent": (tmp_path / "nothing.h", tmp_path / "nothing.c")})


def test_a_library_of_ones_own_needs_its_header(tmp_path: Path) -> None:
    header = tmp_path / "mine.h"
    text = (suite.folder() / "cartpole.h").read_text()
    header.write_text(text.replace("cartpole", "mine"))
    library = build(header)
    game = WasmGame(build_module(NativeEnv(str(library))), 1)
    game.call("reset", 0, 1)
    game.call("step", 0)
    assert game.rows(0, "rewards")[0, 0] == 1
    header.unlink()
    with pytest.raises(UsageError, match=r"without 'mine\.h' beside it"):
        build_module(NativeEnv(str(library)))


def test_without_the_compiler_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"fugu-rl\[export\]"):
        build_module(NativeEnv(suite.find("breakout") or ""))
