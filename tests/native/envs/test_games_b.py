"""The rules of game2048, connect4, maze and minesweeper, each beside a slow reference."""

import numpy as np
import pytest

import fugu

UP, RIGHT, DOWN, LEFT = range(4)


def start(name, num_envs=1, *, seed=0, **settings):
    vec = fugu.make(name, num_envs, backend="native", num_workers=1, env_kwargs=settings)
    vec.async_reset(seed=seed)
    return vec, vec.recv()


def play(vec, actions):
    vec.send(np.asarray(actions, np.int64).reshape(-1, 1))
    return vec.recv()


def pick(masks, rng):
    return (rng.random(masks.shape) * masks).argmax(1)


# ------------------------------------------------------------------ game2048


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


# ------------------------------------------------------------------ connect4


FOURS = [
    [(y + k * dy) * 7 + x + k * dx for k in range(4)]
    for y in range(6)
    for x in range(7)
    for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1))
    if y + 3 * dy < 6 and 0 <= x + 3 * dx < 7
]


def winner(board):
    fours = board.reshape(-1)[FOURS]
    return next((player for player in (0, 1) if (fours == player).all(1).any()), None)


def dropped(board, column, player):
    after = board.copy()
    after[max(np.flatnonzero(board[:, column] < 0)), column] = player
    return after


def open_columns(board):
    return [column for column in range(7) if board[0, column] < 0]


def wins_at_once(board, player):
    return [c for c in open_columns(board) if winner(dropped(board, c, player)) == player]


def board_of(row):
    own, other = row.reshape(2, 6, 7)
    return np.where(own, 0, np.where(other, 1, -1)).astype(int)


def test_connect4_self_play_is_the_reference_step_by_step():
    copies, rng = 24, np.random.default_rng(0)
    vec, batch = start("connect4", copies, opponent=2)
    boards, turns, ended = np.full((copies, 6, 7), -1), np.zeros(copies, int), 0
    for _ in range(150):
        for i in range(copies):
            own, other = batch.observations[2 * i : 2 * i + 2]
            assert np.array_equal(board_of(own), boards[i])
            assert np.array_equal(own.reshape(2, 42), other.reshape(2, 42)[::-1])
            assert batch.live[2 * i : 2 * i + 2].tolist() == [turns[i] == 0, turns[i] == 1]
            allowed = [c in open_columns(boards[i]) for c in range(7)]
            assert batch.action_masks[2 * i + turns[i]].tolist() == allowed
        actions = rng.integers(0, 7, 2 * copies)
        batch = play(vec, actions)
        for i in range(copies):
            player, column = turns[i], actions[2 * i + turns[i]]
            won, full = None, column not in open_columns(boards[i])
            if full:
                won = 1 - player
            else:
                boards[i] = dropped(boards[i], column, player)
                won = winner(boards[i])
            over = won is not None
            expected = [1 if won == p else -1 for p in (0, 1)] if over else [0, 0]
            assert batch.rewards[2 * i : 2 * i + 2].tolist() == expected
            assert batch.terminations[2 * i : 2 * i + 2].tolist() == [over, over]
            turns[i] = 0 if over else 1 - player
            if over:
                assert np.array_equal(board_of(batch.final[2 * i]), boards[i])
                assert batch.infos[i][0]["won"] == 0.5  # one of two
                boards[i], ended = -1, ended + 1
    assert ended > copies


def test_connect4_full_column_loses_at_once_for_whoever_chose_it():
    vec, batch = start("connect4", opponent=2)
    for _ in range(6):
        batch = play(vec, [3, 3])
        assert not batch.terminations.any()
    assert batch.action_masks[0].tolist() == [True] * 3 + [False] + [True] * 3
    batch = play(vec, [3, 0])
    assert batch.terminations.all()
    assert batch.rewards.tolist() == [-1, 1]


def test_connect4_a_full_board_is_a_draw():
    rng = np.random.default_rng(0)
    for _ in range(200):  # a game in which nobody takes a win
        board, columns = np.full((6, 7), -1), []
        while open_columns(board):
            player = len(columns) % 2
            quiet = [c for c in open_columns(board) if c not in wins_at_once(board, player)]
            if not quiet:
                break
            columns.append(int(rng.choice(quiet)))
            board = dropped(board, columns[-1], player)
        if len(columns) == 42:
            break
    assert len(columns) == 42
    vec, batch = start("connect4", opponent=2)
    for column in columns:
        assert not batch.terminations.any()
        batch = play(vec, [column, column])
    assert batch.terminations.all()
    assert not batch.truncations.any()
    assert batch.rewards.tolist() == [0, 0]
    assert batch.infos[0][0]["drawn"] == 1
    assert batch.infos[0][0]["won"] == 0


@pytest.mark.parametrize("opponent", [0, 1])
def test_connect4_opponents_answer_with_one_disc_and_the_scripted_one_wins_and_blocks(opponent):
    copies, rng, seen = 20, np.random.default_rng(1), {"win": [], "block": []}
    vec, batch = start("connect4", copies, opponent=opponent)
    discs = batch.observations.reshape(-1, 2, 42).sum(2)
    assert (discs[:, 0] == 0).all()
    assert 3 < (discs[:, 1] == 1).sum() < 17
    for _ in range(50):
        before = [board_of(row) for row in batch.observations]
        actions = pick(batch.action_masks, rng)
        batch = play(vec, actions)
        for i, action in enumerate(actions):
            over, reward = batch.terminations[i], batch.rewards[i]
            mine = dropped(before[i], action, 0)
            after = board_of(batch.final[i] if over else batch.observations[i])
            if winner(mine) == 0:
                assert over
                assert reward == 1
                assert batch.infos[i][0]["won"] == 1
                continue
            if not open_columns(mine):
                continue
            (answer,) = np.argwhere(after != mine)
            assert np.array_equal(after, dropped(mine, answer[1], 1))
            assert over == (winner(after) == 1 or not open_columns(after))
            assert reward == (-1 if winner(after) == 1 else 0)
            if wins := wins_at_once(mine, 1):
                seen["win"].append(answer[1] in wins)
            elif threats := wins_at_once(mine, 0):
                seen["block"].append(answer[1] in threats)
    for cases in seen.values():
        assert len(cases) > 10
        assert all(cases) == (opponent == 1)


# ------------------------------------------------------------------ maze

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


# ------------------------------------------------------------------ minesweeper


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
