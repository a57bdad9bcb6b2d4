"""Rules of the environments in which several agents act together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fugu

MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], float)
STAY, FORWARD, LEFT, RIGHT, LOAD = range(5)
AHEAD = [(0, -1), (1, 0), (0, 1), (-1, 0)]
GAP = 1e-4  # positions are float32 here and float64 there, and contacts are stiff


def make(name: str, num_envs: int = 1, **settings: Any) -> fugu.Vector:
    return fugu.make(name, num_envs, backend="native", num_workers=1, env_kwargs=settings)


def put(world: Any, body: int, position: NDArray[Any]) -> None:
    """Puts an agent or landmark of mpe2 somewhere."""
    world.entities[body].state.p_pos = np.array(position, float)


def steer(aim: NDArray[Any], rest: float = 0.03) -> NDArray[Any]:
    """The moves that lead along `aim`, the longer axis first."""
    across = np.abs(aim[:, 0]) > np.abs(aim[:, 1])
    moves = np.where(across, 1 + (aim[:, 0] > 0), 3 + (aim[:, 1] > 0))
    return np.where(np.abs(aim).max(1) < rest, 0, moves)[:, None]


# ------------------------------------------------------------------ simple_spread


@pytest.mark.parametrize(("agents", "ratio"), [(1, 0.5), (3, 0.5), (8, 0.2)])
def test_spread_equals_mpe2_step_by_step(agents: int, ratio: float) -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    random, contacts = np.random.default_rng(agents), 0.0
    ours = make("simple_spread", agents=agents, local_ratio=ratio, max_steps=26)
    theirs = spread.parallel_env(N=agents, local_ratio=ratio, max_cycles=25)
    for seed in range(8):
        seen, _ = ours.reset(seed=seed)
        theirs.reset(seed=seed)
        for i in range(agents):
            put(theirs.unwrapped.world, i, seen[i, 2:4])
            put(theirs.unwrapped.world, agents + i, seen[0, 2:4] + seen[0, 4 + 2 * i : 6 + 2 * i])
        for _ in range(25):
            actions = random.integers(0, 5, agents)
            seen, rewards, *_ = ours.step(actions[:, None])
            expected, their_rewards, *_ = theirs.step(
                {f"agent_{i}": int(action) for i, action in enumerate(actions)}
            )
            np.testing.assert_allclose(seen, np.stack(list(expected.values())), atol=GAP)
            np.testing.assert_allclose(rewards, list(their_rewards.values()), atol=GAP * agents)
            contacts += np.ptp(rewards) > ratio / 2
    assert contacts > 0 or agents == 1


def summed_spread(
    places: NDArray[Any], speeds: NDArray[Any], landmarks: NDArray[Any], actions: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], float, int]:
    """A step of the on-policy repository's code: places, speeds, reward, pairs that touch."""
    between = places[:, None] - places[None]
    apart = np.linalg.norm(between, axis=-1) + np.eye(len(places)) * 1e9
    push = 100 * between / apart[..., None] * np.logaddexp(0, (0.3 - apart[..., None]) / 1e-3) / 1e3
    speeds = speeds * 0.75 + (5 * MOVES[actions] + push.sum(1)) * 0.1
    places = places + speeds * 0.1
    nearest = np.linalg.norm(places[:, None] - landmarks[None], axis=-1).min(0).sum()
    touching = np.linalg.norm(places[:, None] - places[None], axis=-1) < 0.3  # oneself as well
    rewards = [-nearest - touching[i].sum() for i in range(len(places))]
    return places, speeds, float(sum(rewards)), int(touching.sum() - len(places)) // 2


def test_spread_summed_equals_a_plain_reference_and_its_logs() -> None:
    agents, random = 5, np.random.default_rng(3)
    ours = make("simple_spread", agents=agents, convention=1)
    bumps = 0
    for seed in range(6):
        seen, _ = ours.reset(seed=seed)
        places, speeds = seen[:, 2:4].astype(float), np.zeros((agents, 2))
        landmarks = places[0] + seen[0, 4 : 4 + 2 * agents].reshape(-1, 2)
        assert np.abs(landmarks).max() <= 0.8 + 1e-6
        total, collisions = 0.0, 0
        for step in range(25):
            actions = random.integers(0, 5, agents)
            places, speeds, reward, pairs = summed_spread(places, speeds, landmarks, actions)
            collisions += pairs
            total += reward
            seen, rewards, terminated, truncated, infos = ours.step(actions[:, None])
            np.testing.assert_allclose(rewards, [reward] * agents, atol=GAP * 10)
            assert truncated.all() == (step == 24)
            assert not terminated.any()
        (info,) = infos[0]
        distances = np.linalg.norm(places[:, None] - landmarks[None], axis=-1).min(0)
        assert info["collisions"] == collisions
        assert info["covered"] == (distances < 0.1).sum()
        assert info["distance"] == pytest.approx(distances.sum(), abs=GAP)
        assert info["episode_return"] == pytest.approx(total, abs=GAP * 100)
        bumps += collisions
    assert bumps > 0


@pytest.mark.parametrize(("convention", "low", "high"), [(0, -27.5, -25.3), (1, -224, -213)])
def test_spread_at_random_returns_what_is_published(
    convention: int, low: float, high: float
) -> None:
    random, envs = np.random.default_rng(0), 2000
    ours = make("simple_spread", envs, convention=convention)
    ours.reset(seed=1)
    total = np.zeros(envs * 3)
    for _ in range(25):
        total += ours.step(random.integers(0, 5, (envs * 3, 1)))[1]
    assert low < total.mean() < high  # of one agent: the sum over agents is counted once


def test_spread_is_solved_by_agents_that_each_take_a_landmark() -> None:
    ours = make("simple_spread", 50)
    seen, _ = ours.reset(seed=2)
    for _ in range(25):
        own = np.arange(150) % 3
        aim = np.stack([seen[i, 4 + 2 * own[i] : 6 + 2 * own[i]] for i in range(150)])
        seen, *_, infos = ours.step(steer(aim - 0.35 * seen[:, :2]))  # brake in time
    assert np.mean([info["covered"] for (info,) in infos.values()]) > 2.0


# ------------------------------------------------------------------ speaker_listener


def test_speaker_and_listener_equal_mpe2_step_by_step() -> None:
    module = pytest.importorskip("mpe2.simple_speaker_listener_v4")
    random, goals = np.random.default_rng(1), set()
    ours = make("speaker_listener", max_steps=26)
    summed = make("speaker_listener", max_steps=26, convention=1)
    theirs = module.parallel_env(max_cycles=25)
    for seed in range(12):
        (colour, heard), _ = ours.reset(seed=seed)
        before = summed.reset(seed=seed)[0][1][0].copy()
        theirs.reset(seed=seed)
        world, goal = theirs.unwrapped.world, int(colour[0].argmax())
        goals.add(goal)
        place = np.array([0.3, -0.2])  # nobody observes where the listener is
        put(world, 1, place)
        for i in range(3):
            put(world, 2 + i, place + heard[0, 2 + 2 * i : 4 + 2 * i])
        world.agents[0].goal_b = world.landmarks[goal]
        for _ in range(25):
            word, move = int(random.integers(3)), int(random.integers(5))
            actions = (np.array([[word]]), np.array([[move]]))
            (colour, heard), rewards, *_ = ours.step(actions)
            expected, their_rewards, *_ = theirs.step({"speaker_0": word, "listener_0": move})
            np.testing.assert_allclose(colour[0], expected["speaker_0"], atol=1e-6)
            np.testing.assert_allclose(heard[0], expected["listener_0"], atol=1e-5)
            np.testing.assert_allclose(
                np.ravel(rewards), list(their_rewards.values()), atol=1e-5, rtol=1e-5
            )
            (_, heard), rewards, *_ = summed.step(actions)
            aim = heard[0, 2 + 2 * goal : 4 + 2 * goal]
            np.testing.assert_allclose(np.ravel(rewards), [-2 * aim @ aim] * 2, rtol=1e-4)
            np.testing.assert_allclose(heard[0, :2], expected["listener_0"][:2], atol=1e-5)
            np.testing.assert_allclose((before - heard[0])[2:4], 0.1 * heard[0, :2], atol=1e-5)
            before = heard[0].copy()
    assert goals == {0, 1, 2}


def test_a_listener_that_is_told_the_goal_reaches_it() -> None:
    ours = make("speaker_listener", 40)
    (colour, heard), _ = ours.reset(seed=5)
    assert not heard[:, 8:].any()  # nothing was said yet
    for _ in range(25):
        word = colour.argmax(1)
        goal = heard[:, 8:].argmax(1)
        aim = np.stack([heard[i, 2 + 2 * g : 4 + 2 * g] for i, g in enumerate(goal)])
        actions = word[:, None], steer(aim - 0.35 * heard[:, :2])
        (colour, heard), *_, infos = ours.step(actions)
    told = [info for (info,) in infos.values()]
    assert np.mean([info["reached"] for info in told]) > 0.8
    assert np.mean([info["distance"] for info in told]) < 0.15


# ------------------------------------------------------------------ predator_prey


@pytest.mark.parametrize(("predators", "prey", "obstacles"), [(3, 1, 2), (2, 2, 0), (6, 3, 4)])
def test_bodies_move_as_in_simple_tag(predators: int, prey: int, obstacles: int) -> None:
    tag = pytest.importorskip("mpe2.simple_tag_v3")
    random, compared, bodies = np.random.default_rng(0), 0, predators + prey
    settings = {"predators": predators, "prey": prey, "obstacles": obstacles}
    ours = make("predator_prey", scripted_prey=0, shaping=0, **settings)
    theirs = tag.parallel_env(
        num_adversaries=predators, num_good=prey, num_obstacles=obstacles, max_cycles=200
    )
    for seed in range(12):
        groups, _ = ours.reset(seed=seed)
        theirs.reset(seed=seed)
        world = theirs.unwrapped.world
        for i, row in enumerate([*groups[0], *groups[1]]):
            put(world, i, row[2:4])
        first = groups[0][0]
        for i in range(obstacles):
            put(world, bodies + i, first[2:4] + first[4 + 2 * i : 6 + 2 * i])
        for _ in range(60):
            actions = random.integers(0, 5, (bodies, 1))
            groups, rewards, *_ = ours.step((actions[:predators], actions[predators:]))
            names = [agent.name for agent in world.agents]
            expected, their_rewards, *_ = theirs.step(
                {name: int(action[0]) for name, action in zip(names, actions, strict=True)}
            )
            rows = [*groups[0], *groups[1]]
            if rewards[0].max() > 0 or max(np.abs(row[2:4]).max() for row in rows) > 1.19:
                break  # a catch, or the fence
            for row, name in zip(rows, names, strict=True):
                np.testing.assert_allclose(row, expected[name], atol=GAP * 10)
            np.testing.assert_allclose(
                rewards[1], [their_rewards[name] for name in names[predators:]], atol=GAP * 100
            )
            compared += 1
    assert compared > 40


def test_a_catch_pays_all_predators_and_costs_the_prey() -> None:
    random = np.random.default_rng(2)
    ours = make("predator_prey", 16, predators=4, prey=2, scripted_prey=0, shaping=0.25)
    groups, _ = ours.reset(seed=4)
    caught = np.zeros(16)
    for step in range(100):
        actions = random.integers(0, 5, (64, 1)), random.integers(0, 5, (32, 1))
        groups, (hunt, flight), terminated, truncated, infos = ours.step(actions)
        losses = (flight.reshape(16, 2) <= -10).sum(1)
        caught += losses
        # Without a catch, a predator pays for the distance of its nearest prey alone.
        prey = groups[0][:, 4 + 2 * 2 + 2 * 3 : 4 + 2 * 2 + 2 * 3 + 4].reshape(-1, 2, 2)
        nearest = np.linalg.norm(prey, axis=-1).min(1)
        quiet = np.repeat(losses == 0, 4)
        if step < 99:
            np.testing.assert_allclose(hunt[quiet], -0.25 * nearest[quiet], atol=1e-5)
        shared = (hunt.reshape(16, 4) > 10 * losses[:, None] - 0.25 * 3.4).all(1)
        assert shared.all()
        assert (hunt.reshape(16, 4) <= 10 * losses[:, None]).all()
        assert truncated[0].all() == truncated[1].all() == (step == 99)
        assert not terminated[0].any()
        for rows in groups:
            assert np.abs(rows[:, 2:4]).max() <= np.float32(1.2)
    assert caught.sum() > 10
    assert [info["catches"] for (info,) in infos.values()] == caught.tolist()


def test_scripted_prey_flees_and_hunting_beats_chance() -> None:
    random, catches = np.random.default_rng(7), {}
    for hunt in (False, True):
        ours = make("predator_prey", 64)
        assert [group.name for group in ours.groups] == ["predator"]
        seen, _ = ours.reset(seed=1)
        for _ in range(100):
            chase, chance = steer(seen[:, 12:14]), random.integers(0, 5, (len(seen), 1))
            seen, *_, infos = ours.step(chase if hunt else chance)
        catches[hunt] = np.mean([info["catches"] for (info,) in infos.values()])
    assert catches[True] > 2 * catches[False]
    slow = make("predator_prey", 64, prey_speed=0.1)
    seen, _ = slow.reset(seed=1)
    far = np.linalg.norm(seen[:, 12:14], axis=1)
    for _ in range(10):
        seen, *_ = slow.step(np.zeros((192, 1), int))
    assert np.linalg.norm(seen[:, 14 : 14 + 2], axis=1).max() < 0.11  # its speed is a setting
    assert np.linalg.norm(seen[:, 12:14], axis=1).mean() > far.mean()  # and it goes away


# ------------------------------------------------------------------ warehouse


class Floor:
    """A slow warehouse: all but the requests, which only the reward depends on."""

    def __init__(self, rows: list[Any], columns: int, blocks: int, height: int) -> None:
        self.width, self.height = 3 * columns + 1, (height + 1) * blocks + 2
        cells = [(x, y) for x in range(self.width) for y in range(self.height)]
        last = self.height - 1
        self.spots = {(x, y) for x, y in cells if x % 3 and y % (height + 1) and y != last}
        self.goals = {(self.width // 2 - 1, last), (self.width // 2, last)}
        self.shelves, self.loaded, self.steps = set(self.spots), [False] * len(rows), 0
        self.places = [tuple(int(v) for v in row["position"]) for row in rows]
        self.headings = [int(row["self"][:4].argmax()) for row in rows]

    def step(self, actions: list[int]) -> None:
        self.steps += 1
        count, asks = len(actions), {}
        for k in range(count):
            i = (self.steps + k) % count  # who is first in turn
            (x, y), (dx, dy) = self.places[i], AHEAD[self.headings[i]]
            there = (x + dx, y + dy)
            inside = 0 <= there[0] < self.width and 0 <= there[1] < self.height
            blocked = self.loaded[i] and there in self.shelves
            if actions[i] == FORWARD and inside and not blocked and there not in asks.values():
                asks[i] = there
        while True:
            standing = {self.places[i] for i in range(count) if i not in asks}
            where = {self.places[i]: i for i in asks}
            stuck = [i for i, there in asks.items() if there in standing]
            stuck += [i for i in asks if asks.get(where.get(asks[i], -1)) == self.places[i]]
            if not stuck:
                break
            for i in set(stuck):
                del asks[i]
        for i, action in enumerate(actions):
            self.places[i] = asks.get(i, self.places[i])
            self.headings[i] = (self.headings[i] + {LEFT: 3, RIGHT: 1}.get(action, 0)) % 4
            if action == LOAD and not self.loaded[i] and self.places[i] in self.shelves:
                self.shelves.remove(self.places[i])
                self.loaded[i] = True
            elif action == LOAD and self.loaded[i] and self.places[i] in self.spots - self.shelves:
                self.shelves.add(self.places[i])
                self.loaded[i] = False

    def window(self, robot: int, sight: int) -> NDArray[Any]:
        """What it sees, but for requests."""
        (x, y), turn = self.places[robot], self.headings[robot]
        (ax, ay), (rx, ry) = AHEAD[turn], AHEAD[(turn + 1) % 4]
        side = 2 * sight + 1
        out = np.zeros((side, side, 9), np.uint8)
        for row in range(side):
            for column in range(side):
                up, right = sight - row, column - sight
                at = (x + up * ax + right * rx, y + up * ay + right * ry)
                inside = 0 <= at[0] < self.width and 0 <= at[1] < self.height
                out[row, column, :4] = [
                    not inside,
                    at in self.spots,
                    at in self.goals,
                    at in self.shelves,
                ]
                for other, place in enumerate(self.places):
                    if other != robot and place == at:
                        out[row, column, 5 + (self.headings[other] - turn) % 4] = 1
        return out


def views(ours: fugu.Vector, seen: NDArray[Any]) -> list[Any]:
    return [ours.groups[0].observation_layout.unpack(row) for row in seen]


@pytest.mark.parametrize(
    ("robots", "columns", "rows", "height", "sight"),
    [(8, 1, 1, 1, 2), (3, 2, 1, 2, 1), (5, 3, 2, 2, 2)],
)
def test_robots_move_and_carry_as_in_a_plain_reference(
    robots: int, columns: int, rows: int, height: int, sight: int
) -> None:
    random, moves, delivered = np.random.default_rng(robots), 0, 0.0
    ours = make(
        "warehouse", robots=robots, columns=columns, rows=rows, block_height=height,
        sight=sight, max_steps=400, requests=1 + (height > 1),
    )  # fmt: skip
    seen = views(ours, ours.reset(seed=3)[0])
    floor = Floor(seen, columns, rows, height)
    for _ in range(399):
        actions = random.choice(5, robots, p=[0.02, 0.58, 0.12, 0.12, 0.16])
        before, wanted = list(floor.places), [bool(row["self"][5]) for row in seen]
        raw, rewards, *_ = ours.step(actions[:, None])
        seen = views(ours, raw)
        floor.step(actions.tolist())
        moves += sum(a != b for a, b in zip(before, floor.places, strict=True))
        assert [tuple(row["position"]) for row in seen] == floor.places
        assert [row["self"][:4].argmax() for row in seen] == floor.headings
        assert [bool(row["self"][4]) for row in seen] == floor.loaded
        for i, row in enumerate(seen):
            expected = floor.window(i, sight)
            expected[..., 4] = row["window"][..., 4]
            np.testing.assert_array_equal(row["window"], expected)
            if wanted[i] and floor.places[i] in floor.goals:
                assert rewards[i] == 1
            elif rewards[i]:  # requested in this very step, because another robot delivered
                assert floor.loaded[i]
                assert floor.places[i] in floor.goals
                assert rewards.sum() > 1
        delivered += rewards.sum()
    assert moves > 100
    assert delivered > 0 or columns > 1


def test_robots_never_share_or_swap_cells_and_turns_are_fair() -> None:
    random = np.random.default_rng(0)
    ours = make("warehouse", 20, robots=8, columns=1, block_height=1, compass=0)
    position = slice(81, 83)
    before = ours.reset(seed=9)[0].reshape(20, 8, -1)[..., position].astype(int)
    cells = before[..., 0] * 100 + before[..., 1]
    gained = np.zeros(8)
    for _ in range(499):  # 20 times: about 10,000 steps
        raw, *_ = ours.step(random.choice(5, (160, 1), p=[0.1, 0.5, 0.15, 0.15, 0.1]))
        after = raw.reshape(20, 8, -1)[..., position].astype(int)
        assert not raw.reshape(20, 8, -1)[..., 89:].any()  # no compass
        now = after[..., 0] * 100 + after[..., 1]
        assert all(len(set(row)) == 8 for row in now.tolist())
        swapped = (now[:, :, None] == cells[:, None]) & (cells[:, :, None] == now[:, None])
        assert not (swapped & ~np.eye(8, dtype=bool)).any()
        gained += (now != cells).sum(0)
        cells = now
    assert gained.min() > 0.85 * gained.max()


def drive(ours: fugu.Vector, row: Any, to: tuple[int, int]) -> tuple[Any, float]:
    """Drives the only robot along columns, then rows; what it sees then, and what it earned."""
    earned = 0.0
    while (place := tuple(int(v) for v in row["position"])) != to:
        down = place[0] == to[0]
        aim = (2 if to[1] > place[1] else 0) if down else (1 if to[0] > place[0] else 3)
        action = FORWARD if row["self"][aim] else RIGHT
        raw, rewards, *_ = ours.step(np.array([[action]]))
        row, earned = views(ours, raw)[0], earned + rewards[0]
    return row, earned


def act(ours: fugu.Vector, action: int) -> tuple[Any, float, Any]:
    raw, rewards, *_, infos = ours.step(np.array([[action]]))
    return views(ours, raw)[0], rewards[0], infos


def test_a_scripted_delivery_earns_exactly_one_and_returns_its_shelf() -> None:
    for seed in range(6):
        ours = make("warehouse", robots=1, columns=1, block_height=1, requests=1, max_steps=80)
        row = views(ours, ours.reset(seed=seed)[0])[0]
        shelf = (1, 1)
        row, earned = drive(ours, row, shelf)
        if not row["window"][1, 1, 4]:  # the other one of the two is requested
            shelf = (2, 1)
            row, more = drive(ours, row, shelf)
            earned += more
        assert row["window"][1, 1, 4]
        row, reward, _ = act(ours, LOAD)
        assert row["self"][4:6].tolist() == [1, 1]
        assert earned + reward == 0
        row, earned = drive(ours, row, (shelf[0], 2))
        row, reward, _ = act(ours, LOAD)
        assert row["self"][4]  # not put down in an aisle
        row, earned = drive(ours, row, (shelf[0], 3))
        assert earned == 1
        assert row["self"][4:6].tolist() == [1, 0]  # now the other is requested
        for _ in range(5):
            row, reward, _ = act(ours, STAY)
            assert reward == 0
        row, earned = drive(ours, row, (shelf[0], 1))
        row, reward, _ = act(ours, LOAD)
        assert earned + reward == 0
        assert row["self"][4] == 0
        assert row["window"][1, 1, 3] == 1
        infos = {}
        while not infos:
            row, reward, infos = act(ours, STAY)
        assert infos[0][0]["deliveries"] == 1
        assert infos[0][0]["episode_return"] == 1
        assert infos[0][0]["episode_length"] == 80


def test_a_loaded_robot_does_not_enter_where_a_shelf_stands() -> None:
    ours = make("warehouse", robots=1, columns=1, block_height=1)
    row, _ = drive(ours, views(ours, ours.reset(seed=1)[0])[0], (1, 1))
    row, _, _ = act(ours, LOAD)
    while not row["self"][1]:
        row, _, _ = act(ours, RIGHT)
    row, _, _ = act(ours, FORWARD)
    assert row["position"].tolist() == [1, 1]
    row, _, _ = act(ours, LOAD)
    row, _, _ = act(ours, FORWARD)
    assert row["position"].tolist() == [2, 1]  # beneath a shelf, once it carries none


@pytest.mark.parametrize("shared", [0, 1])
def test_shared_rewards_and_the_compass(shared: int) -> None:
    ours = make("warehouse", 8, robots=2, columns=1, block_height=2, shared=shared)
    raw, _ = ours.reset(seed=1)
    random, total = np.random.default_rng(1), np.zeros(2)
    for _ in range(499):
        rows = views(ours, raw)
        actions = []
        for row in rows:
            ahead, right, behind, left = row["self"][6:]
            here = row["window"][1, 1]
            away = not (ahead or right or behind or left)
            useful = LOAD if away and (row["self"][4] or here[4]) else FORWARD if ahead else RIGHT
            actions.append(useful if random.random() < 0.7 else int(random.integers(4)))
            assert not (ahead and behind)
            assert not (left and right)
        raw, rewards, *_ = ours.step(np.array(actions)[:, None])
        pairs = rewards.reshape(8, 2)
        assert (pairs[:, 0] == pairs[:, 1]).all() or not shared
        total += pairs.sum(0)
    assert total.min() > 20  # who follows the compass delivers
