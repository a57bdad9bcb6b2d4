"""The token policy: sampling with its cache equals one pass over the whole sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.policies.tokens import TokenCore
from fugu.spaces import Layout

LENGTH, TOKENS = 11, 6


def policy(layers: int = 2) -> Policy:
    torch.manual_seed(3)
    layout = Layout.of(spaces.MultiDiscrete([TOKENS] * LENGTH))
    group = AgentGroup("agent", (0,), layout, Layout.of(spaces.Discrete(4)))
    made = make_policy(group, PolicyConfig(core="tokens", hidden_size=16, layers=layers), 0)
    for weight in made.parameters():  # so that positions and tokens matter
        torch.nn.init.normal_(weight, std=0.3)
    return made


def episodes(prompts: list[int], steps: int) -> torch.Tensor:
    """Sequences that grow by one token a step, `[rows, steps, length]`."""
    random = np.random.default_rng(1)
    out = np.zeros((len(prompts), steps, LENGTH), np.int64)
    for row, prompt in zip(out, prompts, strict=True):
        tokens = random.integers(1, TOKENS, LENGTH)
        for t in range(steps):
            row[t, : prompt + t] = tokens[: prompt + t]
    return torch.from_numpy(out)


@pytest.mark.parametrize("layers", [1, 3])
@torch.no_grad()
def test_steps_with_a_cache_equal_one_pass(layers: int) -> None:
    made, seen = policy(layers), episodes([0, 1, 4, 6], 5)
    whole, _ = made.forward_segments(
        seen, made.initial_state(4), torch.zeros(4, 5, dtype=torch.bool)
    )
    state = made.initial_state(4)
    for t in range(5):
        params, values, state = made(seen[:, t], state)
        torch.testing.assert_close(params, whole[:, t], rtol=1e-5, atol=1e-5)
        assert values.shape == (4, 0)
        assert state[:, -1].tolist() == [1 + n + t for n in (0, 1, 4, 6)]


@torch.no_grad()
def test_rows_at_different_places_do_not_see_each_other() -> None:
    made, seen = policy(), episodes([1, 4], 5)
    state = made.initial_state(2)
    _, _, alone = made(seen[:1, 0], state[:1])
    _, _, alone = made(seen[:1, 1], alone)
    mixed = torch.cat([alone, made.initial_state(1)])  # one goes on, the other begins
    params, _, _ = made(torch.stack([seen[0, 2], seen[1, 0]]), mixed)
    for row, t in ((0, 2), (1, 0)):
        expected, _, _ = made(seen[row : row + 1, t], made.initial_state(1))
        torch.testing.assert_close(params[row : row + 1], expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_later_tokens_change_no_earlier_output() -> None:
    made, seen = policy(), episodes([3], 5)
    resets = torch.zeros(1, 5, dtype=torch.bool)
    before, _ = made.forward_segments(seen, made.initial_state(1), resets)
    other = seen.clone()
    other[0, 4, 6] = seen[0, 4, 6] % (TOKENS - 1) + 1  # the token written at step 3
    after, _ = made.forward_segments(other, made.initial_state(1), resets)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=0)
    assert not torch.allclose(before[:, 4], after[:, 4])


@torch.no_grad()
def test_segments_with_ends_inside_and_padding_after() -> None:
    made, seen = policy(), episodes([2, 3], 3)
    row = torch.cat([seen[0], seen[1], torch.zeros(2, LENGTH, dtype=torch.int64)])[None]
    resets = torch.zeros(1, 8, dtype=torch.bool)
    resets[0, 3] = True
    found, _ = made.forward_segments(row, made.initial_state(1), resets)
    whole, _ = made.forward_segments(
        seen, made.initial_state(2), torch.zeros(2, 3, dtype=torch.bool)
    )
    torch.testing.assert_close(found[0, :3], whole[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0, 3:6], whole[1], rtol=1e-5, atol=1e-5)


def test_a_cached_step_computes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = policy(), episodes([5], 3)
    widths: list[int] = []
    embed = TokenCore._embed

    def noted(self: TokenCore, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        widths.append(tokens.shape[1])
        return embed(self, tokens, places)

    monkeypatch.setattr(TokenCore, "_embed", noted)
    state = made.initial_state(1)
    for t in range(3):
        _, _, state = made(seen[:, t], state)
    assert widths == [6, 1, 1]  # the prompt and its start, then a token a step


def test_other_observations_are_refused() -> None:
    group = AgentGroup(
        "agent", (0,), Layout.of(spaces.Box(0, 1, (3,))), Layout.of(spaces.Discrete(2))
    )
    with pytest.raises(UsageError, match="allowed: a MultiDiscrete"):
        make_policy(group, PolicyConfig(core="tokens"))
