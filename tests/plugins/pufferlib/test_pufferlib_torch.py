"""Policies and sampling of PufferLib's interface, against torch's distributions and fugu's core."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Categorical, Normal

import fugu_pufferlib as pufferlib
from fugu.core.errors import UsageError
from fugu.policies.cores import LstmCore

sample_logits = pufferlib.pytorch.sample_logits


def heads(*sizes: int, rows: int = 7) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(sum(sizes))
    return tuple(torch.randn(rows, size, generator=generator, requires_grad=True) for size in sizes)


@pytest.mark.parametrize("sizes", [(5,), (3, 7), (4, 4, 2)])
def test_log_probabilities_entropies_and_gradients_are_those_of_categoricals(
    sizes: tuple[int, ...],
) -> None:
    logits = heads(*sizes)
    actions, logs, entropies = sample_logits(logits)
    assert (actions.shape, actions.dtype) == ((7, len(sizes)), torch.int32)
    known = [Categorical(logits=head) for head in logits]
    wanted = sum(d.log_prob(actions[:, i]) for i, d in enumerate(known))
    disorder = sum(d.entropy() for d in known)
    torch.testing.assert_close(logs, wanted)
    torch.testing.assert_close(entropies, disorder)
    again = sample_logits(logits, actions)
    torch.testing.assert_close(again[1], logs)
    ours = torch.autograd.grad((logs + entropies).sum(), logits, retain_graph=True)
    theirs = torch.autograd.grad((wanted + disorder).sum(), logits)
    torch.testing.assert_close(ours, theirs)


def test_one_head_gives_one_number_a_row() -> None:
    (logits,) = heads(5)
    actions, logs, entropies = sample_logits(logits)
    assert actions.shape == logs.shape == entropies.shape == (7,)
    torch.testing.assert_close(logs, Categorical(logits=logits).log_prob(actions))


def test_draws_are_as_likely_as_they_should_be() -> None:
    torch.manual_seed(0)
    probabilities = torch.tensor([0.1, 0.2, 0.7])
    actions, _, _ = sample_logits((probabilities.log().expand(20_000, 3), torch.zeros(20_000, 2)))
    counts = torch.bincount(actions[:, 0], minlength=3) / 20_000
    torch.testing.assert_close(counts, probabilities, atol=0.02, rtol=0)
    assert actions[:, 1].unique().tolist() == [0, 1]


def test_what_is_forbidden_is_never_drawn_and_adds_nothing() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]]).expand(500, 3)
    actions, _, entropies = sample_logits(logits)
    assert set(actions.tolist()) == {0, 2}
    torch.testing.assert_close(entropies, torch.full((500,), math.log(2)))


def test_logits_that_are_no_numbers_are_not_drawn_from() -> None:
    with pytest.raises(RuntimeError, match="nan"):
        sample_logits(torch.full((3, 2), math.nan))


def test_numbers_come_of_a_normal() -> None:
    normal = Normal(torch.randn(6, 3), torch.rand(6, 3) + 0.1)
    actions, logs, entropies = sample_logits(normal)
    assert actions.shape == (6, 3)
    torch.testing.assert_close(logs, normal.log_prob(actions).sum(1))
    torch.testing.assert_close(entropies, normal.entropy().sum(1))
    torch.testing.assert_close(sample_logits(normal, actions)[1], logs)


class Spaces:
    """All that a policy asks of an environment."""

    emulated = False

    def __init__(self, action: Any) -> None:
        self.single_observation_space = self.observation_space = spaces.Box(-1, 1, (2, 3))
        self.single_action_space = action


def wrapped(action: Any = None, hidden: int = 8) -> Any:
    env = Spaces(action or spaces.Discrete(4))
    policy = pufferlib.models.Default(env, hidden_size=hidden)
    return pufferlib.models.LSTMWrapper(env, policy, hidden, hidden)


def empty() -> dict[str, Any]:
    return {"lstm_h": None, "lstm_c": None}


@pytest.mark.parametrize(
    "action", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))]
)
def test_whole_segments_give_what_single_steps_give(action: Any) -> None:
    torch.manual_seed(1)
    policy, seen = wrapped(action), torch.randn(5, 6, 2, 3)
    state, whole = empty(), empty()
    steps = [policy.forward_eval(seen[:, t], state) for t in range(6)]
    logits, values = policy(seen, whole)
    torch.testing.assert_close(values, torch.cat([value for _, value in steps], 1))
    torch.testing.assert_close(whole["lstm_h"][0], state["lstm_h"])
    torch.testing.assert_close(whole["lstm_c"][0], state["lstm_c"])
    actions, logs, _ = sample_logits(logits)
    by_step = actions.reshape(5, 6, *actions.shape[1:])
    known = [sample_logits(step, by_step[:, t])[1] for t, (step, _) in enumerate(steps)]
    torch.testing.assert_close(logs.reshape(5, 6), torch.stack(known, 1))


def test_a_segment_goes_on_from_the_state_before() -> None:
    policy, seen = wrapped(), torch.randn(5, 6, 2, 3)
    state = empty()
    _, values = policy(seen, empty())
    parts = [policy(part, state)[1] for part in seen.split(3, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), values)


def test_it_is_the_lstm_that_fugus_own_core_is() -> None:
    policy, core, seen = wrapped(), LstmCore(8, 8), torch.randn(5, 6, 2, 3)
    core.network.load_state_dict(policy.lstm.state_dict())
    hidden = policy.policy.encode_observations(seen.flatten(0, 1)).reshape(5, 6, 8)
    outputs = core.forward_segments(hidden, torch.zeros(5, 16), torch.zeros(5, 6).bool())
    state = empty()
    policy(seen, state)
    torch.testing.assert_close(state["hidden"], outputs)


def test_the_cell_is_the_lstm() -> None:
    policy = wrapped()
    assert policy.cell.weight_hh is policy.lstm.weight_hh_l0
    names = {id(parameter) for parameter in policy.parameters()}
    assert len(names) == 4 + 6, "the cell has no parameters of its own"


def test_what_does_not_fit_is_refused() -> None:
    policy = wrapped()
    with pytest.raises(UsageError, match=r"allowed: \[batch"):
        policy(torch.zeros(5, 6, 3, 2), empty())
    wrong = {"lstm_h": torch.zeros(4, 8), "lstm_c": torch.zeros(4, 8)}
    with pytest.raises(UsageError, match="for a batch of 5"):
        policy.forward_eval(torch.zeros(5, 2, 3), wrong)


class Match(pufferlib.PufferEnv):
    """Each agent is to say which of three numbers is 1."""

    single_observation_space = spaces.Box(0, 1, (3,))
    single_action_space = spaces.Discrete(3)
    num_agents = 16

    def __init__(self, buf: Any = None, seed: int = 0) -> None:
        super().__init__(buf)
        self.random = np.random.default_rng(seed)

    def reset(self, seed: int | None = None) -> Any:
        self.wanted = self.random.integers(0, 3, self.num_agents)
        self.observations[:] = np.eye(3)[self.wanted]
        return self.observations, []

    def step(self, actions: Any) -> Any:
        self.rewards[:] = actions == self.wanted
        self.reset()
        return self.observations, self.rewards, self.terminals, self.truncations, []


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_loop_of_theirs_learns(recurrent: bool) -> None:
    """REINFORCE as a script would write it."""
    torch.manual_seed(0)
    vecenv = pufferlib.vector.make(Match, backend="Serial", num_envs=2)
    policy = pufferlib.models.Default(vecenv.driver_env, hidden_size=32)
    if recurrent:
        policy = pufferlib.models.LSTMWrapper(vecenv.driver_env, policy, 32, 32)
    optimiser = torch.optim.Adam(policy.parameters(), 0.01)
    seen, _ = vecenv.reset(seed=1)
    earned = []
    for _ in range(120):
        logits, _ = policy.forward_eval(torch.from_numpy(seen), empty())
        actions, logs, _ = sample_logits(logits)
        seen, rewards, *_ = vecenv.step(actions.numpy())
        earned.append(float(rewards.mean()))
        centred = torch.from_numpy(rewards - rewards.mean())
        optimiser.zero_grad()
        (-logs * centred).mean().backward()
        optimiser.step()
    vecenv.close()
    assert sum(earned[:5]) < 2.5, "the control: it begins by guessing"
    assert sum(earned[-5:]) > 4.5
