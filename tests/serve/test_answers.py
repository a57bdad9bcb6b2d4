"""What a server answers over real connections is what its policy says."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from serving import BY_NAME, FIVE, PATIENCE, Place, as_client, ask, gated, load_kind, serving, until

from fugu import Layout
from fugu.core.errors import PackError
from fugu.envs.contract import AgentGroup
from fugu.export import LoadedPolicy
from fugu.inference.torch_engine import TorchEngine
from fugu.policies.decision_transformer import (
    DecisionTransformerPolicyConfig,
    make_decision_transformer,
)


def samples(policy: LoadedPolicy, count: int) -> list[Any]:
    """Observations that fit."""
    layout, found = policy.facts.observation, []
    layout.space.seed(5)
    while len(found) < count:
        value = layout.space.sample()
        try:
            layout.pack(value, layout.zeros())
        except PackError:  # a sequence that is too long
            continue
        found.append(value)
    return found


def plain(value: Any) -> Any:
    """An action as JSON has it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def same(told: Any, expected: Any) -> None:
    """Compare actions, up to the rounding of a pass of another size."""
    if isinstance(expected, dict):
        assert set(told) == set(expected)
        for key in expected:
            same(told[key], expected[key])
    else:
        np.testing.assert_allclose(told, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_answers_are_those_of_the_policy(name: str) -> None:
    local, space = load_kind(name), BY_NAME[name].observation
    seen = samples(local, 4)
    with serving(load_kind(name)) as place:
        connection = place.connect()
        for seed, observation in enumerate(seen):
            for greedy in (True, False):
                sent = {
                    "observation": as_client(space, observation),
                    "seed": seed,
                    "greedy": greedy,
                }
                told = ask(connection, "POST", "/act", sent)
                assert told.status == 200, told.body
                action, value, state = local.act(
                    observation, greedy=greedy, random=np.random.default_rng(seed)
                )
                same(told.json["action"], plain(action))
                values = [n for n in np.ravel(told.json["value"]) if n is not None]
                if local.facts.num_critics:
                    np.testing.assert_allclose(values[0], value, rtol=1e-5, atol=1e-6)
                assert len(values) == local.facts.num_critics
                assert (told.json["state"] is None) == (state.size == 0)
        several = [as_client(space, observation) for observation in seen]
        told = ask(
            connection, "POST", "/act", {"observations": several, "greedy": False, "seed": 9}
        )
        rows = local.facts.observation.zeros(4)
        for row, observation in zip(rows, seen, strict=True):
            local.facts.observation.pack(observation, row)
        actions, *_ = local.act_rows(rows, greedy=False, random=np.random.default_rng(9))
        for one, row in zip(told.json["actions"], actions, strict=True):
            same(one, plain(local.facts.action.unpack(row)))
        connection.close()


@pytest.mark.parametrize("name", ["lstm", "gru", "mingru", "transformer", "own-critic"])
def test_episodes_of_a_policy_that_remembers(name: str) -> None:
    local, space = load_kind(name), BY_NAME[name].observation
    with serving(load_kind(name)) as place:
        connection = place.connect()
        for _ in range(2):  # episodes
            state, token = None, None
            for step, observation in enumerate(samples(local, 12)):
                sent = {"observation": as_client(space, observation), "state": token}
                sent |= {"greedy": False, "seed": step}
                told = ask(connection, "POST", "/act", sent).json
                random = np.random.default_rng(step)
                action, _, state = local.act(observation, state, greedy=False, random=random)
                same(told["action"], plain(action))
                token = told["state"]
                carried = np.frombuffer(base64.b64decode(token), "<f4")
                np.testing.assert_allclose(carried, state, rtol=1e-4, atol=1e-5)
        assert np.abs(state).max() > 0
        connection.close()


def test_rewards_reach_a_policy_that_aims_at_a_return() -> None:
    layout, actions = Layout.of(spaces.Box(-3, 3, (5,))), Layout.of(spaces.Discrete(4))
    cfg = DecisionTransformerPolicyConfig(hidden_size=16, window=4, heads=2)
    policy = make_decision_transformer(AgentGroup("agent", (0,), layout, actions), cfg).eval()
    policy.ask(10.0)  # type: ignore[operator]
    local, state, token = LoadedPolicy(TorchEngine(policy, layout)), None, None
    with serving(LoadedPolicy(TorchEngine(policy, layout))) as place:
        for step, observation in enumerate(samples(local, 8)):
            reward = 0.5 * step
            sent = {"observation": observation.tolist(), "state": token, "reward": reward}
            told = place.act(sent).json
            action, _, state = local.act(observation, state, reward=reward)
            assert (told["action"], told["value"]) == (action, None)
            token = told["state"]
            carried = np.frombuffer(base64.b64decode(token), "<f4")
            np.testing.assert_allclose(carried, state, rtol=1e-4, atol=1e-5)
        unpaid = place.act(sent | {"reward": 0.0}).json["state"]
        assert unpaid != token


def test_masks_are_held(place: Place) -> None:
    for allowed in range(4):
        mask = [i == allowed for i in range(4)]
        assert place.act({"observation": FIVE, "mask": mask}).json["action"] == allowed
    sent = {"observations": [FIVE, FIVE], "masks": [[0, 0, 0, 1], None]}
    free = place.act({"observation": FIVE}).json["action"]
    assert place.act(sent).json["actions"] == [3, free]


def test_many_at_once_are_batched_and_each_gets_its_own() -> None:
    policy, engine = gated()
    local = load_kind("mlp")
    seen = samples(local, 24)
    with serving(policy, max_batch=16) as place, ThreadPoolExecutor(len(seen)) as threads:
        asked = [threads.submit(place.act, {"observation": each.tolist()}) for each in seen]
        assert engine.entered.acquire(timeout=PATIENCE)
        until(lambda: place.service.waiting == len(seen) - engine.sizes[0])
        engine.gate.set()
        for observation, future in zip(seen, asked, strict=True):
            told = future.result(PATIENCE).json
            action, value, _ = local.act(observation)
            assert told["action"] == action
            np.testing.assert_allclose(told["value"], value, rtol=1e-5, atol=1e-6)
        passes = place.metric("fugu_serve_batch_observations_count")
        assert place.metric("fugu_serve_batch_observations_sum") == len(seen)
        assert passes <= 3
        assert max(engine.sizes) > 1
