"""Every agent is played by whom it belongs to, and nobody changes before a match is over."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from exact_games import RockPaperScissors
from league_toys import Caller, Marks, make_batch

from fugu.algos.settings import LeagueConfig
from fugu.core.errors import UsageError
from fugu.league.players import PolicyPlayer
from fugu.league.pool import LEARNER, NOBODY, Pool, Seats, act_for
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.vector import make


@pytest.mark.parametrize("agents", [2, 3])
@pytest.mark.parametrize("leaves", [0.0, 0.2])
@pytest.mark.parametrize("batch_size", [12, 5])
def test_agents_are_played_by_their_holders(agents: int, leaves: float, batch_size: int) -> None:
    env = partial(Marks, agents, leaves)
    with make(env, 12, backend="serial", batch_size=batch_size) as vec:
        cfg = LeagueConfig(enabled=True, in_play=6, self_share=0.2, draw="uniform")
        pool = Pool(vec, cfg, np.random.default_rng(0))
        callers = [Caller(10 + i) for i in range(4)]
        for i, caller in enumerate(callers):
            pool.add(f"caller {i}", caller)
        calls = {member.number: 10 + i for i, member in enumerate(pool.members)}
        vec.async_reset(3)
        changes, seen, still_in = 0, set(), np.zeros((12, agents), np.bool_)
        for _ in range(300):
            batch = vec.recv()
            group = batch.groups[0]
            before = pool.seats.holders[batch.env_ids]
            over, _ = pool.note(batch)
            after = pool.seats.holders[batch.env_ids]
            rows = group.rows
            ended = (rows.terminations | rows.truncations).reshape(-1, agents)
            begun = before[:, 0] != NOBODY
            still_in[batch.env_ids] &= ~ended
            truly_over = ~begun | ~still_in[batch.env_ids].any(1)
            assert (over == truly_over).all()  # an independent count of who is still in
            still_in[batch.env_ids[over]] = True
            assert (before[~over] == after[~over]).all()
            changes += int((before != after)[over & begun].any(1).sum())
            actions = np.full_like(rows.actions, -1)
            holders = pool.seats.of_group(0, after)
            fresh = np.repeat(over, agents)
            act_for(pool.players, 0, group.agent_ids, rows, holders, fresh, actions)
            for action, holder in zip(actions[:, 0], holders, strict=True):
                assert action == calls.get(holder, -1)
            seen |= set(holders.tolist())
            actions[holders == LEARNER] = 1
            vec.send(actions, group.agent_ids)
            pool.refresh()
    assert seen == {LEARNER, *calls}
    assert changes > 100
    assert all(caller.begun for caller in callers)


def test_results_are_counted_from_both_sides_and_draws_too() -> None:
    with make(RockPaperScissors, 3, backend="serial") as vec:
        seats = Seats(vec.groups, 3)
    assert seats.note(make_batch([0, 1, 2], 2))[0].all()
    seats.holders[:] = [[0, 5], [5, 0], [0, 7]]
    over, matches = seats.note(make_batch([0, 1, 2], 2, rewards=[[0.5, 0], [0.5, 0], [0, 0]]))
    assert not over.any()
    assert not len(matches.holders)
    rewards = [[0.5, -1], [0.5, -1], [2, 2]]
    over, matches = seats.note(make_batch([0, 1, 2], 2, rewards=rewards, ends=True))
    assert over.all()
    assert matches.outcomes() == {(0, 5): [1, 0, 1], (0, 7): [0, 1, 0]}
    assert matches.lengths.tolist() == [2, 2, 2]
    assert matches.returns.tolist() == [[1, -1], [1, -1], [2, 2]]


def test_matches_that_a_fault_broke_do_not_count() -> None:
    with make(Marks, 2, backend="serial") as vec:
        seats = Seats(vec.groups, 2)
    seats.note(make_batch([0, 1], 2))
    seats.holders[:] = [[0, 1], [0, 1]]
    valid = [[False, False], [True, True]]
    over, matches = seats.note(make_batch([0, 1], 2, rewards=[[np.nan, 1], [1, 0]], valid=valid))
    assert over.tolist() == [True, False]
    assert not len(matches.holders)
    seats.holders[0] = [0, 1]
    _, matches = seats.note(make_batch([0, 1], 2, rewards=[[0, 1], [0, 0]], ends=True))
    assert matches.outcomes() == {(0, 1): [1, 0, 1]}


def test_teams_hold_together() -> None:
    with make(partial(Marks, 4), 1, backend="serial") as vec:
        seats = Seats(vec.groups, 1, sides=2)
    seats.note(make_batch([0], 4))
    seats.holders[:] = [[0, 3]]
    assert seats.of_group(0, seats.holders).tolist() == [0, 0, 3, 3]
    _, matches = seats.note(make_batch([0], 4, rewards=[[1, 2, 3, 1]], ends=True))
    assert matches.returns.tolist() == [[3, 4]]


@pytest.mark.parametrize(("agents", "sides"), [(1, 0), (4, 3), (4, 1), (2, 4)])
def test_sides_that_cannot_be_are_refused(agents: int, sides: int) -> None:
    with (
        make(partial(Marks, agents), 1, backend="serial") as vec,
        pytest.raises(UsageError, match="two or more agents"),
    ):
        Seats(vec.groups, 1, sides)


def test_agents_that_come_back_one_by_one_are_refused() -> None:
    with make(partial(Marks, 3, 0.3, True), 8, backend="serial") as vec:
        pool = Pool(vec, LeagueConfig(enabled=True), np.random.default_rng(0))
        vec.async_reset(0)

        def play() -> None:
            for _ in range(50):
                batch = vec.recv()
                pool.note(batch)
                vec.send(np.zeros_like(batch.groups[0].rows.actions))

        with pytest.raises(UsageError, match="begin anew while others play on"):
            play()


def noisy_policy(vec: Any, seed: int) -> Policy:
    """One whose choices depend on what it remembers."""
    torch.manual_seed(seed)
    policy = make_policy(vec.groups[0], PolicyConfig(core="lstm", hidden_size=16))
    with torch.no_grad():
        policy.decoder.weight.mul_(300.0)  # type: ignore[operator, union-attr]
    return policy


def test_every_policy_remembers_its_own_episodes_and_nothing_else() -> None:
    with make(partial(Marks, 2, 0.15), 6, backend="serial", batch_size=4) as vec:
        random = np.random.default_rng(1)
        policies = [noisy_policy(vec, seed) for seed in range(3)]
        players = {
            i: PolicyPlayer([policy], [12], random, greedy=True)
            for i, policy in enumerate(policies)
        }
        seats = Seats(vec.groups, 6)
        alone: dict[int, torch.Tensor] = {}  # the state of each agent, kept by the test
        checked, different = 0, 0
        vec.async_reset(5)
        for _ in range(200):
            batch = vec.recv()
            over, _ = seats.note(batch)
            for env in batch.env_ids[over]:
                seats.holders[env] = random.integers(3, size=2)
            group = batch.groups[0]
            rows, holders = group.rows, seats.of_group(0, seats.holders[batch.env_ids])
            actions, fresh = np.zeros_like(rows.actions), np.repeat(over, 2)
            act_for(players, 0, group.agent_ids, rows, holders, fresh, actions)
            for i, agent in enumerate(group.agent_ids.tolist()):
                if fresh[i]:
                    alone[agent] = torch.zeros(1, policies[0].state_size)
                if not rows.live[i]:
                    continue
                seen = torch.from_numpy(rows.observations[i : i + 1].copy())
                with torch.no_grad():
                    params, _, after = policies[holders[i]](seen, alone[agent])
                    empty = policies[holders[i]](seen, torch.zeros_like(alone[agent]))[0]
                assert actions[i, 0] == int(params[0].argmax())
                checked, different = checked + 1, different + int(params.argmax() != empty.argmax())
                alone[agent] = after
            vec.send(actions, group.agent_ids)
    assert checked > 500
    assert different > 50  # memory mattered
