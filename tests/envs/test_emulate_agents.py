"""Emulated environments of many agents: rows that come and go, groups, and turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toys import Script, Turns, only

from fugu.core.errors import AgentError, EnvError, SpaceError, UsageError
from fugu.envs import emulate


def columns(env: Any, name: str) -> dict[str, Any]:
    found = {}
    for group, rows in zip(env.groups, env.buffers, strict=True):
        for agent, value in zip(group.agents, getattr(rows, name).tolist(), strict=True):
            found[agent] = value[0] if isinstance(value, list) else value
    return found


def test_agents_die_join_late_and_are_padded() -> None:
    """a0 dies on the first step, a1 joins there and is cut off on the third, with the rest."""
    script = [
        {"a0": "terminated", "a1": None, "a2": None},
        {"a1": None, "a2": None},
        {"a1": "truncated", "a2": "terminated"},
    ]
    inner = Script(["a0", "a1", "a2", "a3"], ["a0", "a2"], script)
    env = emulate(inner)
    env.reset(seed=0)
    assert columns(env, "live") == {"a0": True, "a1": False, "a2": True, "a3": False}
    assert columns(env, "observations") == {"a0": 10, "a1": 0, "a2": 10, "a3": 0}

    env.step()
    assert set(inner.seen[0]) == {"a0", "a2"}
    assert columns(env, "live") == {"a0": False, "a1": True, "a2": True, "a3": False}
    assert columns(env, "observations") == {"a0": 0, "a1": 11, "a2": 11, "a3": 0}
    assert columns(env, "rewards") == {"a0": 11, "a1": 0, "a2": 11, "a3": 0}
    assert columns(env, "terminations") == {"a0": True, "a1": False, "a2": False, "a3": False}
    assert columns(env, "final")["a0"] == 11
    assert env.infos == [{"agent": "a0", "episode_return": 11, "episode_length": 1, "time": 11}]

    env.step()
    assert set(inner.seen[1]) == {"a1", "a2"}
    assert not any(columns(env, "terminations").values())
    assert columns(env, "rewards") == {"a0": 0, "a1": 12, "a2": 12, "a3": 0}
    assert not env.infos

    env.step()  # a mix of the two ends is an end as well
    assert columns(env, "terminations") == {"a0": False, "a1": False, "a2": True, "a3": False}
    assert columns(env, "truncations") == {"a0": False, "a1": True, "a2": False, "a3": False}
    assert columns(env, "final") == {"a0": 11, "a1": 13, "a2": 13, "a3": 0}
    assert columns(env, "live") == {"a0": True, "a1": False, "a2": True, "a3": False}
    assert columns(env, "observations") == {"a0": 10, "a1": 0, "a2": 10, "a3": 0}
    assert [info["agent"] for info in env.infos] == ["a1", "a2"]
    assert [info["episode_length"] for info in env.infos] == [2, 3]


def test_agents_with_different_spaces_are_in_different_groups() -> None:
    inner = Script(["a_0", "b_0", "a_1"], ["a_0", "b_0", "a_1"], [{"a_0": None, "b_0": None}] * 3)
    env = emulate(inner)
    assert [(g.name, g.agents) for g in env.groups] == [("a", ("a_0", "a_1")), ("b", ("b_0",))]
    assert env.num_agents == 3
    assert [g.observation_layout.dtype for g in env.groups] == [np.float32, np.int64]
    with pytest.raises(UsageError, match=r"2 groups of agents, \['a', 'b'\]"):
        _ = env.observation_layout
    env.reset(seed=0)
    env.buffers[1].actions[:] = 0.5
    with pytest.raises(EnvError, match="no 'a_1' in env.agents any more"):
        env.step()
    assert inner.seen[0]["b_0"].tolist() == [0.5, 0.5]


def test_agents_are_grouped_by_name_on_request() -> None:
    env = emulate(
        Script(["a0", "a1", "a2"], ["a0"], []), group_by=lambda agent: f"team{agent > 'a1'}"
    )
    assert [(g.name, g.agents) for g in env.groups] == [
        ("teamFalse", ("a0", "a1")),
        ("teamTrue", ("a2",)),
    ]


def test_an_agent_that_is_over_and_lingers_is_not_live_until_it_is_back() -> None:
    class Lingering(Script):
        def step(self, actions: dict[str, Any]) -> Any:
            result = super().step(actions)
            self.agents = ["a0", "a1"]
            return result

    script = [{"a0": "terminated", "a1": None}] * 2 + [{"a0": None, "a1": None}]
    env = emulate(Lingering(["a0", "a1"], ["a0", "a1"], script))
    env.reset(seed=0)
    lives, ends = [], []
    for _ in range(3):
        env.step()
        lives.append(columns(env, "live")["a0"])
        ends.append(columns(env, "terminations")["a0"])
    assert lives == [False, False, True]
    assert ends == [True, False, False]


def test_limits_by_path_may_belong_to_one_group_only() -> None:
    class Listening(Script):
        def observation_space(self, agent: str) -> Any:
            heard = spaces.Sequence(spaces.Discrete(3))
            return spaces.Dict(heard=heard) if agent[0] == "a" else spaces.Discrete(100)

    env = emulate(Listening(["a0", "b0"], ["b0"], []), limits={"heard": 4})
    assert [len(group.observation_layout.leaves) for group in env.groups] == [3, 1]
    with pytest.raises(SpaceError, match=r"given \['herd'\]"):
        emulate(Listening(["a0", "b0"], ["b0"], []), limits={"heard": 4, "herd": 2})


def test_an_unknown_agent_is_refused() -> None:
    env = emulate(Script(["a0"], ["a0"], [{"a0": None, "a9": None}]))
    env.reset(seed=0)
    with pytest.raises(AgentError, match=r"given 'a9'; allowed: the possible_agents \['a0'\]"):
        env.step()


def test_turns_make_one_row_live_and_gather_rewards_between_them() -> None:
    env = emulate(Turns(length=3))
    env.reset(seed=0)
    assert columns(env, "live") == {"white": True, "black": False}
    assert only(env).action_masks[0].tolist() == [True, False, False]

    env.step()  # white acts: +1 for it, -10 for black, who is told when its turn comes: now
    assert columns(env, "live") == {"white": False, "black": True}
    assert columns(env, "rewards") == {"white": 0, "black": -10}
    assert only(env).action_masks[1].tolist() == [True, True, False]

    env.step()  # black acts; white hears of its own +1 and of black's -10
    assert columns(env, "live") == {"white": True, "black": False}
    assert columns(env, "rewards") == {"white": -9, "black": 0}

    env.step()  # white acts and the game ends for both, with all that is due to each
    assert columns(env, "rewards") == {"white": 1, "black": -9}
    assert columns(env, "terminations") == {"white": True, "black": True}
    assert columns(env, "live") == {"white": True, "black": False}  # the next game
    unpack = env.observation_layout.unpack
    assert [unpack(row)["observation"] for row in only(env).final] == [3, 3]
    assert [unpack(row)["observation"] for row in only(env).observations] == [0, 0]
    assert sorted((i["agent"], i["episode_return"], i["episode_length"]) for i in env.infos) == [
        ("black", -19.0, 1),
        ("white", -8.0, 2),
    ]
    env.step()
    assert columns(env, "rewards") == {"white": 0, "black": -10}
    assert not any(columns(env, "terminations").values())


def test_an_agent_that_never_leaves_is_an_error_and_no_hang() -> None:
    class Stuck(Turns):
        def step(self, action: Any) -> None:
            if action is not None:
                super().step(action)

    env = emulate(Stuck(length=1))
    env.reset(seed=0)
    with pytest.raises(EnvError, match="allowed: agents that leave"):
        env.step()
