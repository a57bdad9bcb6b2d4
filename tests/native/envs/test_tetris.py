"""tetris beside a slow reference: pieces, kicks, lines, rewards, rounds of pieces."""

import numpy as np
import pytest
from native_games import make

PIECES = {
    "I": ("....", "XXXX", "....", "...."),
    "O": (".XX.", ".XX.", "....", "...."),
    "T": (".X.", "XXX", "..."),
    "S": (".XX", "XX.", "..."),
    "Z": ("XX.", ".XX", "..."),
    "J": ("X..", "XXX", "..."),
    "L": ("..X", "XXX", "..."),
}


def cells_of(kind, turn):
    shape = np.array([[c == "X" for c in row] for row in PIECES["IOTSZJL"[kind]]])
    if kind != 1:
        shape = np.rot90(shape, -turn)
    return [(x, y) for y, x in np.argwhere(shape)]


class SlowTetris:
    def __init__(self, width, height, gravity, kinds, penalty=1.0):
        self.width, self.height, self.gravity, self.penalty = width, height, gravity, penalty
        self.board = [[0] * width for _ in range(height)]
        self.lines = self.pieces = 0
        self.lost = False
        self.spawn(*kinds)

    def spawn(self, kind, following):
        self.kind, self.next, self.turn = kind, following, 0
        self.x, self.y, self.age = (self.width - 4) // 2, 0, 0

    def cells(self, x, y, turn):
        return [(x + i, y + j) for i, j in cells_of(self.kind, turn)]

    def fits(self, x, y, turn):
        inside = ((0 <= i < self.width and 0 <= j < self.height) for i, j in self.cells(x, y, turn))
        return all(inside) and not any(self.board[j][i] for i, j in self.cells(x, y, turn))

    def step(self, action, following):
        """The reward; `following` is the piece after the next one, should it be needed."""
        if action in (1, 2):
            x = self.x + (1 if action == 2 else -1)
            self.x = x if self.fits(x, self.y, self.turn) else self.x
        if action == 3:
            for kick in (0, -1, 1, -2, 2)[: 5 if self.kind == 0 else 3]:
                if self.fits(self.x + kick, self.y, (self.turn + 1) % 4):
                    self.x, self.turn = self.x + kick, (self.turn + 1) % 4
                    break
        while action == 5 and self.fits(self.x, self.y + 1, self.turn):
            self.y += 1
        self.age += 1
        if self.age < self.gravity and action not in (4, 5):
            return 0.0
        self.age = 0
        if self.fits(self.x, self.y + 1, self.turn):
            self.y += 1
            return 0.0
        return self.lock(following)

    def lock(self, following):
        for i, j in self.cells(self.x, self.y, self.turn):
            self.board[j][i] = 1
        kept = [row for row in self.board if not all(row)]
        cleared = self.height - len(kept)
        self.board = [[0] * self.width for _ in range(cleared)] + kept
        self.lines, self.pieces = self.lines + cleared, self.pieces + 1
        self.spawn(self.next, following)
        self.lost = not self.fits(self.x, self.y, 0)
        return (0.0, 1.0, 3.0, 5.0, 8.0)[cleared] - self.penalty * self.lost

    def observation(self):
        board = np.array(self.board)
        for i, j in self.cells(self.x, self.y, self.turn):
            board[j, i] = 2
        soon = self.age + 1 >= self.gravity
        return [*board.ravel(), *np.eye(7)[self.kind], *np.eye(7)[self.next], soon]


def kinds_of(obs):
    return int(obs[-15:-8].argmax()), int(obs[-8:-1].argmax())


@pytest.mark.parametrize(
    ("width", "height", "gravity", "drops"),
    [
        (10, 20, 4, 0.1),
        (4, 9, 2, 0.1),
        (4, 4, 3, 0.1),
        (5, 4, 2, 0.1),
        (16, 32, 1, 0.1),
        (5, 8, 30, 0.02),
        (4, 32, 9, 0.3),
    ],
)
def test_tetris_plays_as_a_slow_reference(width, height, gravity, drops):
    vec = make("tetris", width=width, height=height, gravity=gravity, loss_penalty=0.5)
    obs, _ = vec.reset(seed=width)
    slow = SlowTetris(width, height, gravity, kinds_of(obs[0]), 0.5)
    rng, games = np.random.default_rng(height), 0
    likely = [0.1, 0.25, 0.25, 0.3 - drops, 0.1, drops]
    for _ in range(2500):
        assert obs[0].tolist() == slow.observation()
        action = int(rng.choice(6, p=likely))
        obs, rewards, ends, cuts, infos = vec.step(np.array([action]))
        assert rewards[0] == slow.step(action, kinds_of(obs[0])[1])
        assert ends[0] == slow.lost
        assert not cuts[0]
        if slow.lost:
            assert infos[0][0]["lines"] == slow.lines
            assert infos[0][0]["pieces"] == slow.pieces
            slow, games = SlowTetris(width, height, gravity, kinds_of(obs[0]), 0.5), games + 1
    assert games >= 1


# How the state begins in tetris.h: base, rows, piece, numbers, bag, cells.
STATE = np.dtype("32u1, 36u4, i4, 9i4, 7u1, 512u1")


@pytest.mark.parametrize(("goal", "reward"), [(1, 1), (2, 3), (3, 5), (4, 8)])
def test_tetris_rewards_lines_that_go_at_once(goal, reward):
    vec = make("tetris", gravity=1000)
    obs, _ = vec.reset(seed=goal)
    slow = SlowTetris(10, 20, 1000, (0, kinds_of(obs[0])[1]))
    # The lowest rows but for their first column, and a gap in one if there shall be fewer lines.
    for row in range(16, 20):
        slow.board[row] = [0] + [1] * 9
        slow.board[row][5] = int(row - 16 < goal)
    state = vec.state()
    view = state[0, : STATE.itemsize].view(STATE)
    view["f2"] = 0
    view["f5"][0, :200] = np.ravel(slow.board)
    view["f1"][0, :20] |= np.array(
        [sum(cell << (4 + x) for x, cell in enumerate(row)) for row in slow.board], np.uint32
    )
    vec.set_state(state)
    rewards = []
    for action in [3, 1, 1, 1, 1, 1, 1, 5]:
        obs, given, ends, _, _ = vec.step(np.array([action]))
        rewards.append(float(given[0]))
        assert rewards[-1] == slow.step(action, kinds_of(obs[0])[1])
        assert obs[0].tolist() == slow.observation()
    assert rewards == [0] * 7 + [reward]
    assert not ends[0]


def test_tetris_pieces_come_in_rounds_of_all_seven():
    vec = make("tetris", height=32, width=16)
    firsts = set()
    for seed in range(12):
        obs, _ = vec.reset(seed=seed)
        kinds = list(kinds_of(obs[0]))
        while len(kinds) < 14:
            for _ in range(len(kinds) % 4 * 3):
                vec.step(np.array([1 + len(kinds) % 2]))
            kinds.append(kinds_of(vec.step(np.array([5]))[0][0])[1])
        assert sorted(kinds[:7]) == sorted(kinds[7:]) == list(range(7))
        firsts.add(tuple(kinds[:7]))
    assert len(firsts) == 12


def test_tetris_is_cut_off_with_its_pieces_logged():
    vec = make("tetris", max_steps=3)
    vec.reset(seed=1)
    for step in range(1, 4):
        _, _, ends, cuts, infos = vec.step(np.array([5]))
        assert not ends[0]
        assert cuts[0] == (step == 3)
    assert infos[0][0]["pieces"] == 3
