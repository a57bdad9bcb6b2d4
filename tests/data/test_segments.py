"""Segments: whatever order batches come in, each agent's steps stand in order in its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from fugu.core.errors import UsageError
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout

AGENTS, HORIZON = 5, 4


def segments(rows: int = 10, state_size: int = 2) -> Segments:
    layout = Layout.of(spaces.Box(-1e9, 1e9, (2,)))
    names = tuple(range(AGENTS))
    group = AgentGroup("agent", names, layout, Layout.of(spaces.Discrete(3)))
    return Segments(group, SegmentShape(AGENTS, rows, HORIZON, 1, state_size, 2, 2))


class Story:
    """Every agent's own experience, as plain lists: the slow reference."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(AGENTS)]
        self.live = np.ones(AGENTS, bool)

    def recv(self, store: Segments, agents: Any) -> None:
        """A batch comes: what it says belongs to the last action of each agent."""
        count, random = len(agents), self.random
        rewards = random.normal(size=count).astype(np.float32)
        ended = random.random(count) < 0.2
        cut = (random.random(count) < 0.2) & ~ended
        valid = random.random(count) > 0.1
        live = random.random(count) < 0.7
        live |= ended | cut | ~valid
        finals = random.normal(size=(count, 2)).astype(np.float32)
        costs = random.normal(size=(count, 2)).astype(np.float32)
        waits = store.waiting(agents)
        store.record_reward(agents, rewards, ended, cut, valid, live, costs)
        truncated = waits & cut & valid
        store.bootstrap(agents[truncated], finals[truncated])
        for i, agent in enumerate(agents.tolist()):
            mine = self.steps[agent]
            if not mine or mine[-1]["closed"]:
                continue
            mine[-1]["reward"] += rewards[i]
            mine[-1]["cost"] = mine[-1]["cost"] + costs[i]
            mine[-1] |= {"ended": ended[i], "cut": cut[i], "valid": valid[i]}
            mine[-1]["final"] = finals[i]
            mine[-1]["closed"] = bool(live[i] or ended[i] or cut[i] or not valid[i])
        self.act(store, agents[live])

    def act(self, store: Segments, agents: Any) -> None:
        count, random = len(agents), self.random
        observations = random.normal(size=(count, 2)).astype(np.float32)
        masks = random.random((count, 3)) < 0.8
        samples = random.integers(0, 3, (count, 1)).astype(np.float32)
        log_probabilities = random.normal(size=count).astype(np.float32)
        values = random.normal(size=(count, 2)).astype(np.float32)
        states = random.normal(size=(count, 2)).astype(np.float32)
        store.record_step(agents, observations, masks, samples, log_probabilities, values, states)
        for i, agent in enumerate(agents.tolist()):
            self.steps[agent].append(
                {
                    "observation": observations[i], "mask": masks[i], "sample": samples[i],
                    "log": log_probabilities[i], "value": values[i], "state": states[i],
                    "reward": np.float32(0), "cost": np.zeros(2, np.float32), "closed": False,
                }
            )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lockstep", [True, False])
def test_rows_hold_each_agents_steps_in_order(seed: int, lockstep: bool) -> None:
    store, story = segments(), Story(seed)
    everybody = np.arange(AGENTS)
    story.act(store, everybody)
    seen = 0
    read = [0] * AGENTS  # steps of each agent that were read from rows
    for _ in range(300):
        some = np.sort(story.random.choice(AGENTS, 3, replace=False))
        story.recv(store, everybody if lockstep else some)
        if store.full:
            rows = store.take()
            assert len(set(rows.tolist())) == len(rows) == 10
            for row in rows.tolist():
                check_row(store, story, row, read)
                seen += 1
            store.release(rows)
    assert seen >= 50


def check_row(store: Segments, story: Story, row: int, read: list[int]) -> None:
    first = store.observations.array[row, 0]
    (agent,) = [
        a
        for a in range(AGENTS)
        if len(story.steps[a]) > read[a]
        and np.array_equal(story.steps[a][read[a]]["observation"], first)
    ]
    steps = story.steps[agent][read[agent] : read[agent] + HORIZON + 1]
    before = story.steps[agent][read[agent] - 1] if read[agent] else {"ended": True}
    starts = before["ended"] or before["cut"] or not before["valid"]
    assert store.starts_episode[row] == starts
    read[agent] += HORIZON
    assert np.array_equal(store.states[row], steps[0]["state"])
    assert np.array_equal(store.values[:, HORIZON, row], steps[HORIZON]["value"])
    for t, step in enumerate(steps[:HORIZON]):
        assert np.array_equal(store.observations.array[row, t], step["observation"])
        assert np.array_equal(store.masks[row, t], step["mask"])
        assert np.array_equal(store.samples[row, t], step["sample"])
        assert store.log_probabilities[t, row] == step["log"]
        assert np.array_equal(store.values[:, t, row], step["value"])
        assert np.allclose(store.costs[:, t, row], step["cost"], rtol=1e-6, atol=1e-6)
        assert store.rewards[t, row] == pytest.approx(step["reward"], rel=1e-6)
        assert store.terminations[t, row] == step["ended"]
        assert store.truncations[t, row] == step["cut"]
        assert store.valid[t, row] == step["valid"]
        if step["cut"] and step["valid"]:
            assert np.array_equal(store.final_values[:, t, row], step["final"])
        if t + 1 < HORIZON:
            expected = step["ended"] or step["cut"] or not step["valid"]
            assert store.resets(np.array([row]))[0, t + 1] == expected


def test_states_come_back_whole() -> None:
    store, story = segments(), Story(1)
    story.act(store, np.arange(AGENTS))
    for _ in range(9):
        story.recv(store, np.arange(AGENTS))
    other = segments()
    other.load_state_dict({k: v.copy() for k, v in store.state_dict().items()})
    assert other.complete == store.complete
    for name, array in store.state_dict().items():
        assert np.array_equal(array, other.state_dict()[name]), name
    older = {k: v for k, v in store.state_dict().items() if k != "starts_episode"}
    other.load_state_dict(older)
    assert not other.starts_episode.any()
    with pytest.raises(UsageError, match="given observations of shape"):
        segments(rows=11).load_state_dict(store.state_dict())


def test_rows_are_not_taken_before_they_are_complete_nor_written_over() -> None:
    store, story = segments(rows=3), Story(2)
    with pytest.raises(UsageError, match="given 0 complete rows"):
        store.take()
    story.act(store, np.arange(AGENTS))

    def go_on() -> None:
        for _ in range(100):
            story.recv(store, np.arange(AGENTS))

    with pytest.raises(UsageError, match="take and release"):
        go_on()


def test_agents_are_in_step_if_all_have_as_many_steps_in_segments_side_by_side() -> None:
    def changed(name: str, values: Any) -> Segments:
        state = {key: array.copy() for key, array in store.state_dict().items()}
        state[name] = np.array(values)
        other = segments()
        other.load_state_dict(state)
        return other

    store = segments()
    assert store.in_step() == (0, 0, AGENTS)
    store.complete_in_step()
    assert store.in_step() == (1, AGENTS, 2 * AGENTS)
    assert store.complete == AGENTS
    state = store.state_dict()
    assert changed("length", state["length"] + 1).in_step() == (2, AGENTS, 2 * AGENTS)
    for agent in (0, AGENTS - 1):
        assert changed("length", state["length"] + (np.arange(AGENTS) == agent)).in_step() is None
    assert changed("waiting", np.arange(AGENTS) != 1).in_step() is None
    assert changed("row_of", state["row_of"][::-1]).in_step() is None
    assert changed("free", state["free"][::-1]).in_step() is None
    store.complete_in_step()
    assert store.in_step() == (1, 2 * AGENTS, 3 * AGENTS)
    store.complete_in_step()
    assert store.in_step() is None  # no agent may begin another segment
