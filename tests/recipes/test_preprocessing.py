"""What recipes do to observations, beside the obvious slow way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from kitchen import write_rom
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.recipes.pixels import Shrink, SmallPictures
from fugu.envs.resolve import resolve

pytestmark = pytest.mark.filterwarnings("ignore")
Picture = NDArray[np.uint8]


class Slides(gymnasium.Env[Any, Any]):
    """The picture of step t is all t, in three colours that differ; step t earns t."""

    observation_space = spaces.Box(0, 255, (6, 8, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int, *, cut: bool = False) -> None:
        self.length, self.cut, self.t = length, cut, 0

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self._picture(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == self.length
        return self._picture(), self.t, over and not self.cut, over and self.cut, {"t": self.t}

    def _picture(self) -> Picture:
        return np.full((6, 8, 3), (self.t, 2 * self.t, 100), np.uint8)


def grey(t: int) -> int:
    return round(0.299 * t + 0.587 * 2 * t + 0.114 * 100)


@pytest.mark.parametrize("cut", [False, True])
def test_frames_are_skipped_summed_and_stacked(cut: bool) -> None:
    pytest.importorskip("cv2")
    env = SmallPictures(Slides(8, cut=cut), (3, 4), skip=3, stack=2, extra="atari")
    assert env.observation_space == spaces.Box(0, 255, (2, 3, 4), np.uint8)
    first, _ = env.reset()
    assert [np.unique(frame).tolist() for frame in first] == [[grey(0)], [grey(0)]]
    seen, reward, *ends, info = env.step(0)
    assert [frame.max() for frame in seen] == [grey(0), grey(3)]
    assert (reward, ends, info) == (1 + 2 + 3, [False, False], {"t": 3})
    env.step(0)
    seen, reward, *ends, info = env.step(0)  # which ends after two of three
    assert [frame.max() for frame in seen] == [grey(6), grey(8)]
    assert (reward, ends, info) == (7 + 8, [not cut, cut], {"t": 8})
    again, _ = env.reset()
    assert (again == first).all()
    assert (seen[1] == grey(8)).all(), "what was given before has changed"


def test_colours_stay_if_asked_for() -> None:
    pytest.importorskip("cv2")
    env = SmallPictures(Slides(8), (3, 4), stack=2, grey=False, extra="atari")
    seen, _ = env.reset()
    assert seen.shape == (2, 3, 4, 3)
    assert (seen == (0, 0, 100)).all()


def test_pictures_are_made_small_by_the_mean_of_areas() -> None:
    pytest.importorskip("cv2")
    picture = np.random.default_rng(0).integers(0, 256, (210, 160), np.uint8)
    small = Shrink(spaces.Box(0, 255, (210, 160), np.uint8), (84, 84), grey=True, extra="atari")
    mean = shares(210, 84) @ picture.astype(np.float64) @ shares(160, 84).T
    assert np.abs(small(picture) - mean).max() <= 0.5 + 1e-3, "not the nearest whole number"


def shares(pixels: int, wanted: int) -> NDArray[np.float64]:
    """How much of each of so many pixels stands in each of the wanted ones, `[wanted, pixels]`."""
    edges = np.arange(wanted + 1) * pixels / wanted
    pixel = np.arange(pixels)
    covered = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.maximum(covered, 0.0) * wanted / pixels


@pytest.mark.parametrize("wrong", [{"skip": 0}, {"stack": 0}, {"size": (0, 4)}])
def test_nothing_less_than_one(wrong: dict[str, Any]) -> None:
    pytest.importorskip("cv2")
    with pytest.raises(UsageError, match="allowed: 1 or more"):
        SmallPictures(Slides(8), **wrong, extra="atari")


def test_what_is_no_picture() -> None:
    with pytest.raises(UsageError, match="allowed: uint8"):
        SmallPictures(gymnasium.make("CartPole-v1"), extra="atari")


# ---------------------------------------------------------------------- Atari

GAMES = ("Breakout", "Pong", "MsPacman")  # with fire and lives, without lives, without fire
BACKENDS = ("serial", "batch")
PLAIN = {"noop_max": 0, "repeat_action_probability": 0.0}


@pytest.fixture
def _atari() -> None:
    pytest.importorskip("ale_py")


def slow_frames(
    game: str, actions: NDArray[np.int64]
) -> Iterator[tuple[Picture, float, int, bool]]:
    """Frame by frame: the picture of each step, what it earned, the lives left, the game's end."""
    import cv2

    env = gymnasium.make(
        f"ale_py:ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, obs_type="grayscale"
    )
    env.reset(seed=0)
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    if "FIRE" in meanings:
        env.step(meanings.index("FIRE"))
    last: list[Picture] = [np.zeros((210, 160), np.uint8)] * 2
    for action in actions:
        earned, over, frames = 0.0, False, list(last)
        for _ in range(4):
            screen, reward, over, *_ = env.step(int(action))
            earned += float(reward)
            if over:
                break
            frames = [*frames[1:], screen]
        last = frames
        both = np.maximum(*last)
        small = cv2.resize(both, (84, 84), interpolation=cv2.INTER_AREA)
        lives = env.unwrapped.ale.lives()  # type: ignore[attr-defined]
        yield small, earned, lives, over  # type: ignore[misc]
        if over:
            return


@pytest.mark.usefixtures("_atari")
@pytest.mark.parametrize("lives_count", [False, True])
@pytest.mark.parametrize("game", GAMES)
def test_an_atari_game_frame_by_frame(game: str, lives_count: bool) -> None:
    env = resolve(f"ALE/{game}-v5", **PLAIN, episodic_life=lives_count)()
    seen, _ = env.reset(seed=0)
    assert not seen[:3].any()
    actions = np.random.default_rng(0).integers(0, env.action_space.n, 600)
    stack, lives, score, ends = list(seen), env.ale.lives(), 0.0, 0
    for action, slow in zip(actions, slow_frames(game, actions), strict=False):
        frame, earned, left, over = slow
        stack = [*stack[1:], frame]
        score += earned
        seen, reward, terminated, truncated, info = env.step(action)
        assert (seen[:3] == stack[:3]).all()
        if not over:  # a game that ends within a step shows what stood there before
            assert (seen[3] == frame).all()
        lost = left < lives
        assert (reward, truncated) == (earned, False)
        assert terminated == (over or (lives_count and lost))
        assert info == ({"score": score} if over else {})
        if terminated and not over:
            ends += 1
            again, _ = env.reset()
            assert (again == seen).all(), "the game does not go on where it was"
        lives = left
    assert ends or not lives_count or game != "Breakout"


@pytest.mark.usefixtures("_atari")
@pytest.mark.parametrize("lives_count", [False, True])
@pytest.mark.parametrize("game", GAMES)
def test_ale_itself_steps_many_games_alike(game: str, lives_count: bool) -> None:
    import fugu

    kwargs = {**PLAIN, "episodic_life": lives_count}
    vectors = [fugu.make(f"ALE/{game}-v5", 2, backend=b, env_kwargs=kwargs) for b in BACKENDS]
    generator = np.random.default_rng(1)
    told: list[list[Any]] = [[], []]
    for vec in vectors:
        vec.async_reset(seed=3)
    for _ in range(600):
        ours, theirs = batches = [vec.recv() for vec in vectors]
        ended = ours.terminations | ours.truncations
        for name in ("observations", "rewards", "terminations", "truncations", "live"):
            assert (getattr(ours, name) == getattr(theirs, name)).all(), name
        assert (ours.final[ended] == theirs.final[ended]).all()
        for infos, batch in zip(told, batches, strict=True):
            infos += [info for env in sorted(batch.infos) for info in batch.infos[env]]
        actions = generator.integers(0, 3, 2)
        for vec in vectors:
            vec.send(actions)
    for vec in vectors:
        vec.close()
    assert told[0] == told[1]
    assert told[0] or game != "Breakout"


@pytest.mark.usefixtures("_atari")
@pytest.mark.parametrize("backend", BACKENDS)
def test_games_are_cut_off_after_a_number_of_frames(backend: Any) -> None:
    import fugu

    kwargs = {**PLAIN, "max_num_frames_per_episode": 400}
    with fugu.make("ALE/Pong-v5", 1, backend=backend, env_kwargs=kwargs) as vec:
        vec.reset(seed=1)
        cut = [bool(vec.step([0])[3][0]) for _ in range(205)]
    assert [i for i, each in enumerate(cut) if each][:2] == [99, 199]


@pytest.mark.usefixtures("_atari")
def test_waiting_for_the_game_to_begin_differs_by_seed() -> None:
    env = resolve("ALE/Pong-v5")()
    frames = [env.reset(seed=seed) and env.ale.getEpisodeFrameNumber() for seed in range(12)]
    assert len({*frames}) > 3
    assert 0 <= min(frames) <= max(frames) <= 30


@pytest.mark.usefixtures("_atari")
def test_a_game_goes_on_from_its_state() -> None:
    env = resolve("ALE/Breakout-v5", episodic_life=True)()
    env.reset(seed=1)
    actions = np.random.default_rng(0).integers(0, 4, 300)
    for action in actions[:100]:
        if env.step(action)[2]:
            env.reset()
    state = env.state()

    def go_on(env: Any) -> list[Any]:
        found = []
        for action in actions[100:]:
            seen, *rest = env.step(action)
            found.append((seen.tobytes(), *map(str, rest)))
            if rest[1] or rest[2]:
                found.append(env.reset()[0].tobytes())
        return found

    expected = go_on(env)
    other = resolve("ALE/Breakout-v5", episodic_life=True)()
    other.reset(seed=2)
    other.set_state(state)
    assert go_on(other) == expected


@pytest.mark.usefixtures("_atari")
def test_wrong_settings_are_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="nearest: env.frameskip"):
        resolve("ALE/Breakout-v5", frame_skip=4)()
    with pytest.raises(UsageError, match="frameskip: given 0; allowed: 1 or more"):
        resolve("ALE/Breakout-v5", frameskip=0)()


# ---------------------------------------------------------------------- the others


@pytest.mark.parametrize("name", ["nethack:Score", "minihack:Room-5x5"])
def test_the_cells_around_the_hero(name: str) -> None:
    pytest.importorskip("nle")
    pytest.importorskip("minihack")
    env = resolve(name)()
    env.action_space.seed(0)
    seen, _ = env.reset(seed=4)
    for _ in range(100):
        screen = env.unwrapped.last_observation
        keys = env.unwrapped._observation_keys
        chars, colors, stats = (screen[keys.index(k)] for k in ("chars", "colors", "blstats"))
        column, row = stats[0], stats[1]
        for key, whole in (("chars", chars), ("colors", colors)):
            for i in range(9):
                for j in range(9):
                    y, x = row + i - 4, column + j - 4
                    inside = 0 <= y < 21 and 0 <= x < 79
                    assert seen[key][i, j] == (whole[y, x] if inside else 0)
        assert ("map" in seen) == (name == "nethack:Score")
        assert "map" not in seen or (seen["map"][..., 0] == chars).all()
        assert np.allclose(np.expm1(np.abs(seen["stats"])), np.abs(stats), rtol=1e-4)
        assert env.observation_space.contains(seen)
        seen, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            seen, _ = env.reset()


@pytest.mark.parametrize("name", ["DoorKey-5x5", "LavaGapS5", "Dynamic-Obstacles-5x5"])
def test_cells_of_minigrid_are_categories(name: str) -> None:
    pytest.importorskip("minigrid")
    env, bare = resolve(f"minigrid:{name}")(), gymnasium.make(f"MiniGrid-{name}-v0")
    env.action_space.seed(0)
    seen, _ = env.reset(seed=1)
    plain, _ = bare.reset(seed=1)
    for _ in range(200):
        assert env.observation_space.contains(seen)
        assert (seen["image"] == plain["image"]).all()
        assert seen["direction"] == plain["direction"]
        action = env.action_space.sample()
        seen, *rest = env.step(action)
        plain, *others = bare.step(action)
        assert rest[:3] == others[:3]
        if rest[1] or rest[2]:
            (seen, _), (plain, _) = env.reset(seed=2), bare.reset(seed=2)


def test_missions_are_seen_where_they_matter() -> None:
    pytest.importorskip("minigrid")
    seen, _ = resolve("minigrid:BabyAI-GoToObj")().reset(seed=1)
    assert seen["mission"].startswith("go to")
    assert "mission" not in resolve("minigrid:Empty-5x5")().reset(seed=1)[0]


def test_levels_of_procgen_are_its_own() -> None:
    procgen = pytest.importorskip("procgen")
    env = resolve("procgen:coinrun", num_levels=5)()
    env.action_space.seed(0)
    seen, _ = env.reset(seed=7)
    seed = int(
        np.random.default_rng(np.random.PCG64(np.random.SeedSequence(7))).integers(2**31 - 1)
    )
    bare = procgen.ProcgenGym3Env(
        num=1, env_name="coinrun", num_levels=5, distribution_mode="easy", rand_seed=seed
    )
    episodes = 0
    for _ in range(600):
        assert (seen == bare.observe()[1]["rgb"][0]).all()
        action = env.action_space.sample()
        before = seen
        seen, reward, terminated, truncated, info = env.step(action)
        bare.act(np.array([action]))
        rewards, _, firsts = bare.observe()
        assert (reward, terminated, truncated) == (rewards[0], bool(firsts[0]), False)
        if terminated:
            assert (seen == before).all(), "the last picture that was seen"
            assert info["solved"] == (reward > 0)
            seen, _ = env.reset()
            episodes += 1
    assert episodes


def test_procgen_goes_on_from_its_state() -> None:
    pytest.importorskip("procgen")
    actions = np.random.default_rng(0).integers(0, 15, 200)
    found = []
    env, other = resolve("procgen:coinrun")(), resolve("procgen:coinrun")()
    env.reset(seed=1)
    for action in actions[:50]:
        if env.step(action)[2]:
            env.reset()
    other.set_state(env.state())
    for each in (env, other):
        rows = []
        for action in actions[50:]:
            seen, reward, over, *_ = each.step(action)
            rows.append((seen.tobytes(), reward, over))
            if over:
                each.reset()
        found.append(rows)
    assert found[0] == found[1]


def test_how_an_episode_of_crafter_ends() -> None:
    pytest.importorskip("crafter")
    env = resolve("crafter")()
    env.reset(seed=0)
    env.unwrapped._game._length = 5
    *_, (_, _, terminated, truncated, info) = [env.step(0) for _ in range(5)]
    assert (terminated, truncated) == (False, True)
    assert len(info["achievements"]) == 22
    env.reset(seed=0)
    env.unwrapped._game._player.health = 0
    *_, terminated, truncated, _ = env.step(0)
    assert (terminated, truncated) == (True, False)


def test_a_game_boy(tmp_path: Path) -> None:
    pytest.importorskip("pyboy")
    rom = write_rom(tmp_path / "fugu.gb")
    functions = {"reward": "kitchen:presses", "over": "kitchen:is_over"}
    env = resolve(f"gameboy:{rom}", **functions, noop_max=0)()
    seen, _ = env.reset(seed=1)
    assert seen.shape == (3, 72, 80)
    right, left = 4, 3
    rewards = [env.step(action)[1] for action in (left, right, right, left)]
    assert rewards[0] == rewards[3] == 0.0
    assert rewards[1] == rewards[2] == 8.0, "a press is held for eight frames"
    ends = [env.step(right)[2] for _ in range(23)]
    assert ends == [False] * 22 + [True], "200 presses end it"
    short = resolve(f"gameboy:{rom}", max_steps=3)()
    short.reset(seed=1)
    assert [short.step(0)[2:4] for _ in range(3)][-1] == (False, True)
    with pytest.raises(UsageError, match="the file of a ROM"):
        resolve("gameboy:nothing.gb")()


def test_butterflies_are_small_and_grey() -> None:
    cv2 = pytest.importorskip("cv2")
    pytest.importorskip("pygame")
    from pettingzoo.butterfly import cooperative_pong_v6

    env, bare = (
        resolve("pettingzoo:butterfly/cooperative_pong")(),
        cooperative_pong_v6.parallel_env(),
    )
    seen, _ = env.reset(seed=1)
    plain, _ = bare.reset(seed=1)
    stacks = {agent: [] for agent in plain}  # type: ignore[var-annotated]
    for _ in range(30):
        for agent, picture in plain.items():
            one = cv2.resize(
                cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA
            )
            stacks[agent] = [*(stacks[agent] or [one] * 4)[1:], one]
            assert (seen[agent] == stacks[agent]).all()
        actions = dict.fromkeys(plain, 1)
        (seen, *_), (plain, *_) = env.step(actions), bare.step(actions)
