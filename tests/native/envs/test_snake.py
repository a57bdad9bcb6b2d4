"""snake beside a slow reference: moves, food, deaths; a torus, and the end of an episode."""

import numpy as np
import pytest
from native_games import make

WAYS = ((0, -1), (1, 0), (0, 1), (-1, 0))


def read_board(windows):
    """The food and each snake's cells and head on a walled board of 8 by 8, all of it in view."""
    snakes, food = [], set()
    for window in windows.reshape(-1, 15, 15):
        inside = np.argwhere(window != 1)
        top, left = inside.min(0)
        assert inside.max(0).tolist() == [top + 7, left + 7]  # walls all around
        assert window[7, 7] == 4
        assert np.count_nonzero(window == 4) == 1
        cells = {(x - left, y - top) for y, x in np.argwhere((window == 3) | (window == 4))}
        others = {(x - left, y - top) for y, x in np.argwhere(window >= 5)}
        snakes.append((cells, (7 - left, 7 - top), others))
        food = {(x - left, y - top) for y, x in np.argwhere(window == 2)}
    for cells, _, others in snakes:
        assert others == set().union(*(c for c, _, _ in snakes)) - cells
    return food, [(cells, head) for cells, head, _ in snakes]


class SlowSnakes:
    """Bodies as lists, the head first. Where chance decides, the observation is believed."""

    def __init__(self, windows, target, corpses_feed):
        self.target, self.corpses_feed = target, corpses_feed
        self.food, snakes = read_board(windows)
        self.bodies = [[head] for _, head in snakes]
        self.to_grow = [2] * len(snakes)
        self.headings = [0] * len(snakes)
        self.kinds = set()

    def step(self, actions):
        """Rewards and deaths; bodies and food are moved."""
        goals, ate, eaten = [], [], [len(body) - 3 for body in self.bodies]
        for i, body in enumerate(self.bodies):
            way = int(actions[i])
            if len(body) > 1 and way == (self.headings[i] + 2) % 4:
                way = self.headings[i]
                self.kinds.add("reverse")
            self.headings[i] = way
            goals.append((body[0][0] + WAYS[way][0], body[0][1] + WAYS[way][1]))
            ate.append(goals[i] in self.food)
            if not ate[i] and not self.to_grow[i]:
                body.pop()
            self.to_grow[i] -= bool(self.to_grow[i] and not ate[i])
        dead = []
        for i, goal in enumerate(goals):
            wall = not (0 <= goal[0] < 8 and 0 <= goal[1] < 8)
            own = goal in self.bodies[i]
            other = any(goal in body for body in self.bodies) and not own
            met = goals.count(goal) > 1
            dead.append(wall or own or other or met)
            causes = {"wall": wall, "own": own, "other": other, "met": met}
            self.kinds |= {cause for cause, found in causes.items() if found}
        for i, goal in enumerate(goals):
            if not dead[i]:
                self.bodies[i].insert(0, goal)
                self.food.discard(goal)
        for i in np.flatnonzero(dead):
            if self.corpses_feed:
                self.food |= set(self.bodies[i][: max(eaten[i], 0)])
                self.kinds |= {"fed"} if eaten[i] > 0 else set()
            self.bodies[i] = []
        rewards = [-1 if d else int(a) for d, a in zip(dead, ate, strict=True)]
        return rewards, dead

    def agree(self, windows):
        food, snakes = read_board(windows)
        taken = self.food.union(*self.bodies)
        for i, (cells, head) in enumerate(snakes):
            if not self.bodies[i]:
                assert cells == {head}
                assert head not in taken or len(taken) > 40  # on food, but where it is crowded
                self.food.discard(head)
                self.bodies[i], self.to_grow[i] = [head], 2
            assert cells == set(self.bodies[i])
            assert head == self.bodies[i][0]
        new = food - self.food
        assert self.food <= food
        assert len(new) <= max(0, self.target - len(self.food))
        assert not new & set().union(*self.bodies)
        self.food = food


def wise(windows, rng):
    """Mostly steps to food or where nothing is, now and then anywhere."""
    beside = windows.reshape(-1, 15, 15)[:, [6, 7, 8, 7], [7, 8, 7, 6]]
    worth = (beside == 0) * 1.0 + (beside == 2) * 2.0 + rng.random(beside.shape)
    return np.where(rng.random(len(worth)) < 0.1, rng.integers(0, 4, len(worth)), worth.argmax(1))


@pytest.mark.parametrize("corpses_feed", [0, 1])
def test_snakes_move_eat_and_die_as_a_slow_reference(corpses_feed):
    vec = make("snake", snakes=3, width=8, height=8, vision=7, food=5, corpses_feed=corpses_feed)
    kinds, rng = set(), np.random.default_rng(corpses_feed)
    for seed in range(4):
        obs, _ = vec.reset(seed=seed)
        slow, lengths = SlowSnakes(obs, 5, corpses_feed), [1, 1, 1]
        for _ in range(400):
            actions = wise(obs, rng)
            obs, rewards, ends, cuts, infos = vec.step(actions)
            expected, dead = slow.step(actions)
            assert rewards.tolist() == expected
            assert ends.tolist() == dead
            assert not cuts.any()
            if any(dead):
                logged = np.mean([lengths[i] for i in np.flatnonzero(dead)])
                assert infos[0][0]["length"] == pytest.approx(logged)
            slow.agree(obs)
            lengths = [len(body) for body in slow.bodies]
        kinds |= slow.kinds
    assert kinds == {"wall", "own", "other", "met", "reverse"} | (
        {"fed"} if corpses_feed else set()
    )


def test_a_torus_has_no_walls_and_repeats_itself():
    vec = make("snake", walls=0, snakes=1, width=9, height=8, vision=7, food=3)
    obs, _ = vec.reset(seed=1)
    for step in range(60):
        window = obs.reshape(15, 15)
        assert not (window == 1).any()
        np.testing.assert_array_equal(window[:, :6], window[:, 9:])
        np.testing.assert_array_equal(window[:7], window[8:])
        # Right for two rounds, then down: it comes back to where it was and lives.
        obs, _, ends, _, _ = vec.step(np.array([1 if step < 20 else 2]))
        assert not ends[0] or step > 20


def test_snakes_are_cut_off_together():
    vec = make("snake", 2, snakes=4, max_steps=6)
    obs, _ = vec.reset(seed=2)
    assert obs.shape == (8, 121)
    for step in range(1, 13):
        obs, _, ends, cuts, infos = vec.step(np.full(8, step % 4))
        assert (ends | cuts).all() == (step % 6 == 0)
        assert not (ends & cuts).any()
    assert infos[0][0]["episodes"] == 4
    assert 1 <= infos[0][0]["length"] <= 7
