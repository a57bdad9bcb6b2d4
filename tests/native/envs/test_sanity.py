from collections import defaultdict
from math import comb, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

import fugu
from fugu.core.errors import UsageError


def make(name, copies=1, **settings):
    return fugu.make(name, copies, backend="native", num_workers=1, env_kwargs=settings)


def play(vec, policy, steps, seed=1):
    """What a policy meets, `[steps, agents]`, and what is told of the episodes that end."""
    found, infos = defaultdict(list), defaultdict(list)
    vec.async_reset(seed)
    batch = vec.recv()
    for _ in range(steps):
        found["observations"].append(batch.observations.copy())
        found["masks"].append(batch.action_masks.copy())
        found["actions"].append(np.array(policy(batch)))
        vec.send(found["actions"][-1])
        batch = vec.recv()
        for name in ("rewards", "terminations", "truncations", "final"):
            found[name].append(getattr(batch, name).copy())
        for (info,) in dict(batch.infos).values():
            for key, value in info.items():
                infos[key].append(value)
    vec.close()
    return SimpleNamespace(infos=infos, **{name: np.array(rows) for name, rows in found.items()})


def ended(played, terminated, cut):
    """Whether exactly these steps ended episodes, all agents alike."""
    shape = played.rewards.shape
    spread = [np.broadcast_to(np.reshape(flags, (-1, 1)), shape) for flags in (terminated, cut)]
    return np.array_equal([played.terminations, played.truncations], spread)


def always(*action):
    return lambda batch: np.resize(np.array(action), len(batch.rewards))


def at_random(count, seed=0):
    rng = np.random.default_rng(seed)
    return lambda batch: rng.integers(0, count, len(batch.rewards))


@pytest.mark.parametrize(("arms", "best", "right"), [(4, 1, 1), (2, 3, 1), (16, 15, 15), (3, 9, 0)])
def test_only_the_best_arm_pays_most_of_the_time(arms, best, right):
    for arm in range(arms):
        played = play(make("bandit", 512, arms=arms, best=best), always(arm), 4)
        assert set(np.unique(played.rewards)) <= {0.0, 1.0}
        assert played.rewards.mean() == pytest.approx(0.9 if arm == right else 0.1, abs=0.04)
        assert np.mean(played.infos["score"]) == (arm == right)


def test_a_pull_is_an_episode_and_nothing_is_to_be_seen():
    played = play(make("bandit", 8), at_random(4), 5)
    assert ended(played, True, False)
    assert (played.observations == 1).all()
    assert (played.final == 1).all()
    assert set(played.infos["episode_length"]) == {1}


@pytest.mark.parametrize(("length", "secret"), [(5, 21), (5, 6), (1, 1), (16, 40503), (3, 0)])
def test_exactly_the_password_opens_the_lock(length, secret):
    bits = [secret >> i & 1 for i in range(length)]
    for flipped in (None, *range(length)):
        guess = [bit ^ (i == flipped) for i, bit in enumerate(bits)]
        vec = make("password", length=length, secret=secret)
        played = play(vec, lambda batch, g=guess: [g[batch.observations[0].argmax()]], 2 * length)
        ends = np.arange(2 * length) % length == length - 1
        assert ended(played, ends, False)
        assert (played.rewards[:, 0] == (ends & (flipped is None))).all()
        assert played.infos["score"] == [flipped is None] * 2
        assert played.infos["right_bits"] == [length - (flipped is not None)] * 2


def test_the_position_is_seen_and_none_after_the_last_bit():
    played = play(make("password", length=3), always(0), 6)
    assert (played.observations[:, 0] == np.eye(16)[[0, 1, 2, 0, 1, 2]]).all()
    assert not played.final[2].any()
    assert not played.final[5].any()


def test_chance_opens_one_lock_in_2_to_the_length():
    played = play(make("password", 2048), at_random(2), 20)
    assert np.mean(played.infos["score"]) == pytest.approx(1 / 32, abs=0.008)


@pytest.mark.parametrize("delay", [1, 4, 64])
def test_the_symbol_is_seen_once_and_asked_for_after_the_delay(delay):
    played = play(make("memory", 16, delay=delay), at_random(2), 2 * (delay + 1))
    for begin in (0, delay + 1):
        symbol, due = np.moveaxis(played.observations[begin : begin + delay + 1], 2, 0)
        assert (abs(symbol[0]) == 1).all()
        assert not symbol[1:].any()
        assert not due[:-1].any()
        assert (due[-1] == 1).all()
        end = begin + delay
        assert (played.rewards[end] == (played.actions[end] == (symbol[0] > 0))).all()
        assert not played.rewards[begin:end].any()
    assert ended(played, np.arange(len(played.rewards)) % (delay + 1) == delay, False)
    assert not played.final[end].any()


def test_memory_earns_all_and_a_policy_without_it_half():
    shown = {}

    def remembers(batch):
        symbol = batch.observations[:, 0]
        shown["now"] = np.where(symbol != 0, symbol > 0, shown.get("now", symbol > 0))
        return shown["now"].astype(np.int64)

    scores = {
        name: np.mean(play(make("memory", 512), policy, 20).infos["score"])
        for name, policy in (("memory", remembers), ("none", always(1)), ("random", at_random(2)))
    }
    assert scores["memory"] == 1
    assert scores["none"] == pytest.approx(0.5, abs=0.05)
    assert scores["random"] == pytest.approx(0.5, abs=0.05)


def stochastic_score(share, p):
    return max(1 - ((share - p) / min(p, 1 - p)) ** 2, -1)


def expected(drawn, p, length):
    """What drawing action 0 with probability `drawn` earns on average."""
    return sum(
        comb(length, k) * drawn**k * (1 - drawn) ** (length - k) * stochastic_score(k / length, p)
        for k in range(length + 1)
    )


@pytest.mark.parametrize(("p", "length"), [(0.75, 32), (0.75, 64), (0.3, 10)])
def test_the_share_of_an_episode_is_scored_at_its_end(p, length):
    played = play(make("stochastic", 64, probability=p, length=length), at_random(2), length)
    share = (played.actions == 0).mean(0)
    assert played.rewards[-1] == pytest.approx([stochastic_score(s, p) for s in share], abs=1e-5)
    assert not played.rewards[:-1].any()
    assert ended(played, np.arange(length) == length - 1, False)
    assert played.infos["share"] == pytest.approx(share)
    assert (played.observations == 1).all()


@pytest.mark.parametrize(
    ("drawn", "score"), [(0.75, 0.906), (1.0, 0.0), (0.0, -1.0), (0.5, -0.059)]
)
def test_a_stochastic_policy_earns_what_no_deterministic_one_does(drawn, score):
    assert expected(drawn, 0.75, 32) == pytest.approx(score, abs=0.001)
    rng = np.random.default_rng(0)

    def policy(batch):
        return (rng.random(len(batch.rewards)) >= drawn).astype(np.int64)

    played = play(make("stochastic", 1024), policy, 64)
    assert np.mean(played.infos["episode_return"]) == pytest.approx(score, abs=0.02)


def test_the_best_rate_is_close_to_the_one_asked_for():
    rates = np.linspace(0, 1, 101)
    best = rates[np.argmax([expected(rate, 0.75, 32) for rate in rates])]
    assert best == pytest.approx(0.75, abs=0.02)


# ------------------------------------------------------------------ squared

MOVES = np.array([(0, 0), (1, 0), (-1, 0), (0, -1), (0, 1)])


def squared_reference(grid, action, distance):
    """The grid after a step, and the reward, from nothing but the grid that was seen."""
    last = len(grid) - 1
    agent, targets = np.argwhere(grid == 1)[0], np.argwhere(grid == 2)
    moved = np.clip(agent + MOVES[action], 0, last)
    after, hit = grid.copy(), grid[tuple(moved)] == 2
    after[tuple(agent)], after[tuple(moved)] = 0, 1
    if hit:
        return after, 1.0
    near = [abs(targets - place).sum(1).min() for place in (agent, moved)]
    return after, 0.1 * (near[0] - near[1]) / distance


@pytest.mark.parametrize(("distance", "targets"), [(1, 1), (1, 8), (3, 1), (3, 4), (8, 8)])
def test_squared_steps_like_its_reference(distance, targets):
    side, limit = 2 * distance + 1, 3 * distance * targets
    played = play(make("squared", 8, distance=distance, num_targets=targets), at_random(5), 200)
    steps, hits = np.zeros(8, int), 0
    for t, env in np.ndindex(200, 8):
        grid = played.observations[t, env].reshape(side, side)
        if steps[env] == 0:
            assert grid[distance, distance] == 1
            assert [(grid == 2).sum(), (grid[1:-1, 1:-1] == 2).sum()] == [targets, 0]
        after, reward = squared_reference(grid, played.actions[t, env], distance)
        steps[env] += 1
        done, cut = not (after == 2).any(), steps[env] == limit
        hits += done
        assert played.rewards[t, env] == pytest.approx(reward, abs=1e-6)
        assert played.terminations[t, env] == done
        assert played.truncations[t, env] == (cut and not done)
        if done or cut:
            steps[env] = 0
            assert (played.final[t, env].reshape(side, side) == after).all()
        elif t < 199:
            assert (played.observations[t + 1, env].reshape(side, side) == after).all()
    assert hits or targets > 1


def test_targets_lie_on_every_cell_of_the_border():
    played = play(make("squared", 2048), always(0), 1)
    counts = (played.observations[0].reshape(2048, 7, 7) == 2).sum(0)
    border = np.ones((7, 7), bool)
    border[1:-1, 1:-1] = False
    assert (counts[border] > 2048 / 24 / 2).all()
    assert not counts[~border].any()


@pytest.mark.parametrize("targets", [1, 2, 8])
def test_walking_to_the_nearest_target_takes_them_all(targets):
    def greedy(batch):
        actions = []
        for row in batch.observations.reshape(-1, 7, 7):
            agent, goals = np.argwhere(row == 1)[0], np.argwhere(row == 2)
            down, right = goals[abs(goals - agent).sum(1).argmin()] - agent
            actions.append((1 if down > 0 else 2) if down else 4 if right > 0 else 3)
        return np.array(actions)

    played = play(make("squared", 32, num_targets=targets), greedy, 60)
    assert len(played.infos["score"]) > 32
    assert set(played.infos["score"]) == {1.0}
    if targets == 1:  # every move but the last comes one nearer
        lengths = np.array(played.infos["episode_length"])
        assert played.infos["episode_return"] == pytest.approx(1 + 0.1 * (lengths - 1) / 3)


@pytest.mark.parametrize(
    ("actions", "rewards"), [((0, 1), (1, 1)), ((1, 0), (0, 0)), ((0, 0), (1, 0)), ((1, 1), (0, 1))]
)
def test_each_agent_is_paid_for_its_own_role(actions, rewards):
    played = play(make("multiagent", 3), always(*actions), 4)
    assert (played.rewards == np.tile(rewards, 3)).all()
    assert (played.observations[..., 0] == np.tile([0, 1], 3)).all()
    assert ended(played, True, False)
    assert np.mean(played.infos["score"]) == np.mean(rewards)  # one action for both: 0.5


def test_acting_by_the_role_that_is_seen_earns_all():
    policy = lambda batch: batch.observations[:, 0].astype(np.int64)  # noqa: E731
    assert (play(make("multiagent", 16), policy, 4).rewards == 1).all()


def parts(vec, rows):
    seen = [vec.observation_layout.unpack(row) for row in rows]
    image, flat = (np.array([view[name] for view in seen]) for name in ("image", "flat"))
    assert set(np.unique(image)) == {0, 255}
    assert set(np.unique(flat)) == {-1, 1}
    return image.mean((1, 2)) > 127.5, flat.sum(1) > 0


def test_each_head_is_paid_for_the_truth_of_its_own_part():
    vec, rng = make("spaces", 256), np.random.default_rng(0)
    played = play(vec, lambda batch: rng.integers(0, 2, (256, 2)), 4)
    scores = []
    for t in range(4):
        image, flat = parts(vec, played.observations[t])
        right = np.stack([played.actions[t, :, 0] == image, played.actions[t, :, 1] == flat])
        assert (played.rewards[t] == 0.5 * right.sum(0)).all()
        scores.append(right)
    assert ended(played, True, False)
    assert np.mean(played.infos["image"]) == pytest.approx(np.mean(np.array(scores)[:, 0]))
    assert np.mean(played.infos["flat"]) == pytest.approx(np.mean(np.array(scores)[:, 1]))


@pytest.mark.parametrize(("use", "score"), [((1, 1), 1), ((1, 0), 0.75), ((0, 1), 0.75)])
def test_both_parts_are_needed_to_earn_all(use, score):
    vec = make("spaces", 1024)
    policy = lambda b: np.stack(parts(vec, b.observations), 1) * np.array(use)  # noqa: E731
    assert play(vec, policy, 4).rewards.mean() == pytest.approx(score, abs=0.02)


def test_parts_are_drawn_independently():
    vec = make("spaces", 4096)
    image, flat = parts(vec, play(vec, lambda b: np.zeros((4096, 2), int), 1).observations[0])
    for one, other in np.ndindex(2, 2):
        assert ((image == one) & (flat == other)).mean() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("speed", [0.1, 0.5])
def test_the_point_moves_by_its_velocity_and_earns_its_closeness(speed):
    rng = np.random.default_rng(0)
    policy = lambda batch: rng.uniform(-1, 1, (16, 2)).astype(np.float32)  # noqa: E731
    played = play(make("continuous", 16, speed=speed), policy, 130)
    for t in range(130):
        place, target = played.observations[t, :, :2], played.observations[t, :, 2:]
        place = np.clip(place + np.float32(speed) * played.actions[t], -1, 1)
        distance = np.sqrt(((target - place) ** 2).sum(1))
        assert played.rewards[t] == pytest.approx(1 - distance, abs=1e-5)
        after = (
            played.final[t] if t % 64 == 63 else None if t == 129 else played.observations[t + 1]
        )
        if after is not None:
            assert after == pytest.approx(np.concatenate([place, target], 1), abs=1e-6)
    assert ended(played, False, np.arange(130) % 64 == 63)


def test_steering_to_the_target_earns_nearly_1_a_step_and_standing_still_nothing():
    def steer(batch):
        place, target = batch.observations[:, :2], batch.observations[:, 2:]
        return np.clip((target - place) / 0.1, -1, 1)

    steered = play(make("continuous", 256), steer, 64)
    still = play(make("continuous", 256), lambda b: np.zeros((256, 2), np.float32), 64)
    assert np.mean(steered.infos["episode_return"]) / 64 > 0.9
    assert max(steered.infos["distance"]) < 1e-3
    assert min(steered.infos["score"]) > 0.6
    assert np.mean(still.infos["episode_return"]) / 64 == pytest.approx(-0.043, abs=0.1)
    assert np.mean(still.infos["distance"]) == pytest.approx(1.043, abs=0.1)


def masked_policy(right):
    """The lower or the higher of the allowed choices: the one that is right, or the other one."""

    def policy(batch):
        masks, higher = batch.action_masks, batch.observations[:, 0] > 0
        last = masks.shape[1] - 1 - masks[:, ::-1].argmax(1)
        return np.where(higher == right, last, masks.argmax(1))

    return policy


@pytest.mark.parametrize("choices", [4, 16, 64])
def test_two_choices_are_allowed_and_the_hint_tells_the_right_one(choices):
    for right in (True, False):
        played = play(make("masked", 64, choices=choices), masked_policy(right), 32)
        assert played.masks.shape == (32, 64, choices)
        assert (played.masks.sum(2) == 2).all()
        assert set(np.unique(played.observations)) == {-1, 1}
        assert (played.rewards == right).all()
        assert ended(played, False, np.arange(32) % 16 == 15)
        assert set(played.infos["score"]) == {float(right)}
        assert set(played.infos["forbidden"]) == {0.0}
    frequency = played.masks.mean((0, 1))
    assert frequency == pytest.approx(2 / choices, abs=5 * sqrt(2 / choices / 2048))


def test_a_forbidden_choice_costs_1_and_ends_the_episode():
    played = play(make("masked", 64), lambda batch: batch.action_masks.argmin(1), 3)
    assert (played.rewards == -1).all()
    assert ended(played, True, False)
    assert set(played.infos["forbidden"]) == {1.0}
    assert set(played.infos["score"]) == {0.0}


def test_chance_gets_nowhere_without_the_mask():
    played = play(make("masked", 512), at_random(16), 40)
    assert np.mean(played.infos["episode_return"]) < -0.8
    assert np.mean(played.infos["episode_length"]) < 1.5
    rng = np.random.default_rng(0)
    allowed = lambda b: (b.action_masks * rng.random(b.action_masks.shape)).argmax(1)  # noqa: E731
    played = play(make("masked", 512), allowed, 16)
    assert np.mean(played.infos["episode_return"]) == pytest.approx(8, abs=0.3)


def value(played, gamma, bootstraps):
    """The fixed point of one-step targets from what was met; there is but one state."""
    goes_on = ~played.terminations & (bootstraps | ~played.truncations)
    return played.rewards.mean() / (1 - gamma * goes_on.mean())


@pytest.mark.parametrize(("max_steps", "gamma"), [(8, 0.99), (8, 0.9), (2, 0.99)])
def test_only_bootstrapping_finds_the_value_of_an_endless_task(max_steps, gamma):
    played = play(make("truncated", 4, max_steps=max_steps), at_random(2), 8 * max_steps)
    cut = np.arange(8 * max_steps) % max_steps == max_steps - 1
    assert (played.rewards == 1).all()
    assert ended(played, False, cut)
    assert (played.observations == 1).all()
    assert (played.final[cut] == 1).all()
    assert value(played, gamma, bootstraps=True) == pytest.approx(1 / (1 - gamma))
    wrong = value(played, gamma, bootstraps=False)
    assert wrong == pytest.approx(1 / (1 - gamma * (1 - 1 / max_steps)))
    assert wrong < 0.6 / (1 - gamma)


def test_without_a_limit_nothing_is_cut_off():
    played = play(make("truncated", max_steps=0), always(0), 100)
    assert ended(played, False, False)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bandit", {"arms": 17}),
        ("password", {"length": 17}),
        ("memory", {"delay": 0}),
        ("stochastic", {"probability": 1.0}),
        ("squared", {"distance": 9}),
        ("squared", {"num_targets": 9}),
        ("masked", {"choices": 65}),
        ("continuous", {"speed": 0}),
    ],
)
def test_settings_out_of_range_are_refused(name, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make(name, **settings)
