"""connect4 beside a slow reference: turns, wins, draws, full columns, and the opponents."""

import numpy as np
import pytest
from native_games import pick, play, start

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
