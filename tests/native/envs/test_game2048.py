"""game2048 beside a slow reference: slides, merges, new tiles, and moves that do nothing."""

import numpy as np
import pytest
from native_games import DOWN, LEFT, RIGHT, UP, pick, play, start


def slide_line(line):
    tiles = [int(tile) for tile in line if tile]
    out, merged = [], []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tiles.pop(0)
            tile += 1
            merged.append(tile)
        out.append(tile)
    return out + [0] * (len(line) - len(out)), merged


def slide(board, action):
    turned = np.rot90(board, {LEFT: 0, UP: 1, RIGHT: 2, DOWN: 3}[action])
    lines = [slide_line(line) for line in turned]
    after = np.array([line for line, _ in lines])
    merged = [tile for _, tiles in lines for tile in tiles]
    return np.rot90(after, -{LEFT: 0, UP: 1, RIGHT: 2, DOWN: 3}[action]), merged


def test_2048_reference_slides_as_the_game_does():
    assert slide_line([1, 1, 1, 1]) == ([2, 2, 0, 0], [2, 2])
    assert slide_line([2, 1, 1, 0]) == ([2, 2, 0, 0], [2])
    assert slide_line([0, 1, 0, 1]) == ([2, 0, 0, 0], [2])
    assert slide_line([1, 2, 1, 2]) == ([1, 2, 1, 2], [])
    board = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 3]])
    assert slide(board, UP)[0].tolist() == [[2, 0, 3], [0, 0, 0], [0, 0, 0]]
    assert slide(board, DOWN)[0].tolist() == [[0, 0, 0], [0, 0, 0], [2, 0, 3]]
    assert slide(board, RIGHT)[0].tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 3]]


@pytest.mark.parametrize(("size", "legal"), [(4, True), (4, False), (3, True), (6, False)])
def test_2048_is_the_reference_step_by_step(size, legal):
    copies, rng = 8, np.random.default_rng(size)
    vec, batch = start("game2048", copies, seed=3, size=size)
    scores, ended, new_tiles = np.zeros(copies), 0, []
    for step in range(250):
        boards = batch.observations.reshape(-1, size, size).copy()
        outcomes = [[slide(board, action) for action in range(4)] for board in boards]
        masks = [[(boards[i] != o).any() for o, _ in outcomes[i]] for i in range(copies)]
        assert np.array_equal(batch.action_masks, masks)
        if step == 0:
            assert ((boards > 0).sum((1, 2)) == 2).all()
        actions = pick(batch.action_masks, rng) if legal else rng.integers(0, 4, copies)
        batch = play(vec, actions)
        over = batch.terminations.copy()
        seen = np.where(over[:, None], batch.final, batch.observations)
        for i, action in enumerate(actions):
            after, merged = outcomes[i][action]
            difference = seen[i].reshape(size, size).astype(int) - after
            if masks[i][action]:
                (place,) = np.argwhere(difference)
                assert after[tuple(place)] == 0
                assert difference[tuple(place)] in (1, 2)
                new_tiles.append(difference[tuple(place)])
            else:
                assert not difference.any()
            assert batch.rewards[i] == pytest.approx(0.1 * sum(merged))
            scores[i] += sum(2**tile for tile in merged)
            last = seen[i].reshape(size, size)
            stuck = all((slide(last, a)[0] == last).all() for a in range(4))
            assert over[i] == stuck
            if stuck:
                (info,) = batch.infos[i]
                assert info["score"] == scores[i]
                assert info["max_tile"] == 2 ** int(last.max())
                scores[i], ended = 0, ended + 1
    assert (ended > 0) == (size < 6)
    assert 0.06 < np.mean(np.array(new_tiles) == 2) < 0.14


def test_2048_useless_moves_change_nothing_until_max_steps():
    vec, batch = start("game2048", 1, max_steps=60)
    for step in range(1, 61):
        useless = np.flatnonzero(~batch.action_masks[0])
        before = batch.observations.copy()
        batch = play(vec, useless[0] if len(useless) else LEFT)
        if len(useless) and step < 60:
            assert np.array_equal(batch.observations, before)
            assert batch.rewards[0] == 0
    assert batch.truncations[0]
    assert not batch.terminations[0]
    assert batch.infos[0][0]["max_tile"] >= 2
