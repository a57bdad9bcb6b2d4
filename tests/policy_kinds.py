"""Policies of every kind, for tests that compare engines with torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu import Layout
from fugu.core.errors import PackError
from fugu.envs.contract import AgentGroup
from fugu.policies import Policy, PolicyConfig, make_policy

Forward = Callable[[NDArray[Any], NDArray[np.float32]], tuple[Any, Any, Any]]
VECTOR = spaces.Box(-3, 3, (5,))
TREE = spaces.Dict(
    grid=spaces.Box(0, 5, (3, 3), np.uint8),
    at=spaces.Box(-1, 1, (2,)),
    far=spaces.Box(-(2**40), 2**40, (2,), np.int64),
    level=spaces.Box(0, 200, (3,), np.int16),
    gear=spaces.Discrete(4, start=-1),
    word=spaces.MultiDiscrete([100, 3, 90]),
    lights=spaces.MultiBinary(4),
    inner=spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float64))),
)
SEQUENCES = spaces.Dict(
    items=spaces.Sequence(spaces.Dict(kind=spaces.Discrete(5), at=spaces.Box(-1, 1, (2,)))),
    name=spaces.Text(6, charset="abcdef"),
    one=spaces.OneOf((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    deep=spaces.Sequence(spaces.Sequence(spaces.Discrete(3))),
)
IMAGE, SMALL = spaces.Box(0, 255, (44, 40, 3), np.uint8), spaces.Box(0, 255, (2, 17, 16), np.uint8)
ITEMS = spaces.Box(-1, 1, (6, 3))
MIXED = spaces.Dict(go=spaces.MultiDiscrete([3, 2]), by=spaces.Box(-2, 2, (2,)))


@dataclass(frozen=True)
class Kind:
    """A policy to be made."""

    name: str
    observation: Space[Any] = field(default_factory=lambda: VECTOR)
    action: Space[Any] = field(default_factory=lambda: spaces.Discrete(4))
    settings: dict[str, Any] = field(default_factory=dict)
    critics: int = 1

    def __str__(self) -> str:
        return self.name

    def make(self) -> tuple[Policy, Layout]:
        """The policy, its weights as after some training, and the layout of its observations."""
        torch.manual_seed(3)
        group = AgentGroup(
            "agent", (0,), Layout.of(self.observation, limits=5), Layout.of(self.action)
        )
        cfg = PolicyConfig(**({"hidden_size": 16, "window": 5} | self.settings))
        policy = make_policy(group, cfg, self.critics).eval()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        policy.note(torch.from_numpy(observations_of(group.observation_layout, 64)))
        return policy, group.observation_layout


def observations_of(layout: Layout, count: int, seed: int = 0) -> NDArray[Any]:
    """Rows of observations drawn from the space."""
    layout.space.seed(seed)
    rows = layout.zeros(count)
    for row in rows:
        packed = False
        while not packed:  # some sequences are too long
            with contextlib.suppress(PackError):
                layout.pack(layout.space.sample(), row)
                packed = True
    return rows


def drive(
    policy: Policy,
    layout: Layout,
    forward: Forward,
    steps: int,
    batch: int,
    tolerance: float = 1e-5,
) -> None:
    """Compare an engine with torch over steps of a batch, in which episodes end by chance."""
    random = np.random.default_rng(1)
    rows = observations_of(layout, steps * batch).reshape(steps, batch, -1)
    state = np.zeros((batch, policy.state_size), np.float32)
    mine = state.copy()
    for seen in rows:
        with torch.no_grad():
            params, values, after = policy(torch.from_numpy(seen), torch.from_numpy(state))
        got_params, got_values, got_state = forward(seen, mine)
        np.testing.assert_allclose(got_params, params, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(got_values, values, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(got_state, after, rtol=tolerance, atol=tolerance)
        ended = random.random(batch) < 0.1
        state, mine = after.numpy().copy(), np.array(got_state)
        state[ended] = mine[ended] = 0.0


KINDS = [
    Kind("mlp"),
    Kind("mlp-relu-normalised", settings={"layers": 2, "activation": "relu", "normalise": True}),
    Kind("mlp-tanh-continuous", action=spaces.Box(-1, 1, (3,)), settings={"activation": "tanh"}),
    Kind("scaled", action=spaces.Box(0, 50, (3,)), settings={"continuous": "scaled"}),
    Kind("squashed", action=spaces.Box(-1, 1, (3,)), settings={"continuous": "tanh"}),
    Kind("own-critic", action=MIXED, settings={"critic": "own", "core": "lstm"}, critics=2),
    Kind("own-critic-plain", settings={"critic": "own"}),
    Kind("no-critic", critics=0),
    Kind("tree", TREE, MIXED, {"normalise": True}),
    Kind("sequences", SEQUENCES),
    Kind("nature", IMAGE),
    Kind("impala", SMALL, settings={"encoder": "impala"}),
    Kind("flat-image", SMALL, settings={"encoder": "mlp"}),
    Kind("set", ITEMS, settings={"encoder": "set", "layers": 2}),
    Kind("lstm", settings={"core": "lstm"}),
    Kind("gru", settings={"core": "gru"}),
    Kind("mingru", settings={"core": "mingru"}),
    Kind("transformer", settings={"core": "transformer"}),
    Kind("doubles", spaces.Box(-3, 3, (5,), np.float64)),
]
