"""An exported policy in a module with its environment says what torch says of the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wasm_game import WasmGame

from fugu.envs import suite
from fugu.envs.native_env import NativeEnv
from fugu.export.c_writer import write_c
from fugu.nets.reading import read_policy
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import make_policy
from fugu.web import build_module


@pytest.mark.parametrize(
    ("name", "core"), [("breakout", "none"), ("snake", "lstm"), ("point_goal", "gru")]
)
def test_a_module_thinks_what_torch_thinks(name: str, core: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    env = NativeEnv(suite.find(name) or "")
    (group,) = env.groups
    policy = make_policy(group, PolicyConfig(core=core)).eval()
    report = write_c(read_policy(policy, group.observation_layout), tmp_path)
    module = build_module(env, {group.name: (report.header, report.source)})
    assert name != "breakout" or len(module) < 200_000
    game = WasmGame(module, 1)
    minds, agents = game.minds(0), group.num_agents
    state = policy.initial_state(agents, torch.device("cpu"))
    game.call("reset", 0, 5)
    ends = 0
    for _ in range(150):
        rows = game.rows(0, "observations").view(group.observation_layout.dtype)
        with torch.no_grad():
            params, values, state = policy(torch.from_numpy(rows), state)
        for agent in range(agents):
            game.call("think", 0, 0, agent)
            game.call("guess", 0, 0, agent)
        seen = [
            game.memory(minds[what], agents * minds[f"num_{what}"], np.float32)
            for what in ("params", "values")
        ]
        for mine, theirs in zip(seen, (params, values), strict=True):
            np.testing.assert_allclose(mine, theirs.numpy().reshape(-1), rtol=1e-5, atol=1e-5)
        game.call("step", 0)
        ended = (game.rows(0, "terminations") | game.rows(0, "truncations"))[:, 0].astype(bool)
        state[torch.from_numpy(ended)] = 0.0
        ends += int(ended.sum())
    assert ends or name == "point_goal"
