import math

import numpy as np
import pytest

import fugu


def make(name, count=1, **settings):
    return fugu.make(name, count, backend="native", num_workers=1, env_kwargs=settings)


def follow(position, target, slack=0.03):
    """Of the actions stay, back and forth, those that lead to the targets."""
    return np.where(target < position - slack, 1, np.where(target > position + slack, 2, 0))


# ------------------------------------------------------------------ breakout

POINTS = np.repeat([7, 7, 4, 4, 1, 1], 18)


def test_breakout_rewards_the_bricks_that_went_and_logs_their_sum():
    vec = make("breakout", 8)
    obs, _ = vec.reset(seed=1)
    total, seen = np.zeros(8), 0
    for _ in range(600):
        before = obs.copy()
        obs, rewards, ends, cuts, infos = vec.step(follow(obs[:, 0], obs[:, 1]))
        assert not cuts.any()
        total += rewards
        for i in range(8):
            if ends[i]:
                assert infos[i][0]["score"] == infos[i][0]["episode_return"] == total[i]
                total[i] = 0
            else:
                gone = before[i, 10:] - obs[i, 10:]
                assert gone.min() >= 0
                assert rewards[i] == gone @ POINTS
                assert obs[i, 8] == pytest.approx(obs[i, 10:].mean())
                seen += int(gone.sum())
    assert seen > 100


def test_breakout_ends_with_864_points_when_both_walls_are_gone():
    vec = make("breakout", 4, paddle_width=15, lives=100, frame_skip=8)
    obs, _ = vec.reset(seed=3)
    rng, scores, walls = np.random.default_rng(0), [], set()
    for _ in range(6000):
        # A ball off the middle of the paddle, so that it goes everywhere.
        aim = obs[:, 1] + rng.uniform(-0.6, 0.6, 4)
        obs, _, ends, _, infos = vec.step(follow(obs[:, 0], aim))
        walls |= set(obs[:, 9])
        scores += [infos[i][0]["score"] for i in np.flatnonzero(ends)]
        if len(scores) >= 3:
            break
    assert scores[:3] == [864, 864, 864]
    assert walls == {0, 1}


def test_breakout_ends_when_all_lives_are_used_up():
    for lives in (1, 3):
        vec = make("breakout", lives=lives, paddle_width=0.5)
        obs, _ = vec.reset(seed=1)
        left = [round(obs[0, 7] * lives)]
        for _ in range(2000):
            obs, _, ends, cuts, _ = vec.step(np.array([1]))  # waits in the left corner
            if ends[0]:
                break
            if round(obs[0, 7] * lives) != left[-1]:
                left.append(round(obs[0, 7] * lives))
        assert ends[0]
        assert not cuts[0]
        assert left == list(range(lives, 0, -1))


def test_breakout_frame_skip_is_as_many_moments():
    single, skipping = make("breakout", frame_skip=1), make("breakout", frame_skip=4)
    single.reset(seed=5)
    skipping.reset(seed=5)
    for i in range(150):
        action = np.array([i // 3 % 3])
        total = 0.0
        for _ in range(4):
            seen, points, _, _, _ = single.step(action)
            total += points[0]
        obs, reward, ends, _, _ = skipping.step(action)
        if ends[0]:
            break
        assert reward[0] == total
        np.testing.assert_array_equal(obs, seen)
    assert i > 50


def test_breakout_paddle_turns_and_speeds_up_the_ball():
    vec = make("breakout", frame_skip=1, acceleration=1.1, ball_speed=0.1, top_speed=0.2)
    obs, _ = vec.reset(seed=2)
    speeds = [obs[0, 6]]
    for _ in range(3000):
        before = obs.copy()
        obs, _, ends, _, _ = vec.step(follow(obs[:, 0], obs[:, 1] + 0.05))
        if before[0, 5] > 0 > obs[0, 5] and obs[0, 2] > 0.5:
            offset = obs[0, 3] * 9 / (1 + 0.2)
            assert obs[0, 4] / obs[0, 6] == pytest.approx(math.sin(math.pi / 3 * offset), abs=1e-4)
            speeds.append(obs[0, 6])
        assert math.hypot(obs[0, 4], obs[0, 5]) == pytest.approx(obs[0, 6], abs=1e-4)
        assert not ends[0]
    expected = [min(0.5 * 1.1**i, 1.0) for i in range(len(speeds))]
    assert speeds == pytest.approx(expected, abs=1e-4)
    assert speeds[-1] == 1.0


def test_breakout_is_cut_off_with_its_score_logged():
    vec = make("breakout", max_steps=50)
    vec.reset(seed=1)
    for step in range(1, 51):
        _, _, ends, cuts, infos = vec.step(np.array([0]))
        assert not ends[0]
        assert cuts[0] == (step == 50)
    assert infos[0][0]["score"] == infos[0][0]["episode_return"]


# ------------------------------------------------------------------ pong


def predict_pong(obs, actions, height=2.0, paddle=0.25, top=0.6, acceleration=1.04):
    """The right player's next observation while nobody scores, or None; in double precision."""
    right, left, x, y, vx, vy = obs[:6] * [5, 5, 8, 5, top, top]
    push = {0: 0.0, 1: -paddle, 2: paddle}
    limit = 5 - height / 2
    right = np.clip(right + push[actions[0]], -limit, limit)
    left = np.clip(left + push[actions[1]], -limit, limit)
    before, x, y = x, x + vx, y + vy
    if abs(y) > 4.82:
        y, vy = math.copysign(9.64, y) - y, -vy
    if abs(before) <= 7.22 < abs(x):
        own, reach = right if x > 0 else left, height / 2 + 0.18
        if abs(abs(y - own) - reach) < 1e-4 or abs(abs(x) - 7.22) < 1e-4:
            return None  # too close for rounding to tell
        if abs(y - own) < reach:
            speed, angle = (
                min(math.hypot(vx, vy) * acceleration, top),
                (y - own) / reach * math.pi / 3,
            )
            vx, vy = -math.copysign(speed * math.cos(angle), x), speed * math.sin(angle)
            x = math.copysign(7.22, x)
    return None if abs(x) > 8.17 else np.array([right, left, x, y, vx, vy]) / [5, 5, 8, 5, top, top]


def test_pong_moves_as_a_slow_reference_and_both_players_see_mirrored_fields():
    vec = make("pong", 16, opponent=1)
    obs, _ = vec.reset(seed=4)
    rng, hits, predicted = np.random.default_rng(1), 0, 0
    for _ in range(400):
        before = obs.copy()
        actions = follow(obs[:, 0], obs[:, 3] + rng.uniform(-0.25, 0.25, 32))
        obs, rewards, ends, _, _ = vec.step(actions)
        assert np.array_equal(rewards[::2], -rewards[1::2])
        np.testing.assert_array_equal(
            obs[::2], obs[1::2][:, [1, 0, 2, 3, 4, 5, 7, 6]] * [1, 1, -1, 1, -1, 1, 1, 1]
        )
        for i in np.flatnonzero((rewards[::2] == 0) & ~ends[::2]) * 2:
            expected = predict_pong(before[i].astype(float), actions[i : i + 2])
            if expected is not None:
                np.testing.assert_allclose(obs[i, :6], expected, atol=2e-5)
                predicted += 1
                hits += before[i, 4] * obs[i, 4] < 0
    assert hits > 50
    assert predicted > 5000


@pytest.mark.parametrize("opponent", [0, 1])
def test_pong_counts_points_until_somebody_wins(opponent):
    vec = make("pong", opponent=opponent, points=3)
    obs, _ = vec.reset(seed=1)
    score, games = [0, 0], 0
    for _ in range(4000):
        actions = follow(obs[:, 0], obs[:, 3])
        actions[0] = 1  # the first one hides in a corner
        obs, rewards, ends, cuts, infos = vec.step(actions)
        assert set(rewards) <= {-1.0, 0.0, 1.0}
        score[0] += rewards[0] > 0
        score[1] += rewards[0] < 0
        assert ends.all() == (max(score) == 3)
        assert not cuts.any()
        if ends.all():
            assert infos[0][0]["score"] == score[0] - score[1]
            score, games = [0, 0], games + 1
        assert obs[0, 6:] == pytest.approx(np.array(score) / 3)
    assert games > 3


def test_pong_script_is_beaten_by_the_edge_of_a_paddle_unless_it_is_fast():
    for speed, wins in ((0.14, True), (2.0, False)):
        vec = make("pong", 4, opponent_speed=speed, max_steps=4000)
        obs, _ = vec.reset(seed=7)
        scores = []
        for _ in range(4000):
            aim = obs[:, 3] + 0.16 * np.where(obs[:, 1] > 0, 1, -1)  # away from the other
            obs, _, _, _, infos = vec.step(follow(obs[:, 0], aim))
            scores += [info[0]["score"] for info in infos.values()]
        assert len(scores) >= 4
        assert (np.mean(scores) > 8) if wins else (max(scores) <= 0)


# ------------------------------------------------------------------ snake

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


# ------------------------------------------------------------------ tetris

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
