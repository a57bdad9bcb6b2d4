"""minesweeper beside a slow reference: cells that open, where mines are, wins and losses."""

import numpy as np
import pytest
from native_games import play, start


def neighbours(cell, width, height):
    y, x = divmod(cell, width)
    near = [(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    return [r * width + c for r, c in near if 0 <= r < height and 0 <= c < width]


def open_cell(view, cell, mines, width, height):
    """The view after opening a cell that holds no mine."""
    view, waiting = view.copy(), [cell]
    while waiting:
        cell = waiting.pop()
        if view[cell] == 9:
            near = neighbours(cell, width, height)
            view[cell] = sum(mines[n] for n in near)
            waiting += near if view[cell] == 0 else []
    return view


def probe(vec, state, cells):
    """Where the mines are: every copy goes to the same state and opens another cell."""
    vec.set_state(state)
    batch = play(vec, np.arange(cells))
    return batch.terminations & (batch.rewards == -1)


@pytest.mark.parametrize(
    ("width", "height", "mines", "first"), [(9, 9, 10, 40), (4, 7, 3, 0), (16, 11, 25, 175)]
)
def test_minesweeper_is_the_reference_until_it_is_won(width, height, mines, first):
    cells, rng = width * height, np.random.default_rng(0)
    vec, _ = start("minesweeper", cells, seed=2, width=width, height=height, mines=mines)
    safe, floods = cells - mines, 0
    for game in range(4):
        batch = vec.reset_some(np.ones(cells, bool), seed=game)
        view, opened = np.full(cells, 9), 0
        batch = play(vec, np.full(cells, first))
        if batch.terminations[0]:
            continue
        state = vec.state()[:1]
        truth = probe(vec, state, cells)
        assert truth.sum() == mines
        assert not truth[first]
        batch, cell = vec.set_state(state), first
        while True:
            now = open_cell(view, cell, truth, width, height)
            newly = int((now != view).sum())
            opened, view, floods = opened + newly, now, floods + (newly > 1)
            won = opened == safe
            seen = batch.final[0] if won else batch.observations[0]
            assert np.array_equal(seen, view)
            if cell != first:
                assert batch.terminations[0] == won
                assert batch.rewards[0] == pytest.approx(newly / safe + won)
            if won:
                assert batch.infos[0][0]["won"] == batch.infos[0][0]["opened"] == 1
                break
            assert np.array_equal(batch.action_masks[0], view == 9)
            cell = int(rng.choice(np.flatnonzero((view == 9) & ~truth)))
            batch = play(vec, np.full(cells, cell))
    assert floods > 2


def test_minesweeper_first_cell_is_safe_and_mines_are_everywhere_else_alike():
    copies, first = 1000, 5
    vec, _ = start("minesweeper", copies, seed=7, width=4, height=4, mines=8)
    batch = play(vec, np.full(copies, first))
    assert not batch.terminations.any()
    states, hits = vec.state(), []
    for cell in range(16):
        vec.set_state(states)
        hits.append((play(vec, np.full(copies, cell)).rewards == -1).mean())
    assert hits.pop(first) == 0
    assert np.allclose(hits, 8 / 15, atol=0.06)


def test_minesweeper_a_mine_ends_with_minus_one_and_an_open_cell_costs_a_little():
    vec, _ = start("minesweeper", 16, width=4, height=4, mines=14, max_steps=5)
    batch = play(vec, np.zeros(16))
    assert batch.rewards == pytest.approx(0.5)
    before = batch.observations.copy()
    batch = play(vec, np.zeros(16))
    assert batch.rewards == pytest.approx(-0.1)
    assert np.array_equal(batch.observations, before)
    assert not batch.terminations.any()
    batch = play(vec, np.arange(16))
    lost = batch.rewards == -1
    assert lost.sum() > 8
    assert np.array_equal(batch.terminations[1:], np.ones(15, bool))
    for env in np.flatnonzero(lost):
        assert batch.infos[env][0]["opened"] == 0.5
        assert batch.infos[env][0]["won"] == 0
    for _ in range(2):
        batch = play(vec, np.zeros(16))
    assert batch.truncations[0]


def test_minesweeper_one_cell_stays_free_of_any_number_of_mines():
    vec, _ = start("minesweeper", 3, width=5, height=4, mines=255)
    batch = play(vec, [0, 7, 19])
    assert batch.terminations.all()
    assert batch.rewards == pytest.approx(2)
