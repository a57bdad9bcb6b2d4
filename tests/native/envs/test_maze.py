"""maze: that it is perfect or open, what is seen of it, the best path, and its levels."""

import numpy as np
import pytest
from native_games import DOWN, LEFT, RIGHT, UP, play, start

PADDING = 8  # of wall around a maze
LINES = 31 + 2 * PADDING
STEPS = {UP: (-1, 0), RIGHT: (0, 1), DOWN: (1, 0), LEFT: (0, -1)}


def maze_of(vec, batch, side, env=0):
    """Whether each cell is a wall, the agent's place and the goal's, `(row, column)`."""
    words = vec.state()[env, 32 : 32 + 16 * LINES].view(np.uint64).reshape(2, LINES, 1)
    walls, trail = (words >> np.arange(LINES, dtype=np.uint64) & 1).astype(bool)
    ((y, x),) = np.argwhere(trail)  # after a reset the agent was where it is
    view = vec.observation_layout.unpack(batch.observations[env])
    right, down = np.rint(view["compass"] * side).astype(int)
    vision = view["view"].shape[0] // 2
    window = walls[y - vision : y + vision + 1, x - vision : x + vision + 1].astype(int)
    if max(abs(right), abs(down)) <= vision:
        window[vision + down, vision + right] = 2
    assert np.array_equal(view["view"], window)
    assert walls[:PADDING].all()
    assert walls[PADDING + side :].all()
    inner = walls[PADDING : PADDING + side, PADDING : PADDING + side]
    return inner, (y - PADDING, x - PADDING), (y - PADDING + down, x - PADDING + right)


def distances(walls, start_cell):
    found, queue = {start_cell: 0}, [start_cell]
    for y, x in queue:
        for dy, dx in STEPS.values():
            cell = (y + dy, x + dx)
            if not walls[cell] and cell not in found:
                found[cell] = found[y, x] + 1
                queue.append(cell)
    return found


@pytest.mark.parametrize(("size", "vision"), [(5, 1), (11, 2), (20, 8), (31, 3)])
def test_maze_is_perfect_without_openness(size, vision):
    side = size | 1
    vec, batch = start("maze", 12, size=size, vision=vision, openness=0)
    mazes = [maze_of(vec, batch, side, env) for env in range(12)]
    for walls, agent, goal in mazes:
        rooms = (side // 2) ** 2
        assert walls[[0, -1]].all()
        assert walls[:, [0, -1]].all()
        assert not walls[1::2, 1::2].any()
        # Connected, and with one passage less than rooms: a tree.
        assert (~walls).sum() == 2 * rooms - 1
        assert len(distances(walls, agent)) == 2 * rooms - 1
        assert goal != agent
        assert goal[0] % 2 == goal[1] % 2 == 1
    if size > 5:
        assert len({walls.tobytes() for walls, _, _ in mazes}) == 12


def test_maze_openness_takes_walls_away_but_none_of_the_border_or_the_pillars():
    for openness, low, high in ((0.3, 0.2, 0.4), (1, 1, 1)):
        vec, batch = start("maze", 8, size=31, openness=openness)
        taken = []
        for env in range(8):
            walls, _, _ = maze_of(vec, batch, 31, env)
            assert walls[::2, ::2].all()
            assert walls[[0, -1]].all()
            assert walls[:, [0, -1]].all()
            taken.append(((~walls).sum() - 449) / (645 - 449))
        assert low <= np.mean(taken) <= high


@pytest.mark.parametrize("openness", [0, 0.5])
def test_maze_best_path_pays_one_less_its_steps_and_a_bump_does_nothing(openness):
    vec, batch = start("maze", openness=openness, step_cost=0.01, seed=5)
    for _ in range(8):
        walls, (y, x), goal = maze_of(vec, batch, 11)
        far = distances(walls, goal)
        bump = next((a for a, (dy, dx) in STEPS.items() if walls[y + dy, x + dx]), None)
        extra = 0
        if bump is not None:
            before, extra = batch.observations.copy(), 1
            batch = play(vec, bump)
            assert np.array_equal(batch.observations, before)
            assert batch.rewards[0] == pytest.approx(-0.01)
        shortest = far[y, x]
        for left in range(shortest, 0, -1):
            action = next(
                a for a, (dy, dx) in STEPS.items() if far.get((y + dy, x + dx)) == left - 1
            )
            y, x = y + STEPS[action][0], x + STEPS[action][1]
            batch = play(vec, action)
            assert batch.terminations[0] == (left == 1)
            assert batch.rewards[0] == pytest.approx(0.99 if left == 1 else -0.01)
        (info,) = batch.infos[0]
        assert info["solved"] == 1
        assert info["optimal_ratio"] == pytest.approx(shortest / (shortest + extra))
        assert info["episode_length"] == shortest + extra


def test_maze_levels_are_few_the_same_for_every_seed_and_truncation_is_not_solved():
    def levels(count, seed):
        vec, batch = start("maze", 64, seed=seed, levels=count, max_steps=1, size=15)
        found = {vec.state()[env, 32 : 32 + 16 * LINES].tobytes() for env in range(64)}
        batch = play(vec, np.zeros(64))
        assert batch.truncations.sum() > 55
        for env in np.flatnonzero(batch.truncations):
            assert batch.infos[env][0]["solved"] == batch.infos[env][0]["optimal_ratio"] == 0
        return found

    assert len(levels(4, 0)) == 4
    assert levels(4, 0) == levels(4, 1)
    assert levels(4, 0) < levels(5, 1)
    assert len(levels(0, 0)) == 64


def test_maze_without_compass_is_only_the_window():
    vec, batch = start("maze", compass=0, vision=3)
    assert batch.observations.shape == (1, 49)
    assert vec.observation_layout.space.shape == (7, 7)
